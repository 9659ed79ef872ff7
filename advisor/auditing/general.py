"""What is told in general of techniques, laws and comparisons, and what a definition or a publication says of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from advisor.auditing.verdict import Judgement, Question, does_not_follow, holds, unknown, wrong
from advisor.units import format_percent

_CLEARLY = 2.0  # standard errors of a difference


@dataclass(frozen=True, kw_only=True)
class Told:
    """What is so instead, where that is from, and whether the claim is false or only does not follow."""

    so: str
    source: str
    false: bool = True
    consequence: str = ""
    actions: tuple[str, ...] = ()


GENERAL: dict[str, Told] = {
    "attention_flops": Told(
        so="the products are the same, and some are done again in the backward pass; what falls is memory and its "
        "traffic",
        source="Dao et al. 2022, FlashAttention: exact attention, O(N²) FLOPs, O(N) memory",
    ),
    "attention_approximates": Told(
        so="it is exact attention, reckoned tile by tile: only roundings differ",
        source="Dao et al. 2022, FlashAttention",
    ),
    "attention_linear": Told(
        so="its products grow with the square of the length, for each token with the length",
        source="Vaswani et al. 2017, table 1",
        consequence="long contexts are planned too cheap",
    ),
    "zero_stage_shards_weights": Told(
        so="stage 1 shards the optimizer's states, stage 2 the gradients too; only stage 3 shards the weights",
        source="Rajbhandari et al. 2020, ZeRO",
        consequence="a model is planned on cards that cannot hold its weights",
    ),
    "ddp_shards": Told(
        so="each process holds all weights, gradients and optimizer states; only the data are divided",
        source="PyTorch documentation of DistributedDataParallel",
        consequence="a model is planned on cards that cannot hold it",
    ),
    "fsdp_replicates": Told(
        so="each rank holds its share, and gathers a layer's weights while it computes with them",
        source="PyTorch documentation of FullyShardedDataParallel",
    ),
    "bf16_needs_scaling": Told(
        so="bf16 has the range of fp32: nothing underflows that would not there", source="8 exponent bits against 5"
    ),
    "bf16_overflows": Told(
        so="65,504 is the largest number of fp16; bf16 reaches 3.4e38 as fp32 does", source="8 exponent bits against 5"
    ),
    "parameters_per_token": Told(so="20 tokens for each parameter", source="Hoffmann et al. 2022"),
    "activations_without_batch": Told(
        so="activations are kept for every token of the micro-batch: they grow with it and with the length",
        source="Korthikanti et al. 2022, sequence length × micro-batch × width for each layer",
    ),
    "state_by_batch": Told(
        so="weights, gradients and moments are kept for each parameter: no batch changes them",
        source="Rajbhandari et al. 2020, ZeRO: 16 bytes a parameter with Adam in mixed precision",
    ),
    "memory_by_batch": Told(
        so="only activations shrink with batch and length; weights, gradients and moments stay as they are",
        source="Rajbhandari et al. 2020, ZeRO; Korthikanti et al. 2022",
        false=False,
        consequence="a batch is chosen that does not fit",
    ),
    "half_of_memory": Told(
        so="only activations are halved: with fp32 weights and moments a parameter still takes 16 bytes",
        source="Micikevicius et al. 2018; Rajbhandari et al. 2020, ZeRO, section 3.1",
        false=False,
        consequence="a model is planned on a card that does not hold its state",
    ),
    "fp8_halves_memory": Told(
        so="only what is kept in FP8 halves, copies of weights and some activations: master weights, gradients and "
        "moments keep their 16 and 32 bits",
        source="Micikevicius et al. 2022, FP8 formats; documentation of Transformer Engine",
        consequence="a model is planned on a card that does not hold its state",
    ),
    "fp16_range": Told(
        so="fp16 has 5 bits of exponent, fp32 and bf16 have 8: small gradients vanish without loss scaling",
        source="IEEE 754; Micikevicius et al. 2018, Mixed precision training",
        consequence="gradients below 6e-8 become zero and the training stalls or diverges",
    ),
    "backward_as_forward": Told(
        so="2 FLOPs a parameter and token forward, 4 backward: the gradients of inputs and of weights",
        source="Kaplan et al. 2020, section 2.1",
        consequence="the time of a step is planned a third too short",
    ),
    "batch_without_effect": Told(
        so="a smaller batch has noisier gradients and other steps; only accumulation of the rest keeps it the same",
        source="McCandlish et al. 2018, gradient noise scale",
        consequence="runs of two batch sizes are compared as if they were one",
    ),
    "learnt_from_random": Told(
        so="of tokens drawn at random nothing can be learnt but how often each comes: such a loss ends at "
        "ln(vocabulary), where an untrained model begins",
        source="entropy of a uniform distribution",
        false=False,
    ),
    "host_memory": Told(
        so="workers and pinned buffers are memory of the host, none of the card's",
        source="PyTorch documentation of torch.utils.data",
    ),
    "checkpointing_state": Told(
        so="it drops activations and computes them again; weights, gradients and moments stay",
        source="Chen et al. 2016, sublinear memory",
    ),
    "checkpointing_free": Told(
        so="it runs the forward pass of what it dropped again: up to a third more FLOPs",
        source="Chen et al. 2016, sublinear memory",
    ),
    "compile_quantises": Told(
        so="it generates fused kernels in the formats that the model has",
        source="PyTorch documentation of torch.compile",
    ),
    "adapters_unload": Told(
        so="the frozen weights compute every forward and backward pass: they stay in memory, without gradients"
        " and moments",
        source="Hu et al. 2021, LoRA",
        consequence="memory is planned without its largest part",
    ),
    "compute_of_both": Told(
        so="6·N·D: twice the parameters and twice the tokens are four times the FLOPs", source="Kaplan et al. 2020"
    ),
    "narrow_ids": Told(
        so="16 bits count to 65,535: larger token numbers come out as others", source="2¹⁶ − 1 = 65,535"
    ),
    "cache_in_training": Told(
        so="training reads whole sequences at once and keeps no cache of keys and values beside its activations",
        source="the cache saves work in decoding one token at a time",
    ),
    "accumulation_holds_activations": Told(
        so="each micro-batch runs its backward pass and frees its activations; only the gradients stay",
        source="torch.autograd frees a graph's buffers in its backward pass",
        consequence="memory is looked for where none is used",
    ),
    "accumulation_speeds": Told(
        so="it does the same work in fewer updates: no token is faster for it on one card",
        source="the tokens of an update change, not the tokens per second",
    ),
    "cards_cost_less": Told(
        so="so many more cards for as much less time are the same card-hours, and a little more for communication",
        source="card-hours = cards × hours",
        false=False,
    ),
    "everyone_optimal": Told(
        so="models since are trained far beyond it: Llama 2 7B on 286 tokens a parameter, Llama 3 8B on 1,875",
        source="Touvron et al. 2023; Llama 3 model card",
    ),
    "larger_for_inference": Told(
        so="where serving dominates the bill a smaller model is trained for longer",
        source="Sardana et al. 2023, Beyond Chinchilla-Optimal; Touvron et al. 2023",
    ),
    "rented_against_bought": Told(
        so="a card that is bought is there after these runs: compare by the hours that it will be used",
        source="price ÷ hours of use",
        false=False,
    ),
    "overfitting_denied": Told(
        so="training loss falls while validation loss rises: that is overfitting, and more of it makes it worse",
        source="the definition",
    ),
    "overfitting_without_gap": Told(
        so="both losses are alike: nothing is learnt by heart that does not help on other text",
        source="overfitting is a gap between the two",
        false=False,
    ),
    "flat_without_rate": Told(
        so="at a learning rate of zero no weight moves: a flat loss says nothing of model or data",
        source="an update is the rate times a direction",
        false=False,
    ),
    "two_changes": Told(
        so="two things were changed: either may be the reason",
        source="one comparison, two causes",
        false=False,
        actions=("change one at a time, at equal tokens",),
    ),
    "validated_on_training": Told(
        so="on the data that it was trained on it shows what it remembers",
        source="held-out data are data that training never saw",
        false=False,
        actions=("hold out documents before training",),
    ),
    "validation_far_below_training": Told(
        so="unseen data are not that much easier: they are training data, other data, or are reckoned otherwise",
        source="dropout, and a mean over an epoch, explain a few per cent",
        false=False,
        actions=("evaluate on part of the training data with the same code",),
    ),
    "scales_beyond_all": Told(
        so="each card would do more than one alone: the baseline is slower for another reason, or the batch is another",
        source="at most 100 % where all else is equal",
        false=False,
        actions=("measure one card and all of them with the same micro-batch, data and settings",),
    ),
    "starved_card": Told(
        so="a card that waits for data waits longer if it is faster: the loader sets the speed",
        source="the slower of the two stages",
        false=False,
        actions=("more workers, data prepared beforehand, a faster disk",),
    ),
}


def generality(q: Question) -> Judgement:
    """Judge what is told in general: the table of `GENERAL` says what is so."""
    told = GENERAL[q.get("that")]
    if told.false:
        return wrong(told.so, told.source, consequence=told.consequence, actions=told.actions)
    return does_not_follow(told.so, told.source, consequence=told.consequence, actions=told.actions)


def score_gap(q: Question) -> Judgement:
    """Two shares of right answers to so many questions: a difference is clear from two standard errors on."""
    one, other, items = (q.get(name).middle for name in ("value", "other", "items"))
    if not (0 < one < 1 and 0 < other < 1 and items >= 1):
        return unknown("no two shares of so many questions are stated")
    error = math.sqrt((one * (1 - one) + other * (1 - other)) / items)
    words = f"√(p·(1 − p)/n) of both: {format_percent(error)} with {items:,.0f} questions"
    gap = abs(one - other)
    if gap < _CLEARLY * error:
        return does_not_follow(
            f"{format_percent(gap)} is {gap / error:.1f} standard errors of the difference: chance alone gives as much",
            words,
            actions=("ask more questions, or the same ones of both and compare them one by one",),
        )
    return holds(f"{gap / error:.1f} standard errors", words)
