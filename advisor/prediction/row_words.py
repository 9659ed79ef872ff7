"""What the words of a published table mean: parallelism, precision, optimizer, checkpointing, attention, software.

Every reader answers with the one thing a cell can mean, or with a Refusal that says why it cannot be used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from advisor.prediction.software import USUAL_STATE, Named, software_in
from advisor.records import Software
from trainer.schema import ModelShape

# A cell that opens like this says no more than an empty one; "normal" attention may be any.
_UNSTATED = re.compile(
    r"(?:unknown|unstated|unspecified|n/?a|not (?:stated|given|known|reported|specified|disclosed))(?![a-z])|[?–—-]$"
)
_YES = re.compile(r"(?:y|yes|true|on|enabled?)(?![a-z])|1$")
_NO = re.compile(r"(?:n|no|none|non|not|false|off|disabled?|without|w/o)(?![a-z])|0$")


def _denied(names: str) -> re.Pattern[str]:
    """Where one of these names is said not to be: "no X", "not X/Y", "w/o X", "X off", "X=False", "X: no"."""
    return re.compile(
        rf"\b(?:no|not|non|without|w/o)[ -]+(?:an? |any |the |using )?(?:{names})\b(?:(?:/| or | nor )(?:{names})\b)*"
        rf"|\b(?:{names})\b[ (:=-]*(?:(?:is |was )?(?:off|false|disabled?|unused|unsupported|failed|none)"
        rf"|not (?:used|enabled|supported))\b|\b(?:{names})\b ?[:=] ?(?:0|no?)\b",
        re.IGNORECASE,
    )


_OTHER_ARCHITECTURES = (
    (r"\bbert\b|roberta|electra|masked.lm|mlm head", "an encoder, not a decoder-only language model"),
    (r"transformer-?xl|adaptive softmax", "a Transformer-XL, with memory in its attention and an adaptive softmax"),
    (
        r"\bt5\b|encoder-decoder|\bvision\b|\bvit\b|diffusion|resnet|mamba|rwkv|deltanet|linear attention",
        "not a decoder-only transformer",
    ),
    (r"\bmoe\b|mixtral|\bexperts?\b|deepseek.?v[23]|gpt.?oss|\d+b.a\d+b", "a mixture of experts"),
    (r"document mask", "attention over documents of unstated length"),
    (r"\bunpacked\b|real lengths vary|without packing", "sequences of varying length"),
    (r"forward (pass )?only|inference only", "no training"),
)
_NOT_THAT_ARCHITECTURE = _denied(
    r"bert|encoder(?:-decoder)?|t5|vision|vit|diffusion|mamba|moe|mixture of experts|experts?|q?lora|document mask\w*"
)
_ADAPTERS = r"lora|\bdora\b|\bpeft\b|adapter|galore|prefix.?tuning|prompt.?tuning|\bia3\b"
# "TP8", "tp=8", "DP8xTP8", "tensor_parallel_size 8", "8-way tensor parallelism": a bare name means some, a degree of 1
# none. "model" is what several tools call tensor parallelism.
_OTHER_PARALLELISM = {
    kind: re.compile(
        rf"(?:(?<![a-z])(?:(?<=\d)x)?{short}(?![a-z])|{kind}[ _-](?:model[ _-])?parallel(?:ism)?)"
        r"(?:[ _-](?:size|degree))?[ =:_-]*(\d*)"
    )
    for kind, short in (
        *(("tensor", "x?tp"), ("pipeline", "x?pp"), ("context", "x?cp"), ("expert", "x?ep"), ("sequence", "x?sp")),
        ("model", "x?mp"),
    )
}
_OTHER_SCHEMES = (
    (r"\bpipeline(?![ _-](?:model[ _-])?parallel)|1f1b|gpipe|zero.?bubble|dual.?pipe", "pipeline parallel"),
    (r"ulysses|ring.?attention", "context parallel"),
    (r"\b[345]-?d\b", "several kinds of parallelism"),
    (r"\bmodel ?\+|layout not stated", "parallelism that is not stated"),
    (r"\btensor(?![ _-](?:model[ _-])?parallel)", "tensor parallel"),
)
_NEGATED = _denied(
    r"(?:[a-z]+[ -])?(?:parallel(?:ism)?|offload(?:ing)?)|tensor|pipeline|context|sequence|expert|model"
    r"|[tpcesm]p(?![ =:_-]*\d)|fsdp\d?|hsdp|(?:deepspeed )?zero(?:[ _-]*(?:stage)?[ _-]*\d)?|deepspeed"
    r"|(?:sharded|distributed)(?: optimizer)?|sharding|q?lora|adapters?|peft"
)
_ALL_OF_ONE = re.compile(r"\b[dtpcesm]p(?: ?[=/] ?[dtpcesm]p)+ ?[=:]? ?1\b")  # "TP=PP=1", "TP/PP 1"
_STAGE = r"zero[ _-]?(?:stage)?[ _=:-]*|stage[ _=:-]*"
# "amp", "mixed" and autocast keep fp32 weights; "true" is Lightning's name for a model all in 16 bits, as "pure" is
# torchtune's. Composer's "MP PURE" (and DEFAULT) is a mode of FSDP, whose shards stay fp32.
_AUTOCAST = re.compile(r"amp|autocast|mixed|\bmp (?:pure|default)")
_ALL_16_BITS = re.compile(r"pure|\btrue\b|(?:weights|params) (?:in )?(?:bf16|fp16)|(?:bf16|fp16) (?:weights|param)")
_MASTER = re.compile(r"master|main (?:params|weights|grad)|fp32 grad")


@dataclass(frozen=True)
class Refusal:
    """Why one part of a row cannot be used."""

    reason: str


@dataclass(frozen=True)
class Open:
    """One part of a row that has several answers, each with its weight (they add up to one), and what is assumed."""

    choices: tuple[tuple[Any, float], ...]
    words: str


@dataclass(frozen=True, kw_only=True)
class Precision:
    """What matrix products are computed in."""

    kind: str  # bf16 | fp16 | fp32 | 16bit: whichever of the two 16-bit types the card has units for
    tf32: bool = True  # fp32 on the TF32 units, where there are any
    fp8: bool = False  # products of the blocks in 8-bit floats


def stated(text: str) -> str:
    """A cell's words in lower case, none where it only says that nothing is known."""
    low = text.lower()
    return "" if _UNSTATED.match(low) else low


