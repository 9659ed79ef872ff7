"""Plans the training of a published model on each number of GPUs with other software, in the best layout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from advisor.errors import AdvisorError
from advisor.hardware.catalog import GPUS_PER_NODE, GpuSpec, load_gpus, read_link, require_gpu
from advisor.laws.hyperparameters import step_law_batch
from advisor.offer import Offer
from advisor.options import Goal
from advisor.planning.infeasible import USUAL_LEAST, Way, any_gpu, halves, larger_gpu, more_gpus
from advisor.planning.layouts import search
from advisor.planning.models import NamedModel
from advisor.planning.offers import ANY, OWN
from advisor.planning.run import published_grounds
from advisor.prediction.layout_own import OwnRuns
from advisor.prediction.layout_runs import whole_run
from advisor.prediction.layouts import LayoutRun
from advisor.prediction.power import datasheet_power
from advisor.prediction.software import require_software
from advisor.records import Estimate, Prediction, WallClock
from advisor.workflows.goal import find_any_model
from advisor.workflows.option_rows import read_own_runs
from advisor.workflows.plan_elsewhere import BestWay, Work, gpus_of
from advisor.workflows.predict_layout import open_run, software_and_length

TOKENS_PER_PARAMETER = 20  # Chinchilla's ratio, per parameter active for a token


@dataclass(frozen=True, kw_only=True)
class LayoutWork(Work):
    """The pre-training of a model, in the best layout on each number of GPUs."""

    architecture: NamedModel
    software: str
    seq_len: int
    sequences: int  # per step
    own_runs: dict[str, OwnRuns | None] = field(default_factory=dict)  # by GPU, filled from the user's measured runs

    def usable(self, spec: GpuSpec) -> bool:
        return _joined(spec, ("nvlink", "xgmi"))

    def lacks(self, spec: GpuSpec) -> str:
        rates = {"auto": True, "bf16": spec.bf16_flops, "fp16": spec.fp16_flops, "fp8": spec.fp8_flops}
        return "" if rates[self.goal.precision] else f"it has no {self.goal.precision}"

    def run_on(self, gpu: str, gpus: int) -> LayoutRun:
        """Return a run on these GPUs whose layout is still open."""
        spec = require_gpu(gpu).with_network(self.goal.network_bytes_per_second)
        return open_run(self.architecture.model, spec, gpus, self.seq_len, self.software, self.goal.precision)

    def best_on(self, gpu: str, gpus: int) -> BestWay | str:
        run = self.run_on(gpu, gpus)
        own = self.own_runs.get(gpu)
        found = search(run, gpus, self.sequences, own)
        best = found.best or found.nearest
        if best is None:
            return f"the model and {self.sequences} sequences a step do not divide by it"
        return BestWay(
            prediction=best,
            others=found.others,
            tried=found.tried,
            power=datasheet_power(run.gpu.tdp_watts),
            grounds=published_grounds(
                gpu, run.gpu, own_runs=own.count if own else 0, own_slowdown=math.exp(own.usual) if own else None
            ),
        )

    def duration(self, prediction: Prediction, offer: Offer, taken: Estimate | None) -> tuple[WallClock, float | None]:
        steps, step = self.tokens / prediction.workload.step_tokens, prediction.step_seconds
        assert step is not None
        return whole_run(step, steps, offer.gpus, self.architecture.parameters, taken=taken)

    def changes(self, refused: Sequence[str]) -> Iterator[Way]:
        goal, seq_len = self.goal, self.seq_len
        if all(self.lacks(require_gpu(gpu)) for gpu in refused):
            yield "16 bits", [("--precision auto", replace(goal, precision="auto"))]
            yield from any_gpu(goal, "GPUs that have it")
            return
        yield more_gpus(goal)
        most = max(goal.counts or (goal.gpus,))
        alone = replace(goal, gpus=most, counts=())
        even = math.ceil(self.sequences / most) * most * seq_len
        batch = [(f"--global-batch {even}", replace(alone, global_batch_tokens=even))]
        yield f"a batch that {most} GPUs divide", batch
        tried = [(f"--seq-len {length}", replace(alone, seq_len=length)) for length in halves(seq_len, USUAL_LEAST)]
        yield "shorter sequences", tried
        if self.sequences % most == 0:
            yield from larger_gpu(goal, self.usable)


def layout_work(goal: Goal) -> LayoutWork:
    """Returns the work that the goal describes. Raises AdvisorError (exit 2) if a GPU's link is unknown."""
    assert goal.model is not None  # `goal_from` refuses layouts without a model
    cards, named = load_gpus(), () if goal.gpu in (ANY, OWN) else goal.gpu.split(",")
    if unjoined := next((key for key in named if key not in cards or not _joined(cards[key])), None):
        hint = "GPUs joined by NVLink or PCIe: --gpu h100"
        raise AdvisorError(f"the link between GPUs of type {unjoined} is unknown", hint, exit_code=2)
    architecture, ratio = find_any_model(goal.model), goal.ratio or TOKENS_PER_PARAMETER
    software, seq_len, assumed = software_and_length(goal, architecture)
    tokens = goal.tokens or round(ratio * architecture.model.active)
    if goal.tokens is None:
        assumed.append(f"--tokens {tokens / 1e9:.0f}B ({ratio:g} for each active parameter)")
    if goal.global_batch_tokens is not None:
        sequences = max(1, round(goal.global_batch_tokens / seq_len))
    else:
        # a multiple of the odd factors of all numbers of GPUs: 768 GPUs divide no power of two
        odd = math.lcm(*(count // (count & -count) for count in goal.counts or (goal.gpus,)))
        sequences = odd * int(2 ** max(0, round(math.log2(step_law_batch(float(tokens)) / seq_len / odd))))
        multiple = "to a power of two" if odd == 1 else f"to a power of two times {odd}, which these GPUs divide"
        assumed.append(f"--global-batch {sequences * seq_len} (Step Law, {multiple})")
    too_long = architecture.details.past_longest(architecture.name, seq_len)
    work = LayoutWork(
        goal=goal, name=f"{architecture.name} with {sequences} sequences a step", architecture=architecture,
        software=software, seq_len=seq_len, tokens=tokens, sequences=sequences, assumed=tuple(assumed),
        warnings=tuple(filter(None, [too_long])),
        sources=("published runs over layouts (profiles/layouts.yaml)", *filter(None, [goal.measured])),
    )  # fmt: skip
    if goal.measured is not None:
        able = [gpu for gpu in gpus_of(work) if not work.lacks(require_gpu(gpu))]
        work.own_runs.update({gpu: read_own_runs(goal, work.run_on(gpu, GPUS_PER_NODE)) for gpu in able})
        if not any(work.own_runs.values()):
            message = (
                f"{goal.measured} has no run of {require_software(software).words} on {goal.gpu.replace(',', ', ')}"
            )
            raise AdvisorError(message, "name those of the measured runs: --gpu GPU --software NAME", exit_code=2)
    return work


def _joined(spec: GpuSpec, kinds: Sequence[str] = ()) -> bool:
    """Tells whether layouts can be planned on a GPU. If all GPUs are allowed, only those with a fast link qualify."""
    link = read_link(spec.interconnect)
    fast = link is not None and (not kinds or link.kind in kinds)
    return spec.is_cuda and fast and bool(spec.bf16_flops or spec.fp16_flops)
