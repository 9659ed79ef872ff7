"""`advisor calibrate`: short bursts of the real trainer on this device, and the model fitted to them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from advisor import units
from advisor.cli.params import FOLDER, LENGTH, NUMBERS, PRECISION, VOCABULARY, Number
from advisor.engines.engines import parse_place
from advisor.errors import AdvisorError
from advisor.report import render
from advisor.report.calibration import consequence

if TYPE_CHECKING:
    from advisor.calibration.session import Event
    from advisor.store.calibration import Settings
    from advisor.workflows.calibrate import Calibrated, CalibrationOptions


@click.command()
@click.option("--gpu", default="auto", show_default=True, help="auto, cpu, or the GPU you expect here (l4, h200, …).")
@click.option("--family", type=click.Choice(("nanochat", "gpt2", "llama")), default="nanochat", show_default=True)
@click.option(
    "--depths", type=NUMBERS, help="Depths to choose from: 2-8 or 2,4,6. Default: 2-8 on a CPU, 4-20 on a GPU."
)
@click.option("--seq-len", type=LENGTH, help="Context length. Default: 256 on a CPU, 2048 on a GPU.")
@click.option("--vocab-size", type=VOCABULARY, help="Default: the data's, else 4096 on a CPU, 32768 on a GPU.")
@click.option(
    "--data",
    type=FOLDER,
    help="Token folder from `advisor data prepare`; default: synthetic tokens.",
)
@click.option("--budget-seconds", type=Number(min=10), help="Default: 90 on a CPU, 120 on a GPU.")
@click.option("--precision", type=PRECISION, default="auto", show_default=True)
@click.option(
    "--compile/--no-compile", "compile", default=None, help="torch.compile, as the full run will. Default: on a GPU."
)
@click.option(
    "--activation-checkpointing", type=click.Choice(("none", "selective", "full")), default="none", show_default=True
)
@click.option("--optimizer", type=click.Choice(("adamw", "muon")), default="adamw", show_default=True)
@click.option("--price", type=Number(min=0), help="Dollars per hour of this machine, to say what the calibration cost.")
@click.option("--fresh", is_flag=True, help="Start over even if an interrupted calibration could be continued.")
@click.option(
    "--on",
    multiple=True,
    metavar="ENGINE:NAME",
    help="Measure elsewhere instead: slurm:PARTITION,PARTITION,... or ssh:HOST. May be repeated.",
)
@click.option("--account", help="Slurm's.")
@click.option("--qos", help="Slurm's.")
@click.option("--constraint", help="Slurm's, as in h100.")
@click.option("--detach", is_flag=True, help="With --on: return at once; the same command shows later what came of it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(on: tuple[str, ...], account: str | None, qos: str | None, constraint: str | None, detach: bool,
            as_json: bool, **options: Any) -> int:  # fmt: skip
    """Measure this device: ceilings first, then training bursts where they narrow the decision most.

    A calibration that is rejected, which no plan uses, ends with exit code 1.
    With --on each place is measured by a job of its own, and what comes home is kept as what was measured here.
    """
    from advisor.workflows.calibrate import CalibrationOptions

    if on:
        from advisor.cli.measuring import measure

        places = [parse_place(text, account=account, qos=qos, constraint=constraint) for text in on]
        return measure(CalibrationOptions(**options), places, detach=detach, as_json=as_json)
    if given := [name for name, value in (("--account", account), ("--qos", qos), ("--constraint", constraint),
                                          ("--detach", detach)) if value]:  # fmt: skip
        raise AdvisorError(f"{', '.join(given)} is for a calibration elsewhere", "say where: --on slurm:PARTITION",
                           exit_code=2)  # fmt: skip
    done = run(CalibrationOptions(**options))
    if as_json:
        render.print_json(summarise(done))
    else:
        show(done)
    return int(is_rejected(done))


def is_rejected(done: Calibrated) -> bool:
    """Whether no plan will use a calibration."""
    from advisor.calibration.quality import quality_of
    from advisor.store.calibration import Verdict

    return quality_of(done.calibration).verdict == Verdict.REJECTED


def run(options: CalibrationOptions) -> Calibrated:
    """Calibrate as the options say, with a bar for its time."""
    from advisor.store.store import default_store
    from advisor.workflows.calibrate import calibrate
    from advisor.workflows.preflight import training_here

    if busy := ", ".join(training_here(default_store())):
        render.remark(f"warning: {busy} is training on this machine: what is measured beside it is too slow")
    with bar() as (on_start, on_event):
        return calibrate(options, default_store(), on_start, on_event)


@contextlib.contextmanager
def bar() -> Iterator[tuple[Callable[[Settings], None], Callable[[Event], None]]]:
    """What shows a calibration's time: to be told its settings, then its events."""
    with contextlib.ExitStack() as stack:  # drawn once the device, and with it the time limit, is known
        shown: list[Any] = []

        def on_start(settings: Settings) -> None:
            shown.append(stack.enter_context(render.progress("starting", settings.budget_seconds)))

        def on_event(event: Event) -> None:
            shown[0](completed=event.elapsed_seconds, description=event.text)

        yield on_start, on_event