@lru_cache(maxsize=65536)
def architecture(notes: str) -> str | Refusal:
    """Refuse models whose description says that they are no dense decoder, or that training was of something else."""
    said = _NOT_THAT_ARCHITECTURE.sub(" ", notes)
    for pattern, what in _OTHER_ARCHITECTURES:
        if re.search(pattern, said, re.IGNORECASE):
            return Refusal(f"the notes say this is {what}")
    return notes


def adapters_in(notes: str) -> str:
    """The words with which notes say that adapters were trained, as "QLoRA r=16"; empty where they do not."""
    said = _NOT_THAT_ARCHITECTURE.sub(" ", notes)
    found = re.search(r"(?<!than )(?<!vs )(?<!against )\bq?lora\b(?:[ ,(]*r(?:ank)?[ =]*\d+)?", said, re.IGNORECASE)
    return found[0] if found else ""


@lru_cache(maxsize=4096)
def read_sharding(text: str, optimizer: str = "") -> str | Open | Refusal:
    """What data parallelism splits: "none", "optimizer" (ZeRO-1/2) or "full" (ZeRO-3, FSDP).

    A "distributed" or "sharded" optimizer splits its state and work, whatever the gradients do.
    """
    low = _ALL_OF_ONE.sub(" ", _NEGATED.sub(" ", stated(text)))
    if re.search(_ADAPTERS, low):
        return Refusal(f"adapters ({text}), whose rank and matrices a row does not say: see --lora-rank")
    if re.search(r"offload|infinity", low):
        return Refusal(f"offloading to the host ({text})")
    for kind, pattern in _OTHER_PARALLELISM.items():
        if any(degree != "1" for degree in pattern.findall(low)):
            return Refusal(f"{kind} parallel ({text})")
    for scheme, what in _OTHER_SCHEMES:
        if re.search(scheme, low):
            return Refusal(f"{what} ({text})")
    if re.search(rf"(?:{_STAGE})[12]\b|zero[12]|shard_grad_op|(?:sharded|distributed) optimizer", low):
        return "optimizer"
    if re.search(rf"fsdp(?!0)|hsdp|(?:{_STAGE})3\b|full.shard|fully.shard", low) and "no_shard" not in low:
        return "full"
    if re.search(r"\bzero(?![a-z0-9])|deepspeed", low) and not re.search(rf"(?:{_STAGE})0|\bddp\b", low):
        choices = (("optimizer", 0.5), ("full", 0.5))
        return Open(choices, f"the stage of ZeRO is not stated ({text}): optimizer or everything sharded")
    state = _NEGATED.sub(" ", optimizer.lower())
    return "optimizer" if re.search(r"distributed|\bsharded|\bzero-?[12]?\b", state) else "none"


