"""Plans the training of a published model on each number of GPUs with other software, in the best layout."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from advisor.architecture import Layout
from advisor.errors import AdvisorError
from advisor.hardware.catalog import GPUS_PER_NODE, GpuSpec, load_gpus, read_link, require_gpu
from advisor.laws.hyperparameters import step_law_batch
from advisor.offer import Offer
from advisor.options import Goal
from advisor.planning.goal import interruptions
from advisor.planning.infeasible import Way, any_gpu, hint, more_gpus
from advisor.planning.layouts import search
from advisor.planning.models import Architecture
from advisor.planning.offers import ANY
from advisor.planning.run import published_grounds
from advisor.prediction.layout_own import OwnRuns
from advisor.prediction.layout_runs import whole_run
from advisor.prediction.layouts import LayoutRun
from advisor.prediction.power import datasheet_power
from advisor.prediction.software import require_software
from advisor.records import Plan, Prediction
from advisor.workflows.goal import find_architecture
from advisor.workflows.option_rows import read_own_runs
from advisor.workflows.plan_elsewhere import ON_DEMAND, BestWay, Duration, plan_of, try_machines

SOFTWARE = "nemo"
TOKENS_PER_PARAMETER = 20  # Chinchilla's ratio, per parameter active for a token
_SHORT = 2048  # tokens of a sequence that training usually has at least


@dataclass(frozen=True, kw_only=True)
class LayoutWork:
    """The pre-training of a model, in the best layout on each number of GPUs."""

    goal: Goal
    architecture: Architecture
    software: str
    seq_len: int
    tokens: int
    sequences: int  # per step
    own_runs: dict[str, OwnRuns | None] = field(default_factory=dict)  # by GPU, filled from the user's measured runs

    def gpus(self) -> Sequence[str]:
        cards = load_gpus()
        if self.goal.gpu == ANY:
            return [key for key, spec in cards.items() if _joined(spec, ("nvlink", "xgmi"))]
        keys = self.goal.gpu.split(",")
        if unjoined := next((key for key in keys if key not in cards or not _joined(cards[key])), None):
            hint = "GPUs joined by NVLink or PCIe: --gpu h100"
            raise AdvisorError(f"the link between GPUs of type {unjoined} is unknown", hint, exit_code=2)
        return keys

    @property
    def sources(self) -> tuple[str, ...]:
        own = [self.goal.measured] if self.goal.measured is not None else []
        return ("published runs over layouts (profiles/layouts.yaml)", *own)

    def lacks(self, gpu: str) -> str:
        spec, precision = require_gpu(gpu), self.goal.precision
        rates = {"auto": True, "bf16": spec.bf16_flops, "fp16": spec.fp16_flops, "fp8": spec.fp8_flops}
        return "" if rates[precision] else f"it has no {precision}"

    def run_on(self, gpu: str, gpus: int) -> LayoutRun:
        """Return a run on these GPUs whose layout is still open."""
        spec, precision = require_gpu(gpu).with_network(self.goal.network_bytes_per_second), self.goal.precision
        if precision == "auto":
            precision = "bf16" if spec.bf16_flops else "fp16"
        return LayoutRun(
            model=self.architecture.model,
            layout=Layout(),
            gpu=spec,
            node_gpus=min(GPUS_PER_NODE, gpus),
            seq_len=self.seq_len,
            micro_batch=1,
            micro_batches=1,
            precision=precision,
            software=self.software,
        )

    def best_on(self, gpu: str, gpus: int) -> BestWay | str:
        run = self.run_on(gpu, gpus)
        if self.goal.measured is not None and gpu not in self.own_runs:
            self.own_runs[gpu] = read_own_runs(self.goal, run)
        own = self.own_runs.get(gpu)
        found = search(run, gpus, self.sequences, own)
        if found.best is None:
            return "" if found.tried else f"the model and {self.sequences} sequences a step do not divide by it"
        return BestWay(
            prediction=found.best,
            others=found.others,
            tried=found.tried,
            power=datasheet_power(run.gpu.tdp_watts),
            grounds=published_grounds(
                gpu, run.gpu, own_runs=own.count if own else 0, own_slowdown=math.exp(own.usual) if own else None
            ),
        )

    def duration(self, prediction: Prediction, offer: Offer) -> Duration:
        taken = interruptions(self.goal, spot=offer.spot, gpus=offer.gpus)
        steps = self.tokens / prediction.workload.step_tokens
        assert prediction.step_seconds is not None
        clock, failures = whole_run(
            prediction.step_seconds, steps, offer.gpus, self.architecture.parameters, taken=taken
        )
        return Duration(clock=clock, failures=failures, taken=taken)


def plan_layouts(goal: Goal) -> Plan:
    """Returns the best layout of the goal's model on each GPU and number of GPUs that the goal allows.

    Raises AdvisorError (exit 3) if the model fits nowhere.
    """
    work, assumed = _work(goal)
    tried = try_machines(work)
    if goal.measured is not None and not any(work.own_runs.values()):
        software = require_software(work.software).words
        message = f"{goal.measured} has no run of {software} on {goal.gpu.replace(',', ', ')}"
        raise AdvisorError(message, "name those of the measured runs: --gpu GPU --software NAME", exit_code=2)
    if not tried.runs:
        named = ", ".join(tried.does_not_fit) or "any GPU that is rented"
        message = f"{work.architecture.name} with {work.sequences} sequences a step surely fits none of: {named}"

        def fits(changed: Goal) -> bool:
            return bool(try_machines(_work(changed)[0]).runs)

        ways = _ways(work, (gpu for gpu, _ in tried.refused))
        raise AdvisorError(message, ON_DEMAND if tried.endless else hint(ways, fits), exit_code=3)
    too_long = work.architecture.details.past_longest(work.architecture.name, work.seq_len)
    return plan_of(work, tried, assumed=assumed, warnings=[*filter(None, [too_long])])


def _work(goal: Goal) -> tuple[LayoutWork, list[str]]:
    """Returns the work that the goal describes, and what was assumed."""
    assert goal.model is not None  # `goal_from` refuses layouts without a model
    architecture, software = find_architecture(goal.model), require_software(goal.software or SOFTWARE).name
    assumed = [f"--software {SOFTWARE}"] if goal.software is None else []
    seq_len, ratio = goal.seq_len or architecture.seq_len, goal.ratio or TOKENS_PER_PARAMETER
    if goal.seq_len is None:
        assumed.append(f"--seq-len {seq_len}")
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
    return LayoutWork(
        goal=goal, architecture=architecture, software=software, seq_len=seq_len, tokens=tokens, sequences=sequences
    ), assumed


def _ways(work: LayoutWork, refused: Iterable[str]) -> Iterator[Way]:
    """Yields changes of the goal with which some layout may fit where none fits the `refused` GPUs."""
    goal, seq_len = work.goal, work.seq_len
    if all(work.lacks(gpu) for gpu in refused):
        yield "16 bits", [("--precision auto", replace(goal, precision="auto"))]
        yield from any_gpu(goal, "GPUs that have it")
        return
    yield more_gpus(goal)
    most = max(goal.counts or (goal.gpus,))
    alone = replace(goal, gpus=most, counts=())
    even = math.ceil(work.sequences / most) * most * seq_len
    yield f"a batch that {most} GPUs divide", [(f"--global-batch {even}", replace(alone, global_batch_tokens=even))]
    lengths = [seq_len >> halved for halved in range(1, seq_len.bit_length()) if seq_len >> halved >= _SHORT]
    yield "shorter sequences", [(f"--seq-len {length}", replace(alone, seq_len=length)) for length in lengths]


def _joined(spec: GpuSpec, kinds: Sequence[str] = ()) -> bool:
    """Tells whether layouts can be planned on a GPU. If all GPUs are allowed, only those with a fast link qualify."""
    link = read_link(spec.interconnect)
    fast = link is not None and (not kinds or link.kind in kinds)
    return spec.is_cuda and fast and bool(spec.bf16_flops or spec.fp16_flops)
