"""`advisor calibrate`: short bursts of the real trainer on this device, and the model fitted to them."""

from __future__ import annotations

from typing import Any

import click

from advisor import render, units
from advisor.cli.params import FOLDER, LENGTH, NUMBERS, VOCABULARY, Number


@click.command()
@click.option("--gpu", default="auto", show_default=True, help="auto, cpu, or the card you expect here (l4, h200, …).")
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
@click.option("--precision", type=click.Choice(("auto", "bf16", "fp16", "fp32")), default="auto", show_default=True)
@click.option(
    "--compile/--no-compile", "compile_", default=None, help="torch.compile, as the full run will. Default: on a GPU."
)
@click.option("--activation-checkpointing", type=click.Choice(("none", "full")), default="none", show_default=True)
@click.option("--optimizer", type=click.Choice(("adamw", "muon")), default="adamw", show_default=True)
@click.option("--price", type=Number(min=0), help="Dollars per hour of this machine, to say what the calibration cost.")
@click.option("--fresh", is_flag=True, help="Start over even if an interrupted calibration could be continued.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(as_json: bool, **options: Any) -> None:
    """Measure this device: ceilings first, then training bursts where they narrow the decision most."""
    document, profile, held = run(options)
    summary = summarise(document, profile)
    if as_json:
        render.print_json(summary)
    else:
        show(summary, document, profile, held)


def run(options: dict[str, Any]) -> tuple[dict[str, Any], Any, Any]:
    """Calibrate as the options say; gives the raw document, the profile fitted to it and its held-out errors."""
    from advisor.calibrate.detect import device_for
    from advisor.calibrate.measure import Worker
    from advisor.calibrate.profiles import hold_each_out, profile_of
    from advisor.calibrate.profiles import summary as held_out_summary
    from advisor.calibrate.session import calibrate
    from advisor.cli.plan import read_data
    from advisor.predict.memory import load_memory_model
    from advisor.store import default_store

    store, meta = default_store(), read_data(options["data"])
    worker_log = store.home / "worker.log"
    worker_log.parent.mkdir(parents=True, exist_ok=True)
    with Worker(device_for(options["gpu"]), log=worker_log) as worker:
        settings = resolve(options, worker.start().device, meta)
        with render.progress("starting", settings.budget_seconds) as update:

            def on_event(event: Any) -> None:
                update(completed=event.elapsed_seconds, description=event.text)

            document = calibrate(settings, worker, store, load_memory_model(), on_event, resume=not options["fresh"])
    held = hold_each_out(document)
    document["held_out_error"] = held_out_summary(held) if held else None
    store.save_calibration(document)
    return document, profile_of(document, store.observations(settings.gpu)), held


def resolve(options: dict[str, Any], found: Any, meta: dict[str, Any] | None) -> Any:
    """Options plus the device at hand and the data's metadata: settings with nothing left to decide."""
    from advisor.calibrate.detect import CPU_DEFAULTS, CUDA_DEFAULTS, fillable_bytes, resolve_key
    from advisor.calibrate.session import Settings

    defaults = CUDA_DEFAULTS if found["type"] == "cuda" else CPU_DEFAULTS
    data = options["data"]
    precision = options["precision"] if options["precision"] != "auto" else found["auto_precision"]
    return Settings(
        gpu=resolve_key(options["gpu"], found),
        device=found["type"],
        family=options["family"],
        depths=options["depths"] or defaults.depths,
        seq_len=options["seq_len"] or defaults.seq_len,
        vocab_size=options["vocab_size"] or (meta and meta["vocab_size"]) or defaults.vocab_size,
        data=str(data.resolve()) if data else None,
        budget_seconds=options["budget_seconds"] or defaults.budget_seconds,
        precision=precision,
        compile=defaults.compile if options["compile_"] is None else options["compile_"],
        activation_checkpointing=options["activation_checkpointing"],
        optimizer=options["optimizer"],
        memory_bytes=fillable_bytes(found),
        most_micro_tokens=defaults.most_micro_tokens,
        usd_per_hour=options["price"],
    )


def summarise(document: dict[str, Any], profile: Any) -> dict[str, Any]:
    """What `--json` prints: the fit's quality, its coefficients, ceilings and the bill."""
    from advisor.predict.throughput import TERMS

    bursts = document["bursts"]
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
        "outcomes": {o: sum(b["outcome"] == o for b in bursts) for o in {b["outcome"] for b in bursts}},
        "coefficients": {
            t: {"log_mean": float(m), "log_deviation": float(d)}
            for t, m, d in zip(TERMS, profile.posterior.theta, deviations, strict=True)
        },
        "discrepancy": profile.posterior.discrepancy,
        "drift_deviation": profile.posterior.drift,
        "drift_exponent": profile.drift_exponent,
        "held_out": document["held_out_error"],
        "cost": document["cost"],
    }


def show(summary: dict[str, Any], document: dict[str, Any], profile: Any, held: Any, *, bursts: bool = True) -> None:
    """The same for a person; `bursts` has every configuration in a table."""
    rates, cost = profile.posterior.rates, document["cost"]
    money = "" if cost["usd"] is None else f", {units.format_usd(cost['usd'])}"
    render.show(
        f"{profile.name}: {rates.matmul_flops / 1e12:.3g} TFLOP/s in matrix products ({profile.precision}), "
        f"{rates.bandwidth / 1e9:.3g} GB/s memory, {rates.launch_seconds * 1e6:.2g} µs per launch"
    )
    if bursts:
        columns = ("configuration", "bursts", "tokens/s", "step", "predicted when left out")
        render.show(render.table(columns, _rows(document, held), right=columns[1:]))
    render.show(
        quality(profile),
        f"calibration {document['id']}: {summary['bursts']} bursts in {units.format_seconds(cost['seconds'])}{money}",
    )


# a quiet machine gives 2 to 6 % (docs/accuracy.md): at five times that other work was measured, not the trainer
_SOUND_MEDIAN = 0.25
_DOUBTFUL = "! do not plan on this calibration: something else was using the device; advisor calibrate repeats it"


def quality(profile: Any) -> str:
    """What leaving each configuration out says of the calibration, and whether to plan on it."""
    held = profile.held_out
    if held is None:
        return "too few configurations to hold one out: give it more seconds"
    return (
        f"held-out error (each configuration left out once): median {held.median:.1%}, p90 {held.p90:.1%}, "
        f"{held.coverage:.0%} of {held.configurations} inside the 80 % interval; "
        f"the machine's own speed moved by ±{profile.posterior.drift:.0%}"
        + (f"\n{_DOUBTFUL}" if held.median > _SOUND_MEDIAN else "")
    )


def _rows(document: dict[str, Any], held: Any) -> list[tuple[str, ...]]:
    from advisor.calibrate.summary import burst_lines

    return [
        (
            line.configuration,
            str(line.bursts),
            units.format_rate(line.tokens_per_second) if line.tokens_per_second else "-",
            units.format_seconds(line.step_seconds) if line.step_seconds else line.outcome,
            "-" if line.left_out_error is None else f"{line.left_out_error:+.1%}",
        )
        for line in burst_lines(document, held.errors if held else None)
    ]