_NOT_THAT_PRECISION = _denied(
    r"(?:nv|mx)?fp[468]|float8|bf16|bfloat16|fp16|float16|nf4|int[48]|[48].?bit(?: state)?|(?:fp8|fp16) \w+"
)
_NO_TF32 = _denied(r"(?:allow_)?tf32|autocast")
_TF32_UNSTATED = re.compile(r"\btf32[ :=(]*(?:unknown|unstated|not (?:stated|known)|\?)")


@lru_cache(maxsize=4096)
def read_precision(text: str) -> Precision | Open | Refusal:
    """bf16, fp16, fp32 with or without the TF32 units, or 8-bit floats in the blocks; 4-bit floats are refused.

    PyTorch's default leaves TF32 units idle since 1.12, NVIDIA's containers do not: "fp32" alone may mean either.
    """
    low = _TF32_UNSTATED.sub(" ", _NOT_THAT_PRECISION.sub(" ", stated(text)))
    if not low.strip(" (),;"):
        choices = ((Precision(kind="16bit"), 0.8), (Precision(kind="fp32"), 0.2))
        return Open(choices, "the precision is not stated: 16 bits or TF32 taken")
    if re.search(r"fp[46]|nf4|int[48]|\b[48].?bit", low):
        return Refusal(f"precision {text!r}, only fp8, bf16, fp16 and fp32 are modelled")
    if re.search(r"fp8 head", low):  # of the head's product alone, a few per cent of a step
        return Precision(kind="bf16")
    if re.search(r"fp8|float8|e4m3|e5m2", low):
        return Precision(kind="bf16", fp8=True)
    if "bf16" in low or "bfloat16" in low:
        return Precision(kind="bf16")
    if re.search(r"fp16|float16|\bhalf\b|^16(?:-mixed|-true)?$", low):
        return Precision(kind="fp16")
    if not re.search(r"fp32|tf32|float32|^32(?:-true)?$", low):
        return Refusal(f"precision {text!r} is unknown: write bf16, fp16, fp32 or TF32")
    if _NO_TF32.search(low):
        return Precision(kind="fp32", tf32=False)
    if "tf32" in low:
        return Precision(kind="fp32")
    choices = ((Precision(kind="fp32", tf32=False), 0.75), (Precision(kind="fp32"), 0.25))
    return Open(choices, "whether fp32 products use the TF32 units is not stated: both taken")


_NOT_THAT_OPTIMIZER = _denied(
    r"[1248][ -]?b(?:its?)?|paged|galore|(?:cpu[ -])?offload(?:ing|ed)?|muon|adamw?|(?:deepspeed)?cpu-?adam"
)
# of fewer dimensions or on the host: state that is not so many bytes for each weight
_OTHER_STATE = re.compile(r"(?<!\d)[12][ -]?b(?:its?)?\b|galore|cpu.?adam|offload")


