"""Claims about step time, throughput, MFU and how configurations compare in speed."""

from __future__ import annotations

from advisor.auditing import signs
from advisor.auditing.budget import SOFTWARE_SPREAD
from advisor.auditing.counts import counts
from advisor.auditing.verdict import Judgement, More, Question, between, compare, does_not_follow, holds, unknown, wrong
from advisor.findings.case import Severity
from advisor.laws.mfu import IMPOSSIBLE_MFU
from advisor.units import format_number, format_percent, format_rate, format_seconds


def throughput(q: Question) -> Judgement:
    """Tokens per second = tokens of a step ÷ seconds of a step."""
    s, seconds = q.setup, q.get("step_time") or q.setup.step_time
    if s.tokens_of_a_step is None or seconds is None:
        return unknown("tokens or seconds of a step are not stated")
    low, high = s.tokens_of_a_step / seconds.high, s.tokens_of_a_step / seconds.low
    words = f"{s.tokens_of_a_step:,} tokens ÷ {seconds.text}"
    return compare(q.get("value"), low, high, show=format_rate, arithmetic=words)


def average_throughput(q: Question) -> Judgement:
    """Average tokens per second = steps done × tokens of a step ÷ elapsed time."""
    s = q.setup
    elapsed, steps = q.get("elapsed") or s.elapsed, q.get("steps").low if q.get("steps") else s.steps_done
    if s.tokens_of_a_step is None or elapsed is None or steps is None:
        return unknown("steps, tokens of a step or elapsed time are not stated")
    tokens = steps * s.tokens_of_a_step
    low, high = tokens / elapsed.most, tokens / elapsed.least
    words = f"{steps:,.0f} × {s.tokens_of_a_step:,} tokens ÷ {elapsed.text}"
    return compare(q.get("value"), low, high, show=format_rate, arithmetic=words)


def step_time(q: Question) -> Judgement:
    """Seconds of a step = tokens of a step ÷ throughput, or elapsed time ÷ steps."""
    s, rate = q.setup, q.get("rate") or q.setup.throughput
    if q.get("elapsed") is not None and q.get("steps") is not None:
        each = q.get("elapsed").middle / q.get("steps").middle
        return compare(
            q.get("value"),
            each,
            show=format_seconds,
            arithmetic=f"{q.get('elapsed').text} ÷ {q.get('steps').text} steps",
        )
    if s.tokens_of_a_step is None or rate is None:
        return unknown("tokens of a step or throughput are not stated")
    low, high = s.tokens_of_a_step / rate.high, s.tokens_of_a_step / rate.low
    return compare(
        q.get("value"), low, high, show=format_seconds, arithmetic=f"{s.tokens_of_a_step:,} tokens ÷ {rate.text}"
    )


def mfu(q: Question) -> Judgement:
    """MFU from exact FLOPs, the throughput and the dense peak; above 80 % of it nothing trains."""
    value, rate = q.get("value"), q.get("rate")
    if value.least > IMPOSSIBLE_MFU:
        return beyond_peak()
    use = signs.utilisation(q.setup, (rate.low, rate.high) if rate else None)
    if use is None:
        return unknown("shape, card or throughput are not stated")
    return compare(
        value,
        use.low,
        use.high,
        show=format_percent,
        arithmetic=use.arithmetic,
        consequence="the wrong peak or FLOP count hides how much of the card is used",
    )


def beyond_peak(so: str = "", arithmetic: str = "") -> Judgement:
    """An MFU that nothing trains at."""
    return wrong(
        f"{so}no training exceeds {format_percent(IMPOSSIBLE_MFU)} of the dense peak",
        arithmetic,
        severity=Severity.ERROR,
        causes=("the sparse peak's half in the denominator", "lookup tables counted as FLOPs", "GPUs not counted"),
    )


def cost_of_flops(q: Question) -> Judgement:
    """Judge "x times slower, proportional to FLOPs": the ratio of exact FLOPs per step of two configurations."""
    s, than = q.setup, q.card.setup(q.get("than"))
    mine, others = counts(s), counts(than)
    if mine is None or others is None or s.seq_len is None or than.seq_len is None:
        return unknown("the shapes that fix the FLOPs are not stated")
    a, b = mine.flops(s.seq_len), others.flops(than.seq_len)
    tokens = (s.tokens_of_a_step or 1) / (than.tokens_of_a_step or s.tokens_of_a_step or 1)
    low, high = sorted((a[0] / b[0] * tokens, a[1] / b[1] * tokens))
    words = f"{a[0]:.4g} against {b[0]:.4g} FLOP a token: {low:.2f} times"
    return compare(
        q.get("value"),
        low,
        high,
        show=format_number,
        arithmetic=words,
        consequence="time and cost scaled by this factor are too small" if q.get("value").high < low else "",
    )


