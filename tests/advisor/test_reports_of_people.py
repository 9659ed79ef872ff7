"""What a person says of one training log, asked of `advisor analyze` for logs in a person's own forms.

Each case is one thing that such a report says: a value, a share, hours, dollars, a verdict, an advice. The right
answers are arithmetic on the numbers that the test writes, never what the program once gave.
"""

import csv
import io
import json
import math
from functools import cache

import pytest
from click.testing import CliRunner

from advisor.cli.analyze import command

# One run of a small model on an NVIDIA L4 that had room for far more. A step is 24 x 256 = 6,144 tokens; 3,072 tokens/s
# are 2.0 s a step; its timed parts add up to 2.0 s as well. It stopped at step 3,600 of 40,000.
STEPS, PLANNED, EVERY = 3600, 40_000, 100
STEP_SECONDS, RATE, STEP_TOKENS = 2.0, 3072, 6144
PARTS = {"fwd": 1000.0, "bwd": 900.0, "gradnorm": 40.0, "gradclip": 30.0, "optim": 2.0, "flush": 20.0, "data": 8.0}
MEMORY = 22_528  # MiB
PRICE = 0.80
SPIKE = 218.5


def rows():
    """Step, loss, learning rate, norm, utilisation and memory of each printed row."""
    for n, step in enumerate(range(EVERY, STEPS + 1, EVERY)):
        loss = 4.1 + 4.4 * math.exp(-step / 1100) + 0.02 * math.sin(5 * n)
        norm = SPIKE if step == 1500 else 1.1 + 0.2 * math.sin(3 * n)
        busy, memory = 5 + (7 * n) % 31, 2300 + 50 * ((5 * n) % 23)
        yield step, loss, 6e-5 * min(1.0, step / 1000), norm, busy, memory


FIRST, LAST = (next(iter(rows()))[1], list(rows())[-1][1])
MEMORY_LOW, MEMORY_HIGH = (end(row[5] for row in rows()) for end in (min, max))
HEADER = f"gpu: NVIDIA L4 | params: 21.6M | batch 24 x block 256 | iters {PLANNED} | lr 6e-5"


def pipes():
    yield HEADER
    parts = " | ".join(f"{name} {value:.1f}ms" for name, value in PARTS.items())
    for step, loss, lr, norm, busy, memory in rows():
        yield (
            f"step {step}/{PLANNED} | loss {loss:.4f} | lr {lr:.2e} | grad_norm {norm:.4f} | clip 24% | {RATE} tok/s | "
            f"{parts} | gpu {busy}% | vram {memory}/{MEMORY}MB | 60W/72W | 71C"
        )


def key_values():
    yield "NVIDIA L4, 21.6M params, batch 24, block 256"
    names = ("forward", "backward", "grad_norm", "clip", "optimizer", "flush", "data")
    parts = " ".join(f"{name}={value:.1f}ms" for name, value in zip(names, PARTS.values(), strict=True))
    for step, loss, lr, norm, busy, memory in rows():
        yield (
            f"[train] iter={step}/{PLANNED} loss={loss:.4f} lr={lr:.2e} gnorm={norm:.4f} clipped=24% tok/s={RATE} "
            f"{parts} gpu_util={busy}% vram={memory}MiB vram_total={MEMORY}MiB power=60W power_limit=72W temp=71C"
        )


def commas():
    yield "Training on GPU NVIDIA L4: 21.6M params, batch size 24, sequence length 256, 40000 steps"
    parts = ", ".join(
        f"{name} {value:.1f} ms"
        for name, value in zip(
            ("forward pass", "backward pass", "grad norm", "grad clip", "optimizer step", "gpu flush", "data loading"),
            PARTS.values(),
            strict=True,
        )
    )
    for step, loss, lr, norm, busy, memory in rows():
        yield (
            f"Step {step} of {PLANNED}: train_loss {loss:.4f}, learning rate {lr:.2e}, gradient norm {norm:.4f}, "
            f"clip 24%, {RATE} tokens/sec, {parts}, GPU 60W/72W 71C {busy}%, mem {memory} MiB/{MEMORY} MiB"
        )