@lru_cache(maxsize=4096)
def read_optimizer(text: str) -> str | Refusal:
    """adamw or muon; empty is AdamW, what everyone means without saying. Others take as long as AdamW, but keep less
    (`row_adapters.read_moment_bytes`).
    """
    told = stated(text)
    low = _NOT_THAT_OPTIMIZER.sub(" ", told)
    if _OTHER_STATE.search(low):
        return Refusal(f"optimizer {text!r}, projected and offloaded states are not modelled")
    if "muon" in low:
        return "muon"
    if not told or re.search(r"adam|adafactor|\blion\b|\bsgd\b", low):
        return "adamw"
    return Refusal(f"optimizer {text!r}, only AdamW, Muon, Lion, Adafactor and SGD are modelled")


@lru_cache(maxsize=4096)
def read_checkpointing(text: str, named: Named | None = None, in_part: bool = False) -> str | Open | Refusal:
    """none, selective or full; a bare yes is full, as in every tool that has only a switch.

    Where nobody says it is likely as the software has it; who trains adapters recomputes as often as not.
    """
    low = _NEGATED.sub(" ", stated(text)).strip()
    if not low:
        usual = named.recomputed if named is not None else "none"
        if in_part and usual == "none":
            return Open((("none", 0.5), ("full", 0.5)), "activation checkpointing is not stated: none or full taken")
        other = "none" if usual == "full" else "full"
        return Open(((usual, 0.85), (other, 0.15)), f"activation checkpointing is not stated: likely {usual}")
    if "offload" in low:
        return Refusal(f"activations offloaded to the host ({text})")
    if _NO.match(low):
        return "none"
    if re.search(r"selective|(?:ffn|attention|swiglu|norm)\b.* recompute", low) or re.match(r"sac\b|per.?op\b", low):
        return "selective"
    if _YES.match(low) or re.match(r"full|all\b|unsloth", low):
        return "full"
    return Refusal(f"activation checkpointing {text!r} is unknown: write none, selective or full")


_NOT_THAT_KIND = _denied(
    r"megatron(?:-\w+)?|nemo|hugging ?face|hf|(?:hf )?transformers|trl|accelerate|deepspeed|(?:pytorch )?lightning"
    r"|llm\.c|nanochat|torchtitan|composer|levanter|nanotron"
)


@lru_cache(maxsize=65536)
def read_named(software: str) -> Named | None:
    """The software of profiles/software.csv that a cell names; None: somebody's own loop in PyTorch."""
    return software_in(_NOT_THAT_KIND.sub(" ", software))


_CHUNKED = re.compile(r"chunked (ce|cross|loss)|fused (linear )?(ce\b|cross)|liger|cut.cross|unsloth", re.IGNORECASE)
# kernels of norms, rotary positions and activations that somebody wrote by hand
_FUSED_KERNELS = re.compile(
    r"liger|unsloth|\bapex\b|transformer.?engine|\bte\b|triton|quack|cuda kernels"
    r"|\bfused (?!adam|sgd|attention|soft)\w",
    re.IGNORECASE,
)


_DEEPSPEED = re.compile(r"deepspeed|zero[- ]?[0123]\b", re.IGNORECASE)


@lru_cache(maxsize=65536)
def read_software(precision: str, words: str, parallelism: str = "", named: Named | None = None) -> Software:
    """What a row says of its software: 16-bit state, logits in chunks, fused kernels; else as the software's defaults.

    `words` are its notes and the name of its software.
    """
    usual = named.software if named is not None else Software(state_chance=USUAL_STATE)
    said, chance = _state(precision.lower()), 1.0
    if said != "16bit" and _DEEPSPEED.search(parallelism) and usual.kind == "wrapper":
        said, chance = "copied", 0.9  # its engine goes before what the precision's words name
    return replace(
        usual,
        state=said or usual.state,
        state_chance=chance if said else usual.state_chance,
        whole_logits=usual.whole_logits and not _CHUNKED.search(words),
        fused_kernels=usual.fused_kernels or bool(_FUSED_KERNELS.search(words)),
    )


