"""`python -m trainer.evaluate RUN` measures how well a run's newest checkpoint predicts. Prints JSON lines.

Writes `{"kind": "model", …}`, `{"kind": "held_out", …}` and one `{"kind": "task", …}` per file. A part that cannot be
done gives a `{"kind": "message", …}`, a failed start `{"kind": "error", "text": …, "hint": …}`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from trainer.device import DeviceError, describe_device
from trainer.schema import ConfigError, to_dict
from trainer.scoring import held_out, read_questions, score
from trainer.token_folder import DataError
from trainer.trained import NothingTrainedError, load_tokenizer, load_trained


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code: 0, or 1 with an error line."""
    parser = argparse.ArgumentParser(prog="python -m trainer.evaluate", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--tokens", type=int, default=1 << 20)
    parser.add_argument("--task", type=Path, action="append", default=[])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokenizer", type=Path)
    options = parser.parse_args(arguments)
    try:
        _evaluate(options)
    except (NothingTrainedError, DataError) as error:
        _say("error", text=str(error), hint=error.hint)
        return 1
    except (ConfigError, DeviceError, OSError) as error:
        _say("error", text=str(error), hint=None)
        return 1
    return 0


def _evaluate(options: argparse.Namespace) -> None:
    tasks = {file.stem: read_questions(file) for file in options.task}  # read first, so that no model is loaded in vain
    trained = load_trained(options.run, options.device, lambda text: _say("message", text=text))
    _say("model", step=trained.step, parameters=sum(p.numel() for p in trained.model.parameters()),
         device=describe_device(trained.context).name, precision=trained.context.precision)  # fmt: skip
    try:
        found = held_out(trained, options.tokens)
        _say("held_out", **to_dict(found), perplexity=found.perplexity)
    except (NothingTrainedError, DataError) as error:
        if not tasks:
            raise
        _say("message", text=f"no validation loss: {error}")
    if tasks:
        tokenizer, _ = load_tokenizer(trained.config, options.tokenizer)
        for name, questions in tasks.items():
            _say("task", **to_dict(score(trained, tokenizer, name, questions)))


def _say(kind: str, **fields: Any) -> None:
    print(json.dumps({"kind": kind, **fields}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
