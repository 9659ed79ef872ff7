"""Plans the training of a published model on each number of GPUs with other software, in the best layout."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from advisor.errors import AdvisorError
from advisor.hardware.catalog import GPUS_PER_NODE, GpuSpec, load_gpus, read_link
from advisor.hardware.offers import rows_by_gpu, unpriced
from advisor.laws.hyperparameters import step_law_batch
from advisor.offer import Offer
from advisor.options import Goal
from advisor.planning.choose import sorted_by_preference
from advisor.planning.costs import whole_usd
from advisor.planning.goal import Limits, interruptions
from advisor.planning.layouts import Search, search
from advisor.planning.models import Architecture
from advisor.planning.offers import ANY, offers_for
from advisor.prediction.layout_own import OwnRuns
from advisor.prediction.layout_runs import WholeRun, whole_run
from advisor.prediction.layouts import Layout, LayoutRun
from advisor.prediction.power import datasheet_power
from advisor.prediction.software import require_software
from advisor.records import Estimate
from advisor.units import format_seconds
from advisor.workflows.goal import find_architecture
from advisor.workflows.own_runs import read_own_runs

SOFTWARE = "nemo"
TOKENS_PER_PARAMETER = 20  # Chinchilla's ratio, per parameter active for a token
_COUNTS = tuple(2**power for power in range(11))  # of GPUs to try where none fits
_SHORT = 2048  # tokens of a sequence that training usually has at least
_ENDLESS = 50.0  # seconds lost to interruptions per second of work; no such run is worth its start


@dataclass(frozen=True, kw_only=True)
class LayoutChoice:
    """A number of GPUs with its best layout, and the time and cost of the whole run."""

    offer: Offer
    search: Search
    whole: WholeRun
    usd: Estimate | None
    keeps: tuple[bool, bool]  # whether it is within the deadline, and within the budget

    @property
    def gpus(self) -> int:
        return self.offer.gpus

    @property
    def seconds(self) -> Estimate:
        return self.whole.seconds


@dataclass(frozen=True, kw_only=True)
class LayoutPlan:
    """The ways to train a model over many GPUs, the best first; those that break a limit come last."""

    goal: Goal
    architecture: Architecture
    software: str  # its name in words
    seq_len: int
    sequences: int  # per step
    tokens: int
    choices: tuple[LayoutChoice, ...]
    does_not_fit: tuple[str, ...]  # GPUs with their numbers
    assumed: tuple[str, ...]
    own_runs: Mapping[str, OwnRuns]  # by GPU, from the user's measured runs

    @property
    def too_long(self) -> str | None:
        """A sentence if the sequences are longer than any that the published model reads."""
        return self.architecture.details.past_longest(self.architecture.name, self.seq_len)

    @property
    def chosen(self) -> LayoutChoice:
        return self.choices[0]


def plan_layouts(goal: Goal) -> LayoutPlan:
    """Returns the best layout of the goal's model on each GPU and number of GPUs that the goal allows.

    Their order is that of any plan (`choose.sorted_by_preference`). Raises AdvisorError (exit 3) if the model fits
    nowhere.
    """
    assert goal.model is not None  # `goal_from` refuses layouts without a model
    architecture = find_architecture(goal.model)
    software = require_software(goal.software or SOFTWARE)
    seq_len, tokens, sequences, assumed = _work(goal, architecture)
    choices: list[LayoutChoice] = []
    does_not_fit: list[str] = []
    refused: list[tuple[LayoutRun, int]] = []  # runs with their numbers of GPUs
    own_runs: dict[str, OwnRuns] = {}
    endless = ""  # what helps a run that interruptions keep from ending
    for spec, offers in _machines(goal):
        precision = _precision(goal, spec)
        if precision is None:
            does_not_fit.append(f"{spec.key} (it has no {goal.precision})")
            continue
        by_count: dict[int, Search] = {}
        for offer in offers:
            if offer.gpus not in by_count:
                run = LayoutRun(
                    model=architecture.model,
                    layout=Layout(),
                    gpu=spec,
                    node_gpus=min(GPUS_PER_NODE, offer.gpus),
                    seq_len=seq_len,
                    micro_batch=1,
                    micro_batches=1,
                    precision=precision,
                    software=software.name,
                )
                if goal.measured is not None and not by_count:
                    learnt = read_own_runs(goal, run)
                    own_runs |= {spec.key: learnt} if learnt is not None else {}
                by_count[offer.gpus] = search(run, offer.gpus, sequences, own_runs.get(spec.key))
            found = by_count[offer.gpus]
            if found.best is None:
                refused.append((run, offer.gpus))
                uneven = "" if found.tried else f" (the model and {sequences} sequences a step do not divide by it)"
                does_not_fit.append(f"{offer.gpus} x {spec.key}{uneven}")
            else:
                choice, taken = _choice(goal, offer, found, architecture, tokens)
                if taken is None:
                    choices.append(choice)
                    continue
                lost = f"(one machine is taken away every {format_seconds(taken)}: it never ends)"
                does_not_fit.append(f"{offer.gpus} x {spec.key}{' spot' if offer.spot else ''} {lost}")
                endless = "feasible with machines on demand: --spot none, without --interruptions"
    if goal.measured is not None and not own_runs:
        message = f"{goal.measured} has no run of {software.words} on {goal.gpu.replace(',', ', ')}"
        raise AdvisorError(message, "name them as measured: --gpu GPU --software NAME", exit_code=2)
    if not choices:
        named = ", ".join(dict.fromkeys(does_not_fit)) or "any GPU that is rented"
        message = f"{architecture.name} with {sequences} sequences a step surely fits none of: {named}"
        raise AdvisorError(message, endless or _would_fit(goal, refused, sequences, seq_len), exit_code=3)

    return LayoutPlan(
        goal=goal,
        architecture=architecture,
        software=software.words,
        seq_len=seq_len,
        sequences=sequences,
        tokens=tokens,
        choices=tuple(sorted_by_preference(goal, choices)),
        does_not_fit=tuple(dict.fromkeys(does_not_fit)),
        assumed=tuple(assumed),
        own_runs=own_runs,
    )


def _choice(
    goal: Goal, offer: Offer, found: Search, architecture: Architecture, tokens: int
) -> tuple[LayoutChoice, float | None]:
    """Returns the whole run in the best layout on one offer, and the seconds between interruptions if they keep it from
    ending, else None."""
    assert found.best is not None
    run, step = found.best.run, found.best.prediction
    taken = interruptions(goal, spot=offer.spot, gpus=offer.gpus)
    steps = tokens / run.step_tokens
    whole = whole_run(step.step_seconds, steps, offer.gpus, architecture.parameters, taken=taken)
    usd = whole_usd(goal, offer, whole.seconds, step.mfu, datasheet_power(run.gpu.tdp_watts))
    late, dear = Limits.of(goal).broken(whole.seconds, usd)
    keeps = (not late, not dear and (usd is not None or goal.budget_usd is None))
    endless = taken.value if taken is not None and whole.failures_share > _ENDLESS else None
    return LayoutChoice(offer=offer, search=found, whole=whole, usd=usd, keeps=keeps), endless


def _work(goal: Goal, architecture: Architecture) -> tuple[int, int, int, list[str]]:
    """Returns the length of a sequence, the tokens of the run, the sequences of a step, and what was assumed."""
    assumed = [f"--software {SOFTWARE}"] if goal.software is None else []
    seq_len, ratio = goal.seq_len or architecture.seq_len, goal.ratio or TOKENS_PER_PARAMETER
    if goal.seq_len is None:
        assumed.append(f"--seq-len {seq_len}")
    tokens = goal.tokens or round(ratio * architecture.model.active)
    if goal.tokens is None:
        assumed.append(f"--tokens {tokens / 1e9:.0f}B ({ratio:g} for each active parameter)")
    if goal.global_batch_tokens is not None:
        return seq_len, tokens, max(1, round(goal.global_batch_tokens / seq_len)), assumed
    # a multiple of the odd factors of all numbers of GPUs: 768 GPUs divide no power of two
    odd = math.lcm(*(count // (count & -count) for count in goal.counts or (goal.gpus,)))
    sequences = odd * int(2 ** max(0, round(math.log2(step_law_batch(float(tokens)) / seq_len / odd))))
    multiple = "to a power of two" if odd == 1 else f"to a power of two times {odd}, which these GPUs divide"
    return seq_len, tokens, sequences, [*assumed, f"--global-batch {sequences * seq_len} (Step Law, {multiple})"]


def _would_fit(goal: Goal, refused: Sequence[tuple[LayoutRun, int]], sequences: int, seq_len: int) -> str:
    """Returns the options with which a layout surely fits, by the first GPU of those asked for that has any."""
    if not refused:  # none of these GPUs has units for the precision
        others: dict[str, dict[str, Any]] = {"16 bits: --precision auto": {"precision": "auto"}}
        others |= {"GPUs that have it: --gpu any": {"gpu": ANY}} if goal.usd_per_gpu_hour is None else {}
        named = []
        for option, changed in others.items():
            with suppress(AdvisorError):
                plan_layouts(replace(goal, **changed))
                named.append(option)
        return f"would fit: {'; or '.join(named)}"
    for key, run in {one.gpu.key: one for one, _ in refused}.items():
        most = max(gpus for one, gpus in refused if one.gpu.key == key)
        found = list(_changes(run, most, sequences, seq_len))
        if found:
            return f"would fit: {'; or '.join(f'{words}: --gpu {key} {options}' for words, options in found)}"
    return f"not up to {_COUNTS[-1]:,} of these GPUs either: a smaller --model, or GPUs with more memory"


def _changes(run: LayoutRun, most: int, sequences: int, seq_len: int) -> Iterator[tuple[str, str]]:
    """Yields changes, in words and as options, with which a layout of the run surely fits; each was searched."""

    def fits(gpus: int, of: int = sequences, length: int = seq_len) -> bool:
        asked = replace(run, node_gpus=min(GPUS_PER_NODE, gpus), seq_len=length)
        return search(asked, gpus, of).best is not None

    count = next((count for count in _COUNTS if count > most and fits(count)), None)
    if count is not None:
        yield "more GPUs", f"--gpus {count}"
    even = math.ceil(sequences / most) * most
    if even != sequences and fits(most, even):
        yield f"a batch that {most} GPUs divide", f"--gpus {most} --global-batch {even * seq_len}"
    lengths = [seq_len >> halved for halved in range(1, seq_len.bit_length()) if seq_len >> halved >= _SHORT]
    shorter = next((length for length in lengths if fits(most, sequences * seq_len // length, length)), None)
    if shorter is not None:
        yield "shorter sequences", f"--gpus {most} --seq-len {shorter}"


def _machines(goal: Goal) -> Iterator[tuple[GpuSpec, Sequence[Offer]]]:
    """Yields each GPU that the goal allows and that layouts can be planned for, with its offers."""
    prices, today, cards = rows_by_gpu(), datetime.date.today(), load_gpus()
    keys = (
        [key for key, spec in cards.items() if _joined(spec, ("nvlink", "xgmi"))]
        if goal.gpu == ANY
        else goal.gpu.split(",")
    )
    for key in keys:
        if not _joined(cards[key]):
            hint = "GPUs joined by NVLink or PCIe: --gpu h100"
            raise AdvisorError(f"nothing is known of what joins GPUs of the kind {key}", hint, exit_code=2)
        counts = goal.counts or (goal.gpus,)
        yield (
            cards[key].with_network(goal.network_bytes_per_second),
            [
                offer
                for count in counts
                for offer in offers_for(goal, key, count, prices, today)
                or [unpriced(key, count, goal.providers, prices)]
            ],
        )


def _precision(goal: Goal, spec: GpuSpec) -> str | None:
    """Returns the number format of the products on a GPU, or None if the GPU has no units for the goal's."""
    if goal.precision == "auto":
        return "bf16" if spec.bf16_flops else "fp16"
    rates = {"bf16": spec.bf16_flops, "fp16": spec.fp16_flops, "fp8": spec.fp8_flops}
    return goal.precision if rates[goal.precision] else None


def _joined(spec: GpuSpec, kinds: Sequence[str] = ()) -> bool:
    """Tells whether layouts can be planned on a GPU. If all GPUs are allowed, only those with a fast link qualify."""
    link = read_link(spec.interconnect)
    fast = link is not None and (not kinds or link.kind in kinds)
    return spec.is_cuda and fast and bool(spec.bf16_flops or spec.fp16_flops)
