"""Streamlit's server with what pages need already loaded: the first visitor waits for an answer, not for imports.

    python -m advisor.ui.serve FRAME [streamlit's options]

Pages themselves are left to the server: their caches belong to it.
"""

from __future__ import annotations

import importlib
import sys

# what the pages stand on; the slow ones to load are pandas, altair and scipy, which come with them
_BELOW_THE_PAGES = (
    *("altair", "pandas", "advisor.workflows.analysis", "advisor.report.plots", "advisor.report.charts"),
    "advisor.workflows.compare",
    *(
        "advisor.report.cards",
        "advisor.workflows.plan",
        "advisor.calibration.background",
        "advisor.calibration.profiles",
    ),
    *("advisor.workflows.adopt", "advisor.workflows.launch", "advisor.planning.answer", "advisor.planning.cards"),
)


def main() -> None:
    """Load, then serve; gives Streamlit's exit code to the shell."""
    for name in _BELOW_THE_PAGES:
        importlib.import_module(name)
    from streamlit.web import cli

    sys.argv = ["streamlit", "run", *sys.argv[1:]]
    sys.exit(cli.main(prog_name="streamlit"))


if __name__ == "__main__":
    main()
