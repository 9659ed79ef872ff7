"""Runs in the user's own Python and writes parameters to one run of a tracker, by the tracker's own library.

Takes one JSON object (`library`, `run`, `parameters` and what else names the run); prints where they went.
"""

import importlib
import json
import os
import sys


def main() -> None:
    """Write what standard input asks for. Imports only the standard library and the tracker."""
    wanted = json.load(sys.stdin)
    library, parameters, place = importlib.import_module(wanted["library"]), wanted["parameters"], wanted.get("folder")
    if wanted["library"] == "wandb":  # one more part of an offline run, beside it; `wandb sync` joins both into one run
        run = library.init(id=wanted["run"], project=wanted["project"], entity=wanted["entity"], dir=place,
                           mode="offline", settings=library.Settings(console="off"))  # fmt: skip
        run.config.update(parameters, allow_val_change=True)
        place = os.path.dirname(run.dir)
        run.finish()
    elif wanted["library"] == "mlflow":  # refuses a parameter that the run has with another value
        place, entry = wanted["store"], library.entities.Param
        listed = [entry(name, str(value)) for name, value in parameters.items()]
        library.MlflowClient(tracking_uri=place).log_batch(wanted["run"], params=listed)
    else:  # trackio sends a configuration only with logged values, so the numbers are logged again
        runs, named = importlib.import_module("trackio.api").Api().runs(wanted["project"]), wanted["run"]
        before = next(run.config for run in runs if run.name == named) or {}
        known = {name: value for name, value in before.items() if not name.startswith("_")}
        library.init(wanted["project"], name=named, resume="must", config={**known, **parameters}, embed=False)
        library.log({name: value for name, value in parameters.items() if isinstance(value, float)})
        library.finish()
    print(place)


if __name__ == "__main__":
    main()