def summarise(done: Calibrated) -> dict[str, Any]:
    """What `--json` prints: the fit's quality, its coefficients, ceilings and the bill."""
    from advisor.prediction.throughput import TERMS
    from advisor.store.calibration import calibration_to_dict

    profile, bursts = done.profile, done.calibration.bursts
    document = calibration_to_dict(done.calibration)
    rates = profile.posterior.rates
    deviations = profile.posterior.covariance.diagonal() ** 0.5
    return {
        "calibration": document["id"],
        "device": document["device"],
        "settings": document["settings"],
        "ceilings": {
            "matmul_flops_per_second": rates.matmul_flops,
            "bandwidth_bytes_per_second": rates.bandwidth,
            "launch_seconds": rates.launch_seconds,
        },
        "bursts": len(bursts),
        "outcomes": {o: sum(b.outcome == o for b in bursts) for o in {b.outcome for b in bursts}},
        "coefficients": {
            t: {"log_mean": float(m), "log_deviation": float(d)}
            for t, m, d in zip(TERMS, profile.posterior.theta, deviations, strict=True)
        },
        "discrepancy": profile.posterior.discrepancy,
        "drift_deviation": profile.posterior.drift,
        "drift_exponent": profile.drift_exponent,
        "held_out": document["held_out_error"],
        "quality": document["quality"],
        "cost": document["cost"],
    }


def show(done: Calibrated, *, bursts: bool = True) -> None:
    """The same for a person; `bursts` has every configuration in a table."""
    calibration, profile = done.calibration, done.profile
    rates, cost = profile.posterior.rates, calibration.cost
    money = "" if cost.usd is None else f", {units.format_usd(cost.usd)}"
    render.show(
        f"{profile.name}: {rates.matmul_flops / 1e12:.3g} TFLOP/s in matrix products ({profile.precision}), "
        f"{rates.bandwidth / 1e9:.3g} GB/s memory, {rates.launch_seconds * 1e6:.2g} µs per launch"
    )
    if bursts:
        columns = ("configuration", "bursts", "tokens/s", "step", "predicted when left out")
        render.show(render.table(columns, _rows(done), right=columns[1:]))
    took = f"{len(calibration.bursts)} bursts in {units.format_seconds(cost.seconds)}{money}"
    render.show(quality(done), f"calibration {calibration.id}: {took}")


def quality(done: Calibrated) -> str:
    """What leaving each configuration out says of the calibration, and what predictions do with it."""
    from advisor.calibration.quality import quality_of

    held, found = done.calibration.held_out_error, quality_of(done.calibration)
    errors = (
        f"held-out error (each configuration left out once): median {held.median:.1%}, p90 {held.p90:.1%}, "
        f"{held.coverage:.0%} of {held.configurations} inside the 80 % interval; "
        f"the machine's own speed moved by ±{done.profile.posterior.drift:.0%}\n"
        if held
        else ""
    )
    mark = "" if found.verdict == "good" else "! "
    return f"{errors}{mark}this calibration is {consequence(found, done.calibration.device_key)}"


def _rows(done: Calibrated) -> list[tuple[str, ...]]:
    from advisor.calibration.summary import burst_lines

    return [
        (
            line.configuration,
            str(line.bursts),
            units.format_rate(line.tokens_per_second) if line.tokens_per_second else "-",
            units.format_seconds(line.step_seconds) if line.step_seconds else line.outcome,
            "-" if line.left_out_error is None else f"{line.left_out_error:+.1%}",
        )
        for line in burst_lines(done.calibration, done.held_out)
    ]