def table():
    yield "gpu: NVIDIA L4, 21.6M params"
    yield "batch 24, seq 256, 40000 iters"
    yield ("  Step    Loss      LR        GradNorm  Clip%  Tok/s  Fwd(ms)  Bwd(ms)  GradNorm(ms)  Clip(ms)  Optim(ms)  "
           "Flush(ms)  Data(ms)  GPU%  VRAM(MB)  VRAM_total(MB)  Power(W)  Power_cap(W)  Temp(C)")  # fmt: skip
    parts = "  ".join(f"{value:.1f}" for value in PARTS.values())
    for step, loss, lr, norm, busy, memory in rows():
        yield (
            f"  {step}  {loss:.4f}  {lr:.2e}  {norm:.4f}  24%  {RATE:,}  {parts}  {busy}%  {memory:,}  {MEMORY:,}  60  "
            "72  71"
        )


def json_lines():
    yield json.dumps({"gpu": "NVIDIA L4", "params": 21_600_000, "batch_size": 24, "block_size": 256,
                      "max_iters": PLANNED})  # fmt: skip
    for step, loss, lr, norm, busy, memory in rows():
        timing = {f"{name}_ms": value for name, value in PARTS.items()}
        yield json.dumps(
            {"step": step, "loss": round(loss, 4), "lr": lr, "grad_norm": norm, "clip_pct": 24, "tok_per_s": RATE}
            | timing
            | {"gpu": {"util_pct": busy, "vram_used_mb": memory, "vram_total_mb": MEMORY, "power_w": 60,
                       "power_limit_w": 72, "temp_c": 71}}
        )  # fmt: skip


def csv_rows():
    yield "# gpu: NVIDIA L4, 21.6M params, batch 24, seq 256, 40000 steps"
    yield ("step,loss,lr,grad_norm,clip_pct,tok_per_s,fwd_ms,bwd_ms,gradnorm_ms,gradclip_ms,optim_ms,flush_ms,data_ms,"
           "gpu_util_pct,vram_mb,vram_total_mb,gpu_power_w,power_limit_w,gpu_temp_c")  # fmt: skip
    for step, loss, lr, norm, busy, memory in rows():
        out = io.StringIO()
        numbers = [step, f"{loss:.4f}", lr, f"{norm:.4f}", 24, RATE, *PARTS.values(), busy, memory, MEMORY, 60, 72, 71]
        csv.writer(out, lineterminator="").writerow(numbers)
        yield out.getvalue()


LAYOUTS = {
    **{"pipes": pipes, "key=value": key_values, "comma words": commas, "own table": table},
    **{"JSON lines": json_lines, "CSV": csv_rows},
}


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """The answers of the command to a log's lines, each asked once: its JSON and its text."""

    @cache
    def ask(layout, *words):
        name = {"JSON lines": "run.jsonl", "CSV": "run.csv"}.get(layout, "run.log")
        path = tmp_path_factory.mktemp("log") / name
        path.write_text("\n".join(LOGS[layout]()) + "\n")
        text, document = (CliRunner().invoke(command, [str(path), *words, *more]) for more in ([], ["--json"]))
        assert text.exit_code == 0 and document.exit_code == 0, text.output + document.output
        return json.loads(document.output), " ".join(text.output.split())

    return ask


def part(document, name):
    return next(one["share"] for one in document["parts_of_step"] if one["name"] == name)


def card(document, name):
    (one,) = document["measured"]["cards"]
    return one[name] if name in one else one["quantities"][name]


def finding(document, code):
    return next(one for one in document["findings"] if one["code"] == code)


def spread(document, name, end):
    found = document["measured"]
    return (found["gradients"][name] if name in ("norm", "clipped") else found[name])[end]


