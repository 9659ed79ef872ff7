"""What a number is of: the quantity that a label, a unit and the words around it name together."""

from __future__ import annotations

import re

from advisor.auditing.paper.figures import Figure

# label → quantity, the first that matches; the dimensions that its number may have (count: a bare number)
_LABELS: tuple[tuple[str, str, frozenset[str]], ...] = tuple(
    (role, pattern, frozenset(dimensions.split()))
    for role, pattern, dimensions in (
        ("other", r"warm-?up|\beval|\bsav(?:e|ing)|checkpoint|interval|\bevery\b|patience|cooldown"
        r"|decay", "count seconds rate usd bytes fraction"),
        ("tokens_per_hour", r"tok(?:en)?s?\b[^|]{0,12}(?:/|per)\s*h", "count rate"),
        ("tokens_per_day", r"tok(?:en)?s?\b[^|]{0,12}(?:/|per)\s*d(?:ay)?\b", "count rate"),
        ("gpu_rate", r"tok(?:en)?s?\s*/?\s*(?:/|per|\s)\s*s(?:ec(?:ond)?)?\s*(?:/|per)\s*(?:gpu|device|card"
        r"|chip)|\bT/s/(?:gpu|device|card)", "count rate"),
        ("rate", r"tok(?:en)?s?\s*(?:/|per)\s*s(?:ec(?:ond)?s?)?\b|tok/?sec|\btps\b|throughput", "count rate"),
        ("step_tokens", r"tok(?:en)?s?\s*(?:/|per)\s*(?:optimi[sz]er )?(?:iter|step|batch|update)|(?:batch"
        r"|step)[^|]{0,20}\(?\btokens\b", "count"),
        ("work_per_token", r"flops?\s*(?:/|per)\s*tok", "work count"),
        ("ratio", r"tok(?:en)?s?\s*(?:/|per|:|to)\s*param|ratio \(?(?:tok|d\s?[:/]\s?n)|\bd\s?/\s?n\b", "times count"),
        ("step_time", r"(?:time|secs?|seconds?|ms|latency|duration)\b[^|]{0,8}(?:/|per)\s*(?:iter|step)"
        r"|(?:iter(?:ation)?|step)[ _-]?(?:time|duration|latency)|(?:ms|s)/(?:it|step)", "seconds count"),
        ("gpu_hours", r"(?:gpu|card|[ahv]\d{3})[- ]?h(?:ou)?rs?\b", "gpu_hours count seconds"),
        ("usd_per_hour", r"(?:\$|usd|price|cost|rate)[^|]{0,24}(?:/|per)\s*\(?(?:gpu[- ]?)?(?:h|hr|hour)\b"
        r"|hourly|\$/h|per[- ]hour", "usd_per_hour usd"),
        ("usd", r"cost|price|\$|usd|budget|bill\b|spend", "usd"),
        ("mfu", r"\bmfu\b|flops? utili[sz]ation|\bhfu\b", "fraction"),
        ("peak", r"peak[^|]{0,12}(?:flop|compute|perf)|(?:hardware|theoretical) peak|peak \(?t", "flops count"),
        ("achieved", r"achieved|model (?:t?flop)|sustained|(?:t|p)flops?\b[^|]{0,8}(?:/s)?", "flops count"),
        ("work", r"^(?:(?:total|training|pre-?training|est(?:imated)?)\.? )*(?:flops?|compute)\b"
        r"(?!\s*(?:/|per|util|s\b))", "work count"),
        ("micro_batch", r"(?:micro|device|local|per[- ](?:gpu|device))[- ]?batch|\bmbs\b"
        r"|batch(?:[ _]size)?[^|]{0,12}per[ _-](?:gpu|device)", "count"),
        ("accumulation", r"grad(?:ient)?[ _-]?acc(?:um(?:ulation)?)?|accum(?:ulation)?[ _](?:steps|iter)"
        r"|\bga\b", "count"),
        ("batch", r"(?:effective|global|total)[ _-]?batch|\bgbs\b", "count"),
        ("sequence", r"seq(?:uence)?[ _-]?len(?:gth)?|context(?:[ _-]?(?:length|window|size))?$|block[ _]size"
        r"|max[_ ]?seq", "count"),
        ("gpus", r"^#?\s?-?\s?(?:n_?)?(?:gpus?|devices|accelerators|cards|world[ _]size)(?: (?:needed|required|used))?$"
        r"|(?:number|num|count)[ _](?:of )?(?:gpus|devices)|#\s?-?gpus|gpu count", "count"),
        ("gpu", r"^(?:gpu|hardware|device|accelerator|card)s?(?: (?:type|model))?$", ""),
        ("steps", r"^(?:(?:total|training|max|num|optimi[sz]er|target)[ _]?)*(?:steps|iter(?:ation)?s|updates)"
        r"(?: needed| in total)?$"
        r"|max_(?:steps|iters)", "count"),
        ("epochs", r"epochs?", "count times"),
        ("parameters", r"model (?:support|capacity)|\bparam(?:eter)?s?\b|model size|^size$|\bn_params", "count"),
        ("optimal_tokens", r"optimal tok|tok[^|]{0,10}optimal|chinchilla", "count"),
        ("dataset", r"dataset[^|]{0,12}tok|unique tok|corpus|tokens available|data(?:set)? size", "count"),
        ("tokens", r"tok(?:en)?s?\b(?!\s*(?:/|per\b))", "count"),
        ("memory", r"\bvram|memory|\bgb\b|\bgib\b", "bytes"),
        ("duration", r"time|duration|hours?|days|wall|elapsed|eta\b|took|length", "seconds count"),
        ("loss", r"loss|nll|cross.?entropy", "count"),
        ("perplexity", r"perplexity|\bppl\b", "count"),
        ("vocabulary", r"vocab", "count"),
        ("width", r"hidden|d_model|embed(?:ding)? (?:dim|size)|n_embd|^width$|model dim", "count"),
        ("layers", r"layers|n_layer|^depth$", "count"),
    )
)  # fmt: skip
_COMPILED = tuple((role, re.compile(pattern, re.IGNORECASE), dimensions) for role, pattern, dimensions in _LABELS)
_TIMED = re.compile(r"^(?:[Gg]rand |[Oo]verall )?[Tt]otal$|time|took|duration|\d\s?[x×]\s?[A-Z]|\d\s?[BM]\b")
_CARD_HOURS = re.compile(r"\b(?:gpu|card|device|[ahbv]\d{2,3})[- ]?(?:hours?|hrs?)\b", re.IGNORECASE)
_UNIT_OF_LABEL = (
    (re.compile(r"\(?\b(?:hours|hrs?|h)\b\)?", re.IGNORECASE), "h"),
    (re.compile(r"\bin days|\(days?\)|\bdays\b", re.IGNORECASE), "days"),
    (re.compile(r"\bmin(?:ute)?s\b|\bin mins", re.IGNORECASE), "min"),
    (re.compile(r"\bms\b|millisec", re.IGNORECASE), "ms"),
    (re.compile(r"\bsec(?:ond)?s?\b|\(s\)|\bs/(?:it|step)", re.IGNORECASE), "s"),
)
# what was not measured or done, and statistics of it
_PROMISED = re.compile(r"\bexpected\b|\btarget\b|\brequired\b|\bmax(?:imum)?\b(?!.*(?:step|iter|seq))"
r"|\bmin(?:imum)?\b(?!\w)|\bbaseline\b|\bprevious\b|"
                       r"\bsaved?\b|\bsavings?\b|\badded\b|\boverhead\b|speed-?up|ratio$|change|\bvs\b"
                       r"|improvement|difference", re.IGNORECASE)  # fmt: skip