def size_ratio(q: Question) -> Judgement:
    """How many times, or per cent more, parameters one configuration has than another."""
    value, mine, others = q.get("value"), counts(q.setup), counts(q.card.setup(q.get("than")))
    if mine is None or others is None:
        return unknown("the shapes that fix the parameters are not stated")
    pairs = [(a / b) for a, b in zip(mine.parameters, others.parameters, strict=True)]
    low, high = min(pairs), max(pairs)
    words = f"{mine.parameters[0]:,} ÷ {others.parameters[0]:,} = {low:.3f}"
    if value.dimension == "fraction":
        return compare(value, low - 1, high - 1, show=format_percent, arithmetic=words)
    return compare(value, low, high, show=format_number, arithmetic=words)


def expected_speed(q: Question) -> Judgement:
    """A speed that is expected of this card at this shape, against calibration or prior."""
    s, value = q.setup, q.get("value")
    prediction = signs.expected(s, q.believe)
    if prediction is None or prediction.tokens_per_second is None or s.tokens_of_a_step is None:
        return unknown("card, shape or batch are not stated")
    low, high = prediction.tokens_per_second.low, prediction.tokens_per_second.high
    rate = (
        (value.low, value.high)
        if value.dimension == "rate"
        else (s.tokens_of_a_step / value.high, s.tokens_of_a_step / value.low)
    )
    words = f"{value.text} is {between(rate, format_rate)}; expected of {s.gpu}: {between((low, high), format_rate)}"
    if rate[1] * SOFTWARE_SPREAD < low:
        so = f"the card gives {format_rate(low)} or more at this shape, {low / rate[1]:,.0f} times that"
        more: More = {
            "severity": Severity.ERROR,
            "threshold": f"{SOFTWARE_SPREAD:g} times under the 80 % interval of the expected speed",
            "consequence": f"{1 - rate[1] / low:.1%}".replace("%", " %") + " of the paid time is lost to software",
            "actions": ("profile one step; check that products run on tensor cores and nothing waits for the host",),
        }
        return does_not_follow(so, words, **more) if q.get("seen") else wrong(so, words, **more)
    if rate[0] > SOFTWARE_SPREAD * high:
        return wrong(f"more than the card can be expected to give: {format_rate(high)} at most", words)
    return holds("within what this card gives at this shape", words)


def phase_time(q: Question) -> Judgement:
    """The time of one phase against its physical floor: bytes over bandwidth, FLOPs over the dense peak."""
    s, phase, value = q.setup, q.get("phase"), q.get("value")
    spec, model, floor, words = signs.spec_of(s), counts(s), None, ""
    if spec is None or model is None:
        return unknown("card or shape are not stated")
    if phase == "optimizer":
        floor = signs.optimizer_floor_seconds(model, spec) / s.gpus  # each card may update its share only
        words = f"28 bytes × {model.parameters[0]:,} parameters ÷ {spec.memory_bytes_per_second / 1e9:,.0f} GB/s"
        words += f" ÷ {s.gpus} GPUs" if s.gpus > 1 else ""
    elif phase in ("forward", "backward") and s.tokens_of_a_step and s.seq_len and spec.bf16_flops:
        part = 1 / 3 if phase == "forward" else 2 / 3
        floor = part * model.flops(s.seq_len)[0] * s.tokens_of_a_step / s.gpus / spec.bf16_flops
        words = f"{part:.2f} of the step's FLOPs at the dense peak"
    if floor is None:
        return unknown(f"no physical floor is known for {phase}")
    words += f" = {format_seconds(floor)} at least"
    if value.most < floor:
        return wrong(
            f"impossible: it takes {format_seconds(floor)} at least",
            words,
            severity=Severity.WARNING,
            causes=("the timer does not wait for the device: only the launch was timed",),
            consequence="the work is counted in whichever phase waits first: no phase time here can be trusted",
            actions=("synchronise, or time with device events, before each reading",),
            threshold="fused AdamW reads p, g, m, v and writes p, m, v: 28 bytes a parameter in fp32",
        )
    return holds(f"above its physical floor of {format_seconds(floor)}", words)


def run_identity(q: Question) -> Judgement:
    """A run labelled as one configuration: does its speed belong to that one, or to another of the report?"""
    steps, elapsed = q.get("steps").middle, q.get("elapsed").middle
    mine, each = q.setup.seconds_of_a_step, elapsed / steps
    words = f"{q.get('elapsed').text} ÷ {q.get('steps').text} steps = {format_seconds(each)} a step"
    if mine is None:
        return unknown("the labelled configuration's step time is not stated", words)
    if 0.9 * mine[0] <= each <= 1.1 * mine[1]:
        return holds("its speed is that of the configuration it is labelled with", words)
    others = [
        (o, o.seconds_of_a_step) for o in (q.card.run, *q.card.others) if o.seconds_of_a_step and o.name != q.setup.name
    ]
    fits = [o for o, seconds in others if 0.97 * seconds[0] <= each <= 1.03 * seconds[1]]
    so = f"{format_seconds(each)} a step, not {format_seconds(mine[0])}"
    if not fits:
        return does_not_follow(f"{so}: another configuration, or a machine {each / mine[1]:.1f} times slower", words)
    planned = f", of which it had done {format_percent(steps / fits[0].steps)}" if fits[0].steps else ""
    return wrong(
        f"{so}: this is the run {fits[0].name}{planned}",
        words,
        severity=Severity.ERROR,
        consequence="conclusions about completion, loss and speed are drawn from the wrong run",
    )
