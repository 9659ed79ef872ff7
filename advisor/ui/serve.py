"""Streamlit's server with imports done in advance, so that the first visitor does not wait for them.

    python -m advisor.ui.serve FRAME [streamlit's options]

The pages themselves are imported by the server, because their caches belong to it.
"""

from __future__ import annotations

import gc
import importlib
import logging
import sys
import threading
import time

# What the pages are built on. The slow imports are pandas, altair and scipy, which come with these.
_BELOW_THE_PAGES = """altair pandas advisor.report.plots advisor.report.charts advisor.report.gpu_rows
advisor.workflows.analysis advisor.workflows.compare advisor.workflows.plan advisor.workflows.calibrate
advisor.workflows.adopt advisor.workflows.launch advisor.calibration.profiles advisor.planning.answer
advisor.planning.what_fits advisor.workflows.fleet"""


def main() -> None:
    """Import the modules, then serve. Exits with Streamlit's exit code."""
    for name in _BELOW_THE_PAGES.split():
        importlib.import_module(name)
    from streamlit.web import cli

    threading.Thread(target=_plan_ahead, daemon=True).start()
    sys.argv = ["streamlit", "run", *sys.argv[1:]]
    sys.exit(cli.main(prog_name="streamlit"))


def _plan_ahead() -> None:
    """Import the pages and make the plan that the page Plan opens with, while the browser of the first visitor loads.

    No chart is drawn: altair's registry of data belongs to the whole process, and the first visitor draws soon.
    """
    from streamlit import runtime

    while not runtime.exists():  # the caches belong to the server
        time.sleep(0.01)
    # Streamlit warns at each element that no browser will see it.
    logging.getLogger("streamlit.runtime.scriptrunner_utils.script_run_context").addFilter(lambda _: False)
    importlib.import_module("advisor.ui.frame")
    from advisor.ui import plan_answers, plan_form

    plan_form.begin()
    goal = plan_form.goal()
    plan_answers.plan(goal, plan_answers.world(goal))
    # Modules and tables stay for good: looking through them for garbage would hold up each tenth move of a slider.
    gc.freeze()


if __name__ == "__main__":
    main()