WHOLE_HOURS = PLANNED * STEP_SECONDS / 3600
SAID = {
    "steps done": (lambda d: d["last_step"], STEPS),
    "steps planned": (lambda d: d["forecast"]["steps_planned"], PLANNED),
    "first loss": (lambda d: d["first_loss"], pytest.approx(FIRST, abs=1e-4)),
    "last loss": (lambda d: d["last_loss"], pytest.approx(LAST, abs=1e-4)),
    "reduction of the loss": (lambda d: d["loss_change"], pytest.approx(LAST / FIRST - 1, abs=1e-4)),
    "parameters": (lambda d: d["facts"]["parameters"], 21_600_000),
    "batch": (lambda d: d["facts"]["micro_batch"], 24),
    "block": (lambda d: d["facts"]["seq_len"], 256),
    "average tokens/s": (lambda d: spread(d, "tokens_per_second", "mean"), pytest.approx(RATE)),
    "seconds of a step": (lambda d: spread(d, "step_seconds", "mean"), pytest.approx(STEP_SECONDS)),
    "hours so far": (lambda d: d["cost"]["hours"], pytest.approx(STEPS * STEP_SECONDS / 3600, rel=0.01)),
    "dollars so far": (lambda d: d["cost"]["usd"], pytest.approx(STEPS * STEP_SECONDS / 3600 * PRICE, rel=0.01)),
    "hours to the end": (lambda d: d["cost"]["whole_run_hours"]["value"], pytest.approx(WHOLE_HOURS, rel=0.02)),
    "dollars to the end": (lambda d: d["cost"]["whole_run_usd"]["value"], pytest.approx(WHOLE_HOURS * PRICE, rel=0.02)),
    "share of forward": (lambda d: part(d, "forward"), pytest.approx(0.50)),
    "share of backward": (lambda d: part(d, "backward"), pytest.approx(0.45)),
    "share of the norm": (lambda d: part(d, "grad_norm"), pytest.approx(0.02)),
    "share of clipping": (lambda d: part(d, "clip"), pytest.approx(0.015)),
    "share of the flush": (lambda d: part(d, "flush"), pytest.approx(0.01)),
    "share of data": (lambda d: part(d, "data"), pytest.approx(0.004)),
    "clipped": (lambda d: spread(d, "clipped", "mean"), pytest.approx(0.24)),
    "largest norm": (lambda d: spread(d, "norm", "high"), SPIKE),
    "its step": (lambda d: spread(d, "norm", "high_step"), 1500),
    "one spike": (lambda d: ("218.5" in finding(d, "grad_norm_large")["title"],
                             "once" in finding(d, "grad_norm_large")["title"]), (True, True)),
    "least memory": (lambda d: spread(d, "memory_bytes", "low"), MEMORY_LOW * 2**20),
    "most memory": (lambda d: spread(d, "memory_bytes", "high"), MEMORY_HIGH * 2**20),
    "memory of the GPU": (lambda d: d["measured"]["device_bytes"], MEMORY * 2**20),
    "least utilisation": (lambda d: card(d, "utilization")["low"], 0.05),
    "most utilisation": (lambda d: card(d, "utilization")["high"], 0.35),
    "power": (lambda d: card(d, "power_watts")["mean"], 60),
    "power cap": (lambda d: card(d, "power_limit_watts"), 72),
    "temperature": (lambda d: card(d, "temperature_celsius")["last"], 71),
    "the GPU is underused": (lambda d: finding(d, "underused")["title"],
                             f"{MEMORY_LOW / MEMORY:.0%}".replace("%", "").strip()
                             + f"-{MEMORY_HIGH / MEMORY * 100:.0f} % of the GPU memory and 5-35 % of the GPU are in "
                             "use: use a larger micro-batch or a larger model"),
    "a larger micro-batch": (lambda d: finding(d, "underused")["actions"][0].partition(";")[0],
                             "micro_batch: 96 instead of 24"),
    "nothing is left unread": (lambda d: [note for note in d["notes"] if note.startswith("not read")], []),
}  # fmt: skip


@pytest.mark.parametrize("thing", SAID)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_report_says_of_a_run(asked, layout, thing):
    ask, right = SAID[thing]
    assert ask(asked(layout, "--gpu", "l4", "--price", str(PRICE))[0]) == right


