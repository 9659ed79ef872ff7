"""What a text tells in general of techniques, laws and comparisons, by its words; `general` says what is so instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from advisor.audit.paper.document import Document, Passage
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.figures import figures
from advisor.audit.paper.words import phrase

_CHECKPOINTING = r"\b(?:gradient|activation)[- ]checkpointing\b"
_LESS = r"\b(?:reduc\w+|lower\w*|cuts?|decreas\w+|shrinks?|halv\w+|fewer|less|sav(?:es?|ing))\b"
_OF_STATE = (
    r"\b(?:optimi[sz]er (?:states?|memory)|Adam\w*(?:'s)? (?:\w+ )?(?:moments?|states?|buffers?|memory)|moment buffers"
    r"|gradient memory|memory (?:of|for) (?:the )?(?:weights|optimi[sz]er|gradients))"
)
_SHOWS = r"\b(?:proves?|proving|shows?|showing|means?|demonstrates?|evidence|therefore|thus|hence|so)\b"


@dataclass(frozen=True, kw_only=True)
class _Saying:
    """Words that tell a thing; `unless` words that make it another one, `negated`: a denial is part of the words."""

    that: str
    words: re.Pattern[str]
    unless: re.Pattern[str] | None = None
    negated: bool = False


def _say(that: str, words: str, unless: str = "", negated: bool = False) -> _Saying:
    return _Saying(
        that=that,
        words=phrase(words, re.IGNORECASE),
        unless=phrase(unless, re.IGNORECASE) if unless else None,
        negated=negated,
    )


_SAYINGS = (
    _say(
        "attention_flops",
        rf"\bflash[- ]?attention\b[^.;]{{0,60}}{_LESS}[^.;]{{0,30}}"
        r"\b(?:FLOPs?|floating[- ]point|comput\w+ complexity|time complexity|arithmetic)\b"
        r"|\bflash[- ]?attention\b[^.;]{0,40}\blinear (?:time|compute)\b",
    ),
    _say(
        "attention_approximates",
        r"\bflash[- ]?attention\b[^.;]{0,60}\b(?:approximat\w+|low[- ]rank|inexact|lossy)\b",
        r"\bexact\b",
    ),
    _say(
        "attention_linear",
        r"\b(?:self-)?attention(?:'s)?\b[^.;]{0,40}\b(?:costs?|compute|FLOPs|complexity|scores?)\b[^.;]{0,30}"
        r"\b(?:grows?|scales?|increases?|is)\b[^.;]{0,10}\blinear(?:ly)?\b[^.;]{0,20}\b(?:sequence|context|length)\b"
        r"|\b(?:costs?|compute|FLOPs|complexity) of [^.;]{0,15}\battention (?:grows?|scales?|increases?"
        r"|is)\b[^.;]{0,10}"
        r"\blinear(?:ly)?\b[^.;]{0,20}\b(?:sequence|context|length)\b",
        r"\blinear attention\b|\bmemory\b|\b(?:per|each|every) (?:new )?token\b|flash|window|sparse|mamba|cache",
    ),
    _say(
        "zero_stage_shards_weights",
        r"\b(?:ZeRO[- ]?|ZeRO[- ]stage[- ]?|stage )[12]\b(?![^.;]{0,40}\b(?:stage|ZeRO)[- ]?3)[^.;]{0,30}"
        r"\b(?:shards?|partitions?|splits?|distributes?)\b(?![^.;]{0,40}\b(?:state|optimi[sz]er))[^.;]{0,25}"
        r"\b(?:parameters|weights|model)\b"
        r"|\bZeRO[- ]?(?:stage[- ]?)?[12]\b\s(?:\w+\s){0,2}(?:shards?|partitions?|splits?)\s(?:the |all )?(?:model )?"
        r"(?:parameters|weights)\b",
    ),
    _say(
        "ddp_shards",
        r"\b(?:DDP|DistributedDataParallel)\b\s(?:\w+\s){0,3}(?:shards?|partitions?|splits?)\s(?:the |its )?"
        r"(?:model|weights|parameters|optimi[sz]er)\b",
    ),
    _say(
        "fsdp_replicates",
        r"\b(?:FSDP|ZeRO[- ]?(?:stage[- ]?)?3)\b[^.;]{0,30}\b(?:keeps?|replicates?|holds?|stores?)\b[^.;]{0,20}"
        r"\b(?:full|whole|entire|complete|all)\b[^.;]{0,25}\b(?:copy|replica|model|parameters|weights)\b[^.;]{0,20}"
        r"\b(?:each|every) (?:GPU|rank|card|device)",
    ),
    _say(
        "bf16_needs_scaling",
        r"\b(?:bf16|bfloat16)\b(?![^.;]{0,60}\b(?:fp16|float16|unlike)\b)[^.;]{0,50}"
        r"\b(?:needs?|requires?|must use)\b[^.;]{0,20}\b(?:loss scaling|GradScaler|gradient scal\w+)",
    ),
    _say(
        "bf16_overflows",
        r"\b(?:bf16|bfloat16)\b[^.;]{0,20}\b(?:tops? out|max\w*|overflows?|range)\b[^.;]{0,20}\b65[,.]?(?:504"
        r"|5\d\d|k\b)",
        r"\bfp16\b[^.;]{0,10}\b65",
    ),
    _say("parameters_per_token", r"\b(?:20|twenty) parameters (?:per|for (?:each|every)) (?:training )?token\b"),
    _say(
        "activations_without_batch",
        r"\bactivation(?:s| memory)?\b[^.;]{0,40}\b(?:(?:is|are) (?:independent of|unaffected by)|(?:does|do) not"
        r" (?:depend on|grow with|scale with|change with)|stays? (?:constant|the same)"
        r"|(?:the )?same for any)\b[^.;]{0,30}"
        r"\b(?:batch|sequence|context)"
        r"|\b(?:micro-?)?batch\b[^.;]{0,70}\b(?:memory (?:for|of) )?activations? (?:memory )?(?:stays?|remains?)"
        r" (?:the same|unchanged|constant)",
        r"checkpointing|accumulat|recomput",
        negated=True,
    ),
    _say(
        "state_by_batch",
        r"\b(?:halv\w+|doubl\w+|increas\w+|reduc\w+|lower\w+|larger|smaller|bigger"
        r"|quadrupl\w+) (?:the )?(?:micro-?)?batch"
        r"\b[^.;]{0,50}\b(?:halv\w+|doubl\w+|reduc\w+|increas\w+|shrinks?|grows?|cuts?|lowers?)\b[^.;]{0,30}"
        + _OF_STATE,
    ),
    _say(
        "memory_by_batch",
        r"\b(?:batch|sequence|context)[- _](?:size|length)\b[^;]{0,40}\b(?:reduc\w+|cuts?|lowers?"
        r"|sav\w+)\b (?:GPU |total |the )*"
        r"memory (?:usage |use )?by (?:a factor of )?(?:\d+(?:\.\d+)?\s?[x×]|half|\d+ times)",
        r"activation|\bKV\b|cache|infer|\babout\b",
    ),
    _say(
        "half_of_memory",
        r"\b(?:mixed[- ]precision|AMP|fp16 ?= ?True|bf16 ?= ?True)\b[^;]{0,60}"
        r"(?:\b(?:(?:50|~50)\s?%|half(?: of)?|2x|halv\w+)(?: (?:the|less|lower|GPU))* memory\b"
        r"|\bmemory (?:usage |use |footprint |consumption |requirements? )?(?:by (?:about |around |roughly |up to )?)?"
        r"(?:~|≈)?(?:50\s?%|in half|half\b))",
        r"activation|infer|quanti|model size|\bweights?\b|8-bit|4-bit",
    ),
    _say(
        "fp8_halves_memory",
        r"\bfp8\b(?=[^.;]*\b(?:pre-?)?(?:train|fine-?tun)\w*)[^.;]{0,50}\b(?:half|halv\w+|50\s?%|2x less|twice less)\b"
        r"[^.;]{0,20}\b(?:memory|VRAM)\b",
        r"\bweights?\b|activation|infer|\bserv|quanti|cache|tensors?\b|bandwidth|storage|traffic"
        r"|per (?:value|param|element)|communicat",
    ),
    _say(
        "fp16_range",
        r"\b(?:fp16|float16)\b(?:(?!\bnot\b|n't|\bunlike\b|\bbf16\b)[^.;]){0,30}\b(?:same|identical)\b[^.;]{0,20}\brange\b"
        r"[^.;]{0,15}\b(?:fp32|float32|bf16|bfloat16)\b(?:[^.;]*\bno (?:loss|gradient) scaling)?",
        negated=True,
    ),
    _say(
        "backward_as_forward",
        r"\b(?:forward and (?:the )?backward|backward and (?:the )?forward)\b[^.;]{0,15}\b(?:costs?|takes?|needs?"
        r"|requires?|uses?|have|has)\b[^.;]{0,20}\b(?:same|equal|identical)\b[^.;]{0,20}\b(?:FLOPs?|operations|compute)\b"
        r"|\bbackward(?: pass)? (?:costs?|takes?|needs?|requires?|has) (?:about |roughly |exactly )?"
        r"(?:the same (?:number|amount) of|as many|as much) (?:FLOPs?|operations|compute) as (?:the )?forward",
        r"LoRA|adapter|frozen|freez|checkpoint|recomput|\b(?:both|all|every|either) (?:card|GPU|model|run|method)"
        r"|\bthan\b|regardless|whether",
    ),
    _say(
        "batch_without_effect",
        r"\b(?:reduc\w+|lower\w*|halv\w+|decreas\w+|shrink\w*|cut\w*)\b[^.;]{0,15}\bbatch(?:[- ]size)?\b[^.]{0,40}"
        r"\b(?:results?|final loss|outcome|loss curves?)\b[^.;]{0,15}\b(?:identical|the same|unchanged)\b",
        r"accumulat|micro|learning rate|\bLR\b|seconds|throughput|memory (?:is|stays)",
    ),
    _say(
        "learnt_from_random",
        r"\brandom (?:tokens?|token ids|data|inputs?)\b[^.]{0,60}\bloss\b[^.]{0,60}"
        rf"{_SHOWS}[^.;]{{0,40}}\b(?:learn\w*|training works|converge\w*)\b",
        r"memori[sz]|overfit|\b(?:same|one|single|fixed) batch|label",
    ),
    _say(
        "host_memory",
        r"\b(?:dataloader_)?(?:pin_memory|num_workers)\b[^;]{0,40}\b(?:sav\w+|reduc\w+|less|lower)\b",
        r"\bhost\b|\bCPU\b|\bRAM\b|speed|time|overhead",
    ),
    _say(
        "checkpointing_state",
        rf"{_CHECKPOINTING}[^.;]{{0,25}}{_LESS}(?:(?!activation)[^.;]){{0,25}}\b(?:optimi[sz]er|Adam|gradients?|weights?)\b",
        r"\bLoRA|ZeRO|offload",
    ),
    _say(
        "checkpointing_free",
        rf"{_CHECKPOINTING}[^.;]{{0,80}}\b(?:adds? (?:no|zero) (?:extra |additional )?(?:compute|cost|time"
        rf"|overhead|FLOPs)"
        r"|(?:has|with) (?:no|zero) (?:compute |speed |time )?(?:cost|overhead|penalty|slowdown)"
        r"|at no (?:extra |compute |speed )?cost|without (?:any )?(?:slowdown|slowing|(?:speed|compute"
        r"|performance|time)"
        r" (?:cost|penalty|loss|overhead))|for free)\b",
        negated=True,
    ),
    _say(
        "compile_quantises",
        r"\btorch\.compile\b[^.;]{0,60}\b(?:converts?|quanti[sz]es|casts?|turns?)\b[^.;]{0,30}"
        r"\b(?:int8|8-bit|4-bit|fp16|bf16|fp8|lower precision)\b",
    ),
    _say(
        "adapters_unload",
        r"\bLoRA\b[^.;]{0,60}\b(?:frozen|base)\b[^.;]{0,40}\b(?:no longer|not|n't|never)\b[^.;]{0,25}"
        r"\b(?:in (?:GPU )?memory|loaded|in VRAM|stored)\b"
        r"|\bLoRA\b[^.;]{0,60}\bonly the (?:small |tiny )?adapter\w*[^.;]{0,20}\b(?:are|is|needs?|have|has)"
        r"(?: to be)? (?:loaded|kept in|in (?:GPU )?memory|in VRAM)",
        negated=True,
    ),
    _say(
        "compute_of_both",
        r"\bdoubl\w+ (?:both )?(?:the )?(?:parameters?|parameter count|model(?: size)?|N)\b[^.;]{0,20}"
        r"\b(?:and|plus)\b[^.;]{0,30}\b(?:tokens?|data|D)\b[^.;]{0,80}"
        r"(?:\bdoubles\b|\b(?:factor of|goes up|costs?) (?:two|2)\b|\btwice (?:the|as)\b|\b(?:2|two)[- ]?(?:x|×"
        r"|times|fold)\b)",
        r"\bloss\b|\bfour\b|\bquadrupl",
    ),
    _say(
        "cache_in_training",
        r"\bKV[- ]?cache\b[^.;]{0,30}\b(?:during|for|in|while) (?:training|fine-?tuning|pre-?training)\b"
        r"|\b(?:training|fine-?tuning) (?:memory|VRAM)\b[^.;]{0,60}\bKV[- ]?cache\b",
        r"inferenc|generat|rollout|serv|GRPO|PPO|\bRL\b|disabl|use_cache|eval|off\b",
    ),
    _say(
        "accumulation_holds_activations",
        r"\bgradient accumulation\b[^.;]{0,40}\b(?:increases?|multiplies|needs more|requires more"
        r"|uses more)\b[^.;]{0,20}"
        r"\b(?:activation|GPU|peak) memory\b",
        r"buffer",
    ),
    _say(
        "accumulation_speeds",
        r"\bgradient accumulation\b[^.;]{0,30}\b(?:speeds? up|accelerates?|makes? (?:training|it) faster"
        r"|trains? faster)\b",
        r"DDP|communicat|sync|all-?reduce|nodes?\b|GPUs|offload",
    ),
    _say(
        "cards_cost_less",
        r"\b(?:doubl\w+|(?:twice|two times|4x|2x) (?:as many|the)) (?:the )?(?:number of )?(?:GPUs|cards)\b[^.;]{0,30}"
        r"\b(?:halves|cuts|reduces|lowers)\b[^.;]{0,15}\b(?:total |overall )?(?:cost|bill|GPU[- ]hours)\b",
    ),
    _say(
        "everyone_optimal",
        r"\b(?:every(?:one|body)|every lab|all (?:modern |recent |major )?(?:labs|models|LLMs)|most (?:modern|recent)"
        r" (?:LLMs|models))\b[^.;]{0,30}\b(?:trains?|trained|follows?)\b[^.;]{0,25}\b(?:Chinchilla|compute)[- ]optimal",
    ),
    _say(
        "larger_for_inference",
        r"\b(?:inference|serving|deployment|production)\b[^.;]{0,80}\b(?:larger|bigger) models?\b[^.;]{0,15}"
        r"\b(?:less|fewer|shorter)\b[^.;]{0,12}\b(?:train\w*|tokens|data)",
    ),
    _say(
        "rented_against_bought",
        r"\b\d+(?:\.\d+)?\s?% (?:cheaper|less(?: expensive)?) than (?:buying|purchasing|owning)\b",
        r"/\s?h|per hour|hourly|utili[sz]",
    ),
    _say(
        "overfitting_denied",
        r"\btrain\w* loss (?:fell|falls|drop\w*|decreas\w+|went down|keeps? (?:falling|dropping))\b[^;]{0,50}"
        r"\bval\w* loss (?:climb\w*|r[io]se\w*|increas\w+|went up|grew|goes up)\b[^;]{0,60}"
        r"\b(?:underfit\w*|train (?:it )?(?:for )?longer|generali[sz]es? well|healthy)\b",
        r"\boverfit",
    ),
    _say(
        "flat_without_rate",
        r"\b(?:learning rate|LR)\b[^.;]{0,40}\b(?:reached|is|was|hit|decayed to"
        r"|at)\s(?:already )?(?:reached )?(?:zero|0)\b"
        rf"[^.;]{{0,40}}{_SHOWS}[^;]{{0,60}}\b(?:capacity|converged|plateau\w*|saturat\w+|limit|optimum|minimum)",
    ),
    _say(
        "two_changes",
        r"\balso\b[^.;]{0,30}\b(?:more|twice|double|times as many|larger|longer)\b[^.;]{0,20}"
        rf"\b(?:tokens|data|parameters|compute|steps|batch)\b[^.]{{0,40}}{_SHOWS}[^.;]{{0,60}}\b(?:better|superior|works)\b",
    ),
    _say(
        "validated_on_training",
        r"\bval\w*\b[^;]{0,40}\b(?:same|identical|copy of|subset of|taken from|sampled from|byte-for-byte)\b[^.;]{0,30}"
        r"\btrain\w*\b[^;]{0,80}\b(?:generali[sz]\w+|unseen|no overfitting)",
    ),
    _say(
        "starved_card",
        r"\b(?:data ?loader|data loading|input pipeline|preprocessing|waiting (?:for|on) data)\b[^.;]{0,60}"
        r"\b(?:bottleneck|starv\w+|idle|waits?|waiting)\b[^;]{0,80}"
        r"\b(?:upgrad\w+|faster (?:GPU|card)|switch\w* to (?:an? )?(?:H[12]00|A100|B200))\b[^;]{0,40}"
        r"\b(?:speed|faster|doubl\w+|halv\w+|fix\w*|solves?)\b",
    ),
)
_DENIED = re.compile(
    r"\bnot\b|n't\b|\bno\b|\bnever\b|\bwithout\b|\bmyth|\bmisconception|\bneither\b|\bunlike\b|\brather than\b"
    r"|\bfalse\b"
    r"|\bwrong\b|\bcontrary\b|\bnothing\b|\bcannot\b|\?",
    re.IGNORECASE,
)
_SHORT = 60  # letters: a bullet that takes its subject from what opens its list
_IDS = re.compile(r"\buint16\b|\b(?:unsigned )?16-bit (?:unsigned )?(?:integer|int)s?\b|\bnp\.uint16\b", re.IGNORECASE)
_FITS = re.compile(r"\b(?:fits?|enough|works?|safe|suffic\w+|can|hold)\b", re.IGNORECASE)
_DENIED_IDS = re.compile(
    r"\bnot\b|n't\b|\bcannot\b|\btoo\b|\boverflow|\bexceed|\bbeyond\b|uint32|int32|\?", re.IGNORECASE
)
_MOST_IN_16_BITS = 65_536
_LOSSES = re.compile(
    r"\b(?P<kind>train|val)\w*(?:ing|idation)? loss\b(?: (?:is|was|of|at))?\s*[:=]?\s*~?(?P<loss>\d+\.\d+)",
    re.IGNORECASE,
)
_OVERFITS = re.compile(
    r"\b(?:is|clearly|strongly|severely|heavily|already|sign of|shows?|indicat\w+) (?:\w+ )?overfit", re.IGNORECASE
)
_NO_GAP = 0.015
_QUESTIONS = re.compile(
    r"\b(\d[\d,]*)[- ](?:question|item|example|sample|prompt|problem)s?\b(?! (?:per|each))", re.IGNORECASE
)
_CONCLUSIVE = re.compile(
    r"\b(?:statistically|significant|conclusive|conclusively|clear(?:ly)?|prov\w+|definitely|undeniabl\w+|certain\w*)\b",
    re.IGNORECASE,
)


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such saying of a sentence or bullet; a sentence that denies or asks tells none of it."""
    lead = ""
    for passage in document.passages:
        text = passage.text
        leads = [words for words in (lead, passage.under) if words and len(text) < _SHORT]
        about = [text, *(f"{words} {text}" for words in leads)]
        for saying in _SAYINGS:
            if any(_says(saying, words) for words in about):
                yield _claim(passage, saying.that)
        if _narrow_ids(text):
            yield _claim(passage, "narrow_ids")
        if _without_gap(text):
            yield _claim(passage, "overfitting_without_gap")
        yield from _small_test(passage)
        if text.endswith(":") or text == (passage.headings or ("",))[-1]:
            lead = text
        elif len(text) >= _SHORT:
            lead = ""


