"""Words that decide what a number may mean: formats, leaner ways of training, other uses than training."""

from __future__ import annotations

import re

_IN_A_SENTENCE = re.compile(r"\[\^\.((?:[^\]\\]|\\n)*)\]")


def phrase(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """A pattern compiled so that its `[^.;]` goes on over the point of a number: a sentence does not end in 11.2."""
    return re.compile(_IN_A_SENTENCE.sub(r"(?:[^.\1]|\\.(?=\\d))", pattern), flags)


SPARSITY = re.compile(r"(?<!no )(?<!without )(?<!not )\bspars(?:e|ity)|\b2:4\b", re.IGNORECASE)
# training that keeps less on one card than weights, gradients and moments
LEANER = re.compile(
    r"\bQ?LoRA\b|\bPEFT\b|adapter|quanti[sz]|\b[48]-?bit|\bNF4\b|\bINT[48]\b|offload|ZeRO|FSDP|shard"
    r"|tensor.?parallel|pipeline.?parallel"
    r"|\bTP\b|model.?parallel|deepspeed|frozen|GaLore|BAdam|\bwith techniques|unsloth|paged",
    re.IGNORECASE,
)
ADAPTERS = re.compile(r"\bQ?LoRA\b|\bPEFT\b|adapter", re.IGNORECASE)
NOT_TRAINING = re.compile(
    r"\binferenc|\bserv(?:e|ing)\b|\bdeploy|\bgenerat|\bprefill|\bdecod|\bweights? (?:only|alone)"
    r"|\bload(?:ing)?\b|\bchat\b|\bKV\b",
    re.IGNORECASE,
)
TRAINING = re.compile(r"\b(?:pre-?)?train(?:s|ed|ing)?\b|\bfull fine-?tun", re.IGNORECASE)
SPARSE_MODEL = re.compile(
    r"\bMoE\b|mixture|\bA\d+(?:\.\d+)?B\b|\d+x\d+B|expert|active param|activated|Mixtral|DeepSeek-?(?:V[23]|R1)|Switch"
    r"|\bKimi\b|\bDBRX\b|\bgpt-oss\b|\bLlama[- ]?4\b|\bGLaM\b|\bGLM-4\.[5-9]"
    # sizes that only mixtures have
    r"|\b(?:671|685|236|235|46\.7)\s?B\b",
    re.IGNORECASE,
)
# more than one card at work
SEVERAL = re.compile(
    r"\bGPUs\b|\bDDP\b|\bFSDP\b|distributed|multi-?GPU|multi-?node|\bnodes\b|cluster|world.?size|nproc"
    r"|\b(?:[2-9]|\d\d+)\s?[x×]\s?(?:NVIDIA )?[A-Z]{1,3}\d{2,4}",
    re.IGNORECASE,
)
_PRECISIONS = (
    ("fp8", r"\bfp8\b|\be4m3|float8"),
    ("bf16", r"\bbf16|bfloat16"),
    ("fp16", r"\bfp16|float16|half.precision|\b16-bit"),
    ("tf32", r"\btf32|\btensor ?float[- ]?32"),
    ("fp32", r"\bfp32|(?<!tensor )float[- ]?32|single.precision"),
)


def precision_of(text: str) -> str | None:
    """The number format that a text names; of 16-bit formats bf16 first, None where none or FP4 is named."""
    if re.search(r"\b(?:nv|mx)?fp4\b|\bint[48]\b|\btops\b", text, re.IGNORECASE):
        return None
    return next((name for name, pattern in _PRECISIONS if re.search(pattern, text, re.IGNORECASE)), None)
