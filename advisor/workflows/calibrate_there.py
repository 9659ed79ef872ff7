"""`python -m advisor.workflows.calibrate_there ASKED --out DIR`: what measures a machine that nobody sits at.

ASKED are the options, as `workflows/calibrate_elsewhere` wrote them; the calibration is left in DIR. Started again, it
goes on with what was measured before it was cut off.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from advisor.engines.arrival import CALIBRATION
from advisor.errors import AdvisorError
from advisor.options import CalibrationOptions
from advisor.store.calibration import calibration_to_dict
from advisor.store.disk import disk_errors, dump_yaml, read_json, write_atomic
from advisor.store.folders import profiles_folder
from advisor.store.store import Store
from advisor.workflows.calibrate import calibrate


def asked_text(options: CalibrationOptions) -> str:
    """Write the options for that machine, which has neither the data nor earlier measurements."""
    return json.dumps(asdict(replace(options, data=None, fresh=False)), indent=1) + "\n"


def calibrate_there(asked: Path, out: Path) -> None:
    """Measure this machine and leave its calibration; raises AdvisorError."""
    options = CalibrationOptions(**read_json(asked, "calibration's options"))
    store = Store(asked.parent / "store", profiles_folder() / "calibrations")
    calibration = calibrate(options, store, on_event=lambda event: print(event.text, flush=True)).calibration
    with disk_errors("leave the calibration in", out):
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(out / CALIBRATION, dump_yaml(calibration_to_dict(calibration)))


def main() -> int:
    """Exit status 0: it is measured."""
    parser = argparse.ArgumentParser(prog="python -m advisor.workflows.calibrate_there", description=__doc__)
    parser.add_argument("asked", metavar="ASKED", type=Path)
    parser.add_argument("--out", metavar="DIR", type=Path, required=True)
    words = parser.parse_args()
    try:
        calibrate_there(words.asked.resolve(), words.out.resolve())
    except AdvisorError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