# A GPT-2 small, 8 x 128 tokens a step, that takes half a minute for each with less memory than its weights.
SLOW = ((0, 391.2, 9_100), (10, 120.5, 31_000), (20, 88.4, 30_500), (30, 71.9, 30_000), (40, 66.1, 29_500),
        (50, 63.3, 29_000))  # fmt: skip


def on_the_cpu():
    yield "Model: GPT-2 small, 124M params, batch 8, seq 128, device: CUDA(RTX 5080)"
    for step, loss, ms in SLOW:
        yield f"Step {step:>4} | Loss: {loss:>8.3f} | PPL: {math.exp(min(loss, 170)):.1e} | VRAM: 251 MB | Time: {ms}ms"


def on_the_cpu_in_json():
    yield json.dumps({"model": "gpt2", "params": 124_000_000, "batch_size": 8, "seq_len": 128, "gpu": "RTX 5080"})
    for step, loss, ms in SLOW:
        yield json.dumps({"step": step, "loss": loss, "vram_mb": 251, "step_ms": ms})


def stuck(*losses, every=500, lr=6e-4):
    """A model of half a billion parameters, each row with its sequence length and tokens per step."""
    yield "params: 520M, hidden 1024, layers 16, heads 16, ffn 4096"
    for n, loss in enumerate(losses, 1):
        yield (
            f"[progress] step {n * every:>6} | seq 1024 | tokens 131072 | loss {loss:>8.4f} | grad  0.9321 | "
            f"lr  {lr * min(1, n / 4):.3e}"
        )


def stuck_in_words():
    yield "12 layers, 768 dim, vocab 32000, 124M params, context 512"
    for n in range(12):
        yield f"Step {300 * (n + 1)}: loss {7.35 + 2.6 / (n + 1) ** 2:.4f}, learning rate 3.0e-04, tokens 65536"


LOGS = {
    **LAYOUTS,
    "on the CPU": on_the_cpu,
    "on the CPU, JSON lines": on_the_cpu_in_json,
    "stuck": lambda: stuck(8.31, 7.62, 7.55, 7.53, 7.52),
    "stuck, in words": stuck_in_words,
}
SLOWLY = {
    "parameters": (lambda d: d["facts"]["parameters"], 124_000_000),
    "sequence": (lambda d: (d["facts"]["micro_batch"], d["facts"]["seq_len"]), (8, 128)),
    "first loss": (lambda d: d["first_loss"], 391.2),
    "loss lower by": (lambda d: d["loss_change"], pytest.approx(63.3 / 391.2 - 1)),
    "seconds of a step": (lambda d: d["forecast"]["step_seconds"]["value"], pytest.approx(30.0, rel=0.05)),
    "tokens/s": (lambda d: d["throughput"], pytest.approx(1024 / 30.0, rel=0.05)),
    "memory": (lambda d: spread(d, "memory_bytes", "high"), 251 * 2**20),
    "what to do first": (lambda d: d["verdict"][1].startswith("Problem: It does not run on the GPU"), True),
    "an error": (lambda d: finding(d, "cpu_fallback")["severity"], "error"),
    "less memory than the weights": (lambda d: "251 MiB" in finding(d, "cpu_fallback")["evidence"][0]["text"], True),
    "hundreds of times slower": (lambda d: times_slower(finding(d, "cpu_fallback")["title"]) > 100, True),
    "no vocabulary has such a loss": (lambda d: finding(d, "initial_loss_high")["title"].endswith(
        "is above ln V of any vocabulary (ln 262,144 = 12.48): the reduction of the loss or the initialisation is "
        "wrong"), True),
}  # fmt: skip
STUCK = {
    "steps": (lambda d: d["last_step"], {"stuck": 2500, "stuck, in words": 3600}),
    "sequence": (lambda d: d["facts"]["seq_len"], {"stuck": 1024, "stuck, in words": 512}),
    "tokens of a step": (lambda d: d["facts"]["step_tokens"], {"stuck": 131072, "stuck, in words": 65536}),
    "parameters": (lambda d: d["facts"]["parameters"], {"stuck": 520_000_000, "stuck, in words": 124_000_000}),
    "shape": (lambda d: [d["facts"][name] for name in ("depth", "width")],
              {"stuck": [16, 1024], "stuck, in words": [12, 768]}),
    "an error": (lambda d: finding(d, "stuck_at_frequencies")["severity"], dict.fromkeys(("stuck", "stuck, in words"),
                                                                                        "error")),
    "stop and look": (lambda d: "the model knows only word frequencies" in " ".join(d["verdict"]),
                      dict.fromkeys(("stuck", "stuck, in words"), True)),
}  # fmt: skip


