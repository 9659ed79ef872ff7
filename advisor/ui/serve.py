"""Streamlit's server with imports done in advance, so that the first visitor does not wait for them.

    python -m advisor.ui.serve FRAME [streamlit's options]

The pages themselves are imported by the server, because their caches belong to it.
"""

from __future__ import annotations

import importlib
import sys

# What the pages are built on. The slow imports are pandas, altair and scipy, which come with these.
_BELOW_THE_PAGES = """altair pandas advisor.report.plots advisor.report.charts advisor.report.gpu_rows
advisor.workflows.analysis advisor.workflows.compare advisor.workflows.plan advisor.workflows.calibrate
advisor.workflows.adopt advisor.workflows.launch advisor.calibration.profiles advisor.planning.answer
advisor.planning.what_fits"""


def main() -> None:
    """Import the modules, then serve. Exits with Streamlit's exit code."""
    for name in _BELOW_THE_PAGES.split():
        importlib.import_module(name)
    from streamlit.web import cli

    sys.argv = ["streamlit", "run", *sys.argv[1:]]
    sys.exit(cli.main(prog_name="streamlit"))


if __name__ == "__main__":
    main()