# kernels that keep no scores in memory; a fused softmax keeps them
_FUSED = re.compile(
    r"flash|\bfa-?[1-4]?\b|sdpa|scaled.dot|cudnn|xformers|\bte\b|transformer.?engine|triton|flex|mem\w*.?eff|cutlass"
    r"|pallas|splash|aiter|\bfused(?! softmax)"
)
_NOT_FUSED = re.compile(r"\bnaive|\bmath\b|\beager|\bunfused|\bvanilla")
_NO_FUSED = _denied(
    r"(?:use_)?flash[\w.-]*(?: attention)?(?: ?\d)?|fa-?[1-4]?|sdpa|xformers|cudnn|fused(?: attention)?|flexattention"
)
_NO_UNFUSED = _denied(r"(?:naive|math|eager|unfused|vanilla)(?: (?:kernel|backend|fallback|attention))?")


@lru_cache(maxsize=4096)
def read_fused_attention(text: str, named: Named | None = None) -> bool | Open:
    """Whether attention is one kernel that keeps no scores in memory; an unknown word says as much as an empty cell."""
    told = _NO_UNFUSED.sub(" fused ", stated(text))
    low = _NO_FUSED.sub(" ", told)  # "SDPA (no flash)" is still fused
    if _NO.match(told) or _NOT_FUSED.search(low):
        return False
    if _YES.match(told) or _FUSED.search(low):
        return True
    if low != told:
        return False
    said = f"attention {text!r} is unknown" if told else "attention is not stated"
    if named is not None and named.kind in ("tuned", "fused", "c"):
        return Open(((True, 1.0),), f"{said}: fused, as in {named.words}")
    return Open(((True, 0.75), (False, 0.25)), f"{said}: likely fused")


def _state(low: str) -> str | None:
    """fp16 came with fp32 master copies (apex, Megatron, DeepSpeed) unless autocast is named; bf16 where it says so.

    None where the words leave it to the software.
    """
    low = _NOT_THAT_PRECISION.sub(" ", low)
    if re.search(r"(?:bf16|fp16) param", low):  # an autocast over such changes nothing
        return "16bit"
    if _ALL_16_BITS.search(low) and not re.search(r"\bmp (?:pure|default)", low):
        return "16bit"
    if _AUTOCAST.search(low) or "fp32 weights" in low:
        return "fp32"
    return "copied" if "fp16" in low or ("bf16" in low and _MASTER.search(low)) else None


# "CUDA 12.1" is a version, "C/CUDA" and "CUDA kernels" are operations fused by hand
_COMPILED = re.compile(
    r"compil|inductor|dynamo|max-?autotune|reduce-?overhead|\bxla\b|\bjit\b|\bc(?:\+\+)?/cuda|cuda kernel|llm\.c"
    r"|\bfused"
)
_NOT_COMPILED = re.compile(r"uncompiled|\beager|\bunfused")
_NO_COMPILING = _denied(r"(?:torch[. ]?|model[. ]?)?compil\w+|(?:torch)?inductor|dynamo|xla|jit|fused")