def times_slower(title):
    return float(title.partition(", ")[2].partition("x slower")[0].replace(",", ""))


@pytest.mark.parametrize("thing", SLOWLY)
@pytest.mark.parametrize("layout", ["on the CPU", "on the CPU, JSON lines"])
def test_what_a_report_says_of_a_run_that_never_reached_its_gpu(asked, layout, thing):
    ask, right = SLOWLY[thing]
    assert ask(asked(layout, "--gpu", "rtx-5080")[0]) == right


@pytest.mark.parametrize("thing", STUCK)
@pytest.mark.parametrize("layout", ["stuck", "stuck, in words"])
def test_what_a_report_says_of_a_run_that_is_stuck(asked, layout, thing):
    ask, right = STUCK[thing]
    assert ask(asked(layout)[0]) == right[layout]


def analyzed(tmp_path, lines, *words, name="run.log"):
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    done = CliRunner().invoke(command, [str(path), *words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


HEALTHY = {
    "as hoped for": [8.23, 6.12, 5.34, 4.21, 3.9],
    "slow, yet falling": [9.6, 8.9, 8.3, 7.8, 7.4],
    "a long warm-up": [10.2, 9.8, 9.1, 8.2, 7.3],
    "near seven and falling": [7.9, 7.6, 7.4, 7.2, 7.05],
    "low and flat": [3.2, 3.15, 3.14, 3.13, 3.13],
    "flat below the level": [6.9, 6.5, 6.4, 6.39, 6.38],
    "a power of the steps": [2.2 + 9 * (500 * n) ** -0.25 for n in range(1, 9)],
}


@pytest.mark.parametrize("shape", HEALTHY)
def test_a_run_that_learns_is_not_called_stuck(tmp_path, shape):
    found = analyzed(tmp_path, stuck(*HEALTHY[shape]))
    assert not [one for one in found["findings"] if one["severity"] == "error"]


def test_a_loss_above_seven_of_no_language_model_is_not_called_stuck(tmp_path):
    """ln 21,841 = 9.99 of the classes of ImageNet-21k; nothing in the log speaks of tokens or sequences."""
    lines = (f"step {500 * n} | loss {7.4 + 0.3 / n:.4f} | acc {0.01 * n:.3f} | lr 1.0e-03" for n in range(1, 9))
    assert not [one for one in analyzed(tmp_path, lines)["findings"] if one["code"] == "stuck_at_frequencies"]


def test_early_steps_above_seven_are_not_called_stuck(tmp_path):
    found = analyzed(tmp_path, stuck(7.5, 7.49, 7.48, 7.48, 7.47, every=100))
    assert not [one for one in found["findings"] if one["code"] == "stuck_at_frequencies"]


@pytest.mark.parametrize(
    "busy, memory, low_rate",
    [(97, 1500, False), (30, 21_000, False), (30, 1500, True)],
    ids=["a busy GPU", "a full memory", "little of both"],
)
def test_a_larger_micro_batch_is_advised_where_memory_and_time_are_free(tmp_path, busy, memory, low_rate):
    lines = (f"step {n}/900 | loss {6 - 0.01 * n:.3f} | 9000 tok/s | gpu {busy}% | vram {memory}/22528MB | 60W/72W"
             for n in range(1, 60))  # fmt: skip
    codes = [one["code"] for one in analyzed(tmp_path, lines, "--gpu", "l4")["findings"]]
    assert ("underused" in codes) is low_rate


def test_little_memory_or_a_slow_rate_alone_convicts_nobody(tmp_path):
    """Weights in shards and 4 bits take less than fp32; a tiny model on a large GPU does little work a second."""
    sharded = ["Model: GPT-2, 1.5B params, batch 8, seq 1024", *(
        f"step {n} | loss {9 - 0.1 * n:.3f} | {60_000} tok/s | vram 4000 MB" for n in range(1, 40))]  # fmt: skip
    tiny = ["Model: GPT-2, 1.1M params, batch 4, seq 64", *(
        f"step {n} | loss {9 - 0.1 * n:.3f} | {900} tok/s | vram 900 MB" for n in range(1, 40))]  # fmt: skip
    for lines in (sharded, tiny):
        codes = [one["code"] for one in analyzed(tmp_path, lines, "--gpu", "h100-80gb-sxm")["findings"]]
        assert "cpu_fallback" not in codes


def test_what_nobody_placed_is_listed(tmp_path):
    lines = (f"[{n / 50:.2f}] step {n} | loss {6 - 0.01 * n:.3f} | lr 1e-4 | mood 3.{n % 10} | 512 tok/s"
             for n in range(10, 60))  # fmt: skip
    (note,) = [note for note in analyzed(tmp_path, lines)["notes"] if note.startswith("not read")]
    assert note == "not read: 0.20, mood 3.0"


def test_a_known_form_is_left_only_to_a_reading_that_explains_more(tmp_path):
    """`step 5/900 | loss 3.1` is llm.c's; what stands behind it here no llm.c prints. Its own rows stay its own."""
    own = (f"step {n}/900 | loss {6 - 0.01 * n:.4f} | lr 1.00e-04 | grad 1.1{n % 10} | 512 tok/s | gpu 40% | 55W | 61C"
           for n in range(1, 60))  # fmt: skip
    table = analyzed(tmp_path, own)
    assert table["framework"] is None and table["facts"].get("family") is None
    assert {"grad_norm", "tokens_per_second", "learning_rate"} <= table["columns"].keys()
    of_llmc = (f"step {n}/900 | loss {6 - 0.01 * n:.6f} (+0.12z)| norm 1.{n:04d} (-0.31z)| lr 1.00e-04 | "
               f"400.12 ms | 29.6% bf16 MFU | 115000 tok/s" for n in range(1, 60))  # fmt: skip
    assert analyzed(tmp_path, of_llmc)["framework"] == "llm.c"


def test_an_mfu_that_the_log_prints_is_shown_where_ours_is_unknown(tmp_path):
    lines = [f"step {n} | loss {6 - 0.01 * n:.3f} | 430600 tok/s | mfu 43.8%" for n in range(1, 60)]
    found = analyzed(tmp_path, lines)
    assert found["mfu"] is None and found["logged_mfu"] == pytest.approx(0.438)
    shown = CliRunner().invoke(command, [str(tmp_path / "run.log")]).output
    assert "43.8 % as logged" in shown


def test_a_report_ends_with_what_matters(asked, tmp_path):
    _, text = asked("pipes", "--gpu", "l4", "--price", str(PRICE))
    assert "insufficient telemetry" not in text and "checks need more than this log has (--all lists them)" in text
    end = text.rpartition("what matters:")[2]
    assert "10-15 % of the GPU memory and 5-35 % of the GPU are in use" in end
    _, everything = asked("pipes", "--gpu", "l4", "--price", str(PRICE), "--all")
    assert "logged_mfu: an MFU that the log prints, to be checked" in everything
    calm = tmp_path / "calm.log"
    calm.write_text("".join(f"step {n} loss {6 - 0.01 * n:.3f}\n" for n in range(1, 60)))
    assert CliRunner().invoke(command, [str(calm)]).output.rpartition("Problem: ")[2].startswith("none found in ")


def falling(n):
    return f"{4.4 + 4 * math.exp(-n / 15):.4f}"


OTHER_FORMS = {
    "a block of lines for each step": lambda n: [
        f"=== Step {50 * n} / 50000 ===", f"Loss: {falling(n)}", "Tokens/s: 4800", "GPU util: 31%", "VRAM: 3100 MB",
        "Power: 55 W", "Temp: 66 C", ""],
    "the GPU in a line below": lambda n: [
        f"[{50 * n}/50000] loss: {falling(n)}  lr: 5.0e-05  4800 tok/s", "    fwd: 1000 ms  bwd: 900 ms",
        "    GPU: 31% | 3100/23034 MB | 55/72 W | 66 C"],
    "thousands and degrees": lambda n: [
        f"step {50 * n} | loss {falling(n)} | 4.8k tok/s | VRAM 3.03/22.5 GiB | util 31% | 55 W | 66 °C | dt 1920ms"],
    "a sentence": lambda n: [
        f"step {50 * n} has loss {falling(n)}; 4800 tokens/s; GPU at 31%, 3100 MB of 23034 MB, 55 W of 72 W, 66 C"],
    "brackets": lambda n: [
        f"iter {50 * n}: loss {falling(n)} (lr=5.0e-05, tok/s=4,800) [fwd 1000ms, bwd 900ms] "
        "{gpu: 31%, mem: 3100MiB/23034MiB, power: 55W, temp: 66C}"],
    "units in the cells": lambda n: [
        *(["step\ttok/s\tloss\tfwd\tbwd\tGPU util\tGPU mem\tGPU power\tGPU temp"] if n == 1 else []),
        f"{50 * n}\t4800\t{falling(n)}\t1000ms\t900ms\t31%\t3100MB\t55W\t66C"],
    "nested JSON": lambda n: [json.dumps({
        "step": 50 * n, "train_loss": float(falling(n)), "tokens_per_sec": 4800,
        "timing_ms": {"forward": 1000, "backward": 900}, "gpu": {"util_pct": 31, "power_w": 55, "temp_c": 66,
                                                                 "mem_used_mb": 3100}})],
    "no units": lambda n: [
        f"step={50 * n} loss={falling(n)} tps=4800 gpu_util=31 gpu_mem=3100 gpu_power=55 gpu_temp=66"],
}  # fmt: skip


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_other_forms_of_the_same_readings(tmp_path, form):
    name = "run.jsonl" if "JSON" in form else "run.log"
    found = analyzed(tmp_path, [line for n in range(1, 40) for line in OTHER_FORMS[form](n)], "--gpu", "l4", name=name)
    assert (found["last_step"], found["last_loss"]) == (1950, float(falling(39)))
    assert spread(found, "tokens_per_second", "mean") == pytest.approx(4800)
    assert card(found, "utilization")["mean"] == pytest.approx(0.31)
    assert (card(found, "power_watts")["mean"], card(found, "temperature_celsius")["mean"]) == (55, 66)
    memory = found["measured"]["memory_bytes"] or card(found, "memory_used_bytes")
    assert memory["mean"] == pytest.approx(3100 * 2**20, rel=0.01)
    if "fwd" in "".join(OTHER_FORMS[form](1)) or "forward" in "".join(OTHER_FORMS[form](1)):
        assert part(found, "forward") == pytest.approx(1000 / 1900)
        assert found["cost"]["hours"] == pytest.approx(1950 * 1.9 / 3600, rel=0.01)
    assert not [note for note in found["notes"] if note.startswith("not read")]


def test_a_step_is_as_many_tokens_as_its_header_says_not_one_batch(tmp_path):
    """40 x 12 x 1,024 tokens at 154,000 a second are 3.19 s, by the accumulation or by the product that is printed."""
    sizes = ["  Layers: 12, Hidden: 768, FF: 3072", "  Block size: 1024, Batch: 12", "  Max iters: 100,000"]
    rows = [
        f"  iter {1000 * n:>6} | train {4 - 0.1 * n:.4f} | val {4.1 - 0.1 * n:.4f} | 154000 tok/s" for n in range(9)
    ]
    for more, hours in (
        (["  Grad accum: 40"], 8000 * 491_520 / 154_000 / 3600),
        (["  Tokens/iter: 491,520"], 8000 * 491_520 / 154_000 / 3600),
        (["  Accumulating gradients"], None),  # how many is not said: nothing is claimed
    ):
        found = analyzed(tmp_path, [*sizes, *more, *rows])
        assert found["cost"]["hours"] == (None if hours is None else pytest.approx(hours, rel=0.01))