# units in a header that are not those of the quantity's usual numbers
_OF_SAMPLES = re.compile(
    r"\b(?:s|samples?|seqs?|sequences?|im(?:a)?ges?|imgs?|examples?)\s*(?:/|per)\s*s(?:ec(?:ond)?)?\b", re.IGNORECASE
)
_PER_CARD = re.compile(r"/s(?:ec)?\s*(?:/|per)\s*(?:gpu|device|card|chip)\b", re.IGNORECASE)
_IN_TOKENS = re.compile(r"\((?:in )?(?:T|tok(?:en)?s?)\)", re.IGNORECASE)
_SCALE_OF_LABEL = re.compile(r"\(\s*(?:in )?(k|m|b|t|thousands?|millions?|billions?|trillions?)\s*\)", re.IGNORECASE)


_FOR_SO_MUCH = re.compile(
    r"(?:/|\bper\b)\s*(?:1?\s?(?:[KMB]|million|billion|thousand)\b|sample|token|image|epoch|step|request|experiment|user)",
    re.IGNORECASE,
)
LEAST_WORK = 1e15  # FLOPs of a training


def role_of(label: str, figure: Figure) -> str | None:
    """The quantity that a label and its number state; None where it is none that is reckoned with.

    What stands in parentheses counts only where the words before them say nothing.
    """
    bare = re.sub(r"\([^)]*\)|@.*$", " ", label).strip(" *:")
    if _PROMISED.search(label):
        return None
    if _CARD_HOURS.search(label) and figure.dimension in ("count", "gpu_hours", "seconds"):
        return "gpu_hours"  # also as the unit in parentheses of a time
    role = _labelled(bare, figure) or (_labelled(label, figure) if bare != label else None) or _by_unit(label, figure)
    if role == "usd" and _FOR_SO_MUCH.search(label):
        return None
    if role == "work" and figure.value < LEAST_WORK:
        return None  # of a token or a step, or in a unit that the title gives
    if role in ("rate", "gpu_rate"):
        per_card = role == "gpu_rate" or _PER_CARD.search(label)
        return None if _OF_SAMPLES.search(label) else "gpu_rate" if per_card else "rate"
    return "step_tokens" if role == "batch" and _IN_TOKENS.search(label) else role


