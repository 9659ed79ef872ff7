"""`advisor calibrate`: short bursts of the real trainer on this device, and the model fitted to them."""

from __future__ import annotations

from typing import Any

import click

from advisor.cli.calibrating import is_rejected, lines, run
from advisor.cli.verb import answer, options, options_in, verb
from advisor.engines.engines import parse_place
from advisor.errors import AdvisorError
from advisor.options import CalibrationOptions


@verb()
@options_in(CalibrationOptions)
@click.option("--on", multiple=True, metavar="ENGINE:NAME",
              help="Measure other machines: slurm:PARTITION,PARTITION,... or ssh:HOST. May be repeated.")  # fmt: skip
@options("account", "qos", "constraint")
@click.option("--detach", is_flag=True, help="With --on: return at once; the same command shows the result later.")
def command(on: tuple[str, ...], account: str | None, qos: str | None, constraint: str | None, detach: bool,
            **asked: Any) -> int:  # fmt: skip
    """Measure this device: its best rates first, then training bursts where they improve predictions most.

    The exit code is 1 for a rejected calibration, which no plan uses.
    With --on, a job measures each of the named machines, and the calibrations are stored here.
    """
    from advisor.workflows.calibrate import to_document

    if on:
        from advisor.cli.measuring import measure

        places = [parse_place(text, account=account, qos=qos, constraint=constraint) for text in on]
        return measure(CalibrationOptions(**asked), places, detach=detach)
    elsewhere = {"--account": account, "--qos": qos, "--constraint": constraint, "--detach": detach}
    if given := ", ".join(name for name, value in elsewhere.items() if value):
        hint = "say where: --on slurm:PARTITION"
        raise AdvisorError(f"{given} is for a calibration on another machine", hint, exit_code=2)
    done = run(CalibrationOptions(**asked))
    answer("calibrate", lambda: to_document(done), lambda: lines(done))
    return int(is_rejected(done))