@lru_cache(maxsize=4096)
def read_compile(text: str, named: Named | None = None) -> bool | Open:
    """Whether operations are fused: by a compiler, or all written by hand.

    An unknown word, like the version of CUDA, says as much as an empty cell: then it is as the software's default.
    """
    told = stated(text)
    if re.fullmatch(r"cuda[ -]*[\d.]*", told):
        told = ""
    low = _NO_COMPILING.sub(" ", told)
    if _NO.match(told) or _NOT_COMPILED.search(low):
        return False
    if _YES.match(told) or _COMPILED.search(low):
        return True
    if low != told:
        return False
    if named is not None and named.kind == "c":
        return True
    said = f"compilation {text!r} is unknown" if told else "compilation is not stated"
    if named is not None:
        how = "compiled" if named.compiled else "eager"
        return Open(((named.compiled, 1.0),), f"{said}: {how}, as {named.words} is by default")
    return Open(((False, 0.6), (True, 0.4)), f"{said}: eager or compiled")


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Attention that sees only so many tokens in some layers."""

    tokens: int | None  # None: `share` of the sequence
    share: float
    short_layers: float  # share of the layers where pattern is empty
    pattern: str  # of S (windowed) and L, repeated over the layers; the last one always sees all

    def attended(self, shape: ModelShape) -> float:
        """Tokens that a query may see, mean over the layers."""
        short = min(shape.seq_len, self.tokens if self.tokens is not None else self.share * shape.seq_len)
        if not self.pattern:
            return self.short_layers * short + (1 - self.short_layers) * shape.seq_len
        kinds = [self.pattern[i % len(self.pattern)] for i in range(shape.depth - 1)] + ["L"]
        return sum(short if kind == "S" else shape.seq_len for kind in kinds) / shape.depth


_WINDOWED = re.compile(
    r"sliding|windowed|long-short|local attention|\bswa\b|attention window|window (?:attention|pattern|size)"
)
_NO_WINDOW = re.compile(
    r"\b(?:no|without|not)\b[ -](?:sliding[ -])?(?:window(?:s|ed)?|swa|local attention)"
    r"|(?:sliding[ _-]window|\bswa)[ =:(]*(?:off|none|null|false|disabled|not used)\b"
)
# windows that a number was averaged over
_TIME = r"(?:steps?|iter\w*|batch(?:es)?|seconds?|minutes?|s|ms|min)\b"
_MEASURED = re.compile(
    r"(?:(?:sliding|rolling|moving|averaging)[ -])?window(?: size)?[ =:]*(?:of |over )?(?:the )?(?:last |past )?"
    rf"\d[\d,]*[ -]?{_TIME}|\d[\d,]*[ -]{_TIME}[ -](?:(?:sliding|rolling|moving|averaging)[ -])?window"
    r"|(?:sliding|rolling|moving)[ -](?:window[ -])?(?:mean|average|median)"
)
_LETTERS = re.compile(  # nanochat's; SL is a sequence length and SSL no attention, unless called a window or a pattern
    r"(?i:window|pattern)(?:s|_pattern| pattern)?[ =:\"'(]*((?=L*S)(?=S*L)[SL]{2,})(?![A-Za-z])"
    r"|(?<![A-Za-z])((?=L*S)(?=S*L)[SL]{2,})[ \"')]+(?i:window|pattern)"
    r"|(?<![A-Za-z])((?!SSL(?![SL]))(?=L*S)(?=S*L)[SL]{3,})(?![A-Za-z])"
)
_SHARE = re.compile(
    r"\b(half|quarter)[ -](?:of )?(?:the |a )?(?:context|window|sequence|short)"
    r"|\b(?:window|context|short)\w*[ =:]*(?:is |are |of |at )?(?:the |a )?(half|quarter)\b(?! precision)"
)
_WINDOW_SIZE = re.compile(
    r"(?:windows?(?: size)?(?: of)?|swa)[ =:]*(\d[\d,]*)(k?)\b"
    r"|\b(\d[\d,]*)(k?)[ -](?:tokens?[ -])?(?:sliding[ -])?window"
)


@lru_cache(maxsize=65536)
def read_windows(flash: str, notes: str) -> Windows | None | Refusal:
    """Windows of attention as the row states them: one size, in every layer or in a stated part of them.

    Known: "sliding window 4096", "1024-token window", "SSSL" (nanochat's pattern), "alternating", "5:1". None where no
    window is mentioned.
    """
    said = f"{flash}; {notes}"
    low = _MEASURED.sub(" ", said.lower())
    pattern = _LETTERS.search(said)
    if _NO_WINDOW.search(low) or not (_WINDOWED.search(low) or pattern):
        return None
    sizes = {int((a or b).replace(",", "")) * (1024 if k or m else 1) for a, k, b, m in _WINDOW_SIZE.findall(low)}
    told = _SHARE.search(low)
    share = None if told is None else 0.5 if "half" in told.groups() else 0.25
    if len(sizes) > 1 or not (sizes or share):
        return Refusal("the notes say this is attention over windows of unstated size")
    ratio = re.search(r"\b(\d+):1\b", low)
    part = 0.5 if re.search(r"alternat|every (?:other|second)", low) else 1.0
    return Windows(
        tokens=sizes.pop() if sizes else None,
        share=share or 1.0,
        short_layers=int(ratio[1]) / (int(ratio[1]) + 1) if ratio else part,
        pattern=next(filter(None, pattern.groups())) if pattern else "",
    )