def _claim(passage: Passage, that: str) -> Drafted:
    return Drafted(kind="generality", line=passage.line, text=shortened(passage.text), says={"that": that})


def _says(saying: _Saying, text: str) -> bool:
    match = saying.words.search(text)
    if match is None or (saying.unless and saying.unless.search(text)):
        return False
    rest = text[: match.start()] + text[match.end() :] if saying.negated else text
    return _DENIED.search(rest) is None


def _narrow_ids(text: str) -> bool:
    """As "128,256 tokens fit into uint16"."""
    if not _IDS.search(text) or not _FITS.search(text) or _DENIED_IDS.search(text):
        return False
    sizes = [f.value for f in figures(text) if f.dimension == "count" and re.match(r"vocab|entr|tok|word|id", f.noun)]
    sizes += [float(n.replace(",", "")) for n in re.findall(r"\bvocab\w*(?: size)?(?: of| is|:|=)?\s(\d[\d,]+)", text)]
    return any(_MOST_IN_16_BITS < size < 1e7 for size in sizes)


def _without_gap(text: str) -> bool:
    """As "train loss 2.91, validation loss 2.93: clearly overfitting"."""
    told = {m["kind"].lower(): float(m["loss"]) for m in _LOSSES.finditer(text)}
    if len(told) != 2 or not _OVERFITS.search(text) or _DENIED.search(text) or min(told.values()) <= 0:
        return False
    return told["val"] / told["train"] - 1 < _NO_GAP


def _small_test(passage: Passage) -> Iterator[Drafted]:
    """As "65 % against 62 % on 100 questions is a significant gain"."""
    text = passage.text
    number = _QUESTIONS.search(text)
    shares = [f for f in figures(text) if f.dimension == "fraction"]
    if number and len(shares) == 2 and _CONCLUSIVE.search(text) and not _DENIED.search(text):
        says = {"value": shares[0].quantity.text, "other": shares[1].quantity.text, "items": number[1]}
        yield Drafted(kind="score_gap", line=passage.line, text=shortened(text), says=says)