def _labelled(label: str, figure: Figure) -> str | None:
    for role, pattern, dimensions in _COMPILED:
        if pattern.search(label):
            if figure.dimension in dimensions:
                return role
            if role in ("rate", "usd", "duration", "steps", "tokens", "peak", "achieved", "gpu"):
                break
    return None


def _by_unit(label: str, figure: Figure) -> str | None:
    """What a unit says alone."""
    if figure.dimension == "rate":
        return "rate"
    if figure.dimension == "gpu_hours":
        return "gpu_hours"
    if figure.dimension == "usd_per_hour":
        return "usd_per_hour"
    if figure.dimension == "count" and re.match(r"(?:training |total |unique )?tokens\b", figure.noun):
        return "tokens"
    if figure.dimension == "count" and re.match(r"param", figure.noun):
        return "parameters"
    if figure.dimension == "count" and re.match(
        r"(?:total |training |optimi[sz]er )?(?:steps|iterations|iters)\b", figure.noun
    ):
        return "steps"
    return "duration" if figure.dimension == "seconds" and _TIMED.search(label) else None


def unit_of_label(role: str, label: str) -> str:
    """The unit that a column's header gives to its bare numbers, in words of `quantity`; "" where it gives none."""
    if role in ("duration", "step_time"):
        return next((unit for pattern, unit in _UNIT_OF_LABEL if pattern.search(label)), "")
    if role in ("rate", "gpu_rate"):
        return "tok/s"
    if role == "work":
        return "FLOP"
    if role == "gpu_hours":
        return "GPU-h"
    if role in ("tokens_per_hour", "tokens_per_day"):
        return "tok/h" if role == "tokens_per_hour" else "tok/d"
    if role in ("peak", "achieved"):
        return "PFLOP/s" if re.search(r"\bP(?:etaflop|FLOP)", label) else "TFLOP/s"
    if role in ("tokens", "parameters", "optimal_tokens", "dataset") and (scale := _SCALE_OF_LABEL.search(label)):
        return (
            {"k": "k", "t": "k", "m": "M", "b": "billion"}.get(scale[1][0].lower(), "")
            if scale[1].lower() != "t"
            else "T"
        )
    return ""
