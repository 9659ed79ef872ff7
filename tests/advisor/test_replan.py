"""A run planned again elsewhere: what is kept, what its own speed does to the plan's, and what a log must say."""

import json
from pathlib import Path

import pytest

from advisor.calibration.observed_run import includes_run, profile_after
from advisor.prediction.batch import predict_batch
from advisor.records import MeasuredStep, Workload
from advisor.store.store import default_store
from trainer.schema import make_shape

SMALL = Path(__file__).parents[1] / "recorded" / "small.jsonl"
CARD, SHAPE = "h100-80gb-sxm", make_shape("gpt2", depth=12, vocab_size=50304, seq_len=1024)
STEP_TOKENS = 16 * 4 * 8 * 1024  # micro-batch x accumulation x cards x sequence


def workload(**changes):
    return Workload(**{"shape": SHAPE, "micro_batch": 16, "grad_accum": 4, "gpu": CARD, "compile": True, **changes})


def log(path: Path, seconds: float = 0.25, gpus: int = 8, accum: int = 4) -> Path:
    """A log of ours as eight cards would have written it: 40 of 400 steps, all equally long."""
    lines = [json.loads(line) for line in SMALL.read_text().splitlines()]
    header, step = lines[0], next(line for line in lines if line["kind"] == "step")
    model = {name: getattr(SHAPE, name) for name in header["config"]["model"]}
    header["config"] |= {"model": model, "steps": 400, "micro_batch": 16, "grad_accum": accum, "compile": True}
    header["config"] |= {"precision": "bf16"}
    device = {"type": "cuda", "name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85520809984, "count": gpus}
    tokens = 16 * accum * gpus * 1024
    header |= {"world_size": gpus, "tokens_per_step": tokens, "precision": "bf16", "parameters": 124_475_904}
    header["device"] |= device
    rows = [
        step | {"step": n, "tokens": n * tokens, "seconds": seconds, "loss": 10.0 - n / 20, "time": header["time"] + n,
                "reserved_peak_bytes": 20 * 2**30, "allocated_peak_bytes": 18 * 2**30}
        for n in range(1, 41)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (header, *rows)))
    return path


def plan_json(call, *words):
    code, out, err = call("plan", *map(str, words), "--json")
    assert code == 0, err
    return json.loads(out)


def test_eight_cards_to_two_keep_the_run_and_change_how_it_is_split(call, tmp_path):
    plan = plan_json(call, "--from", log(tmp_path / "log.jsonl"), "--gpus", 2)
    there, work = plan["from"]["there"], plan["chosen"]["prediction"]["workload"]
    assert (there["gpu"], there["gpus"], there["step_seconds"]) == (CARD, 8, 0.25)
    assert (there["steps_done"], there["steps_planned"], there["tokens"]) == (40, 400, 400 * STEP_TOKENS)
    assert there["tokens_per_second"] == pytest.approx(STEP_TOKENS / 0.25)
    assert there["memory_bytes"] == 20 * 2**30 and there["eval_loss"] is None and there["loss"] == 8.0
    assert (work["gpu"], work["gpus"]) == (CARD, 2)
    assert work["micro_batch"] * work["grad_accum"] * 2 * 1024 == STEP_TOKENS
    assert plan["run"]["steps"] == 400 and plan["chosen"]["tokens"] == 400 * STEP_TOKENS
    knobs = {knob["name"]: (knob["there"], knob["here"]) for knob in plan["from"]["knobs"]}
    assert knobs["gpus"] == (8, 2) and knobs["global_batch"] == (STEP_TOKENS, STEP_TOKENS)
    assert all(a == b for name in ("depth", "width", "seq_len", "precision", "tokens") for a, b in [knobs[name]])


def test_a_slow_run_makes_a_slow_plan_and_a_fast_one_a_fast(call, tmp_path):
    found = {}
    for name, seconds in (("slow", 0.4), ("fast", 0.2)):
        path = log(tmp_path / f"{name}.jsonl", seconds=seconds, gpus=1)
        plan = plan_json(call, "--from", path, "--micro-batch", 16)
        found[name] = plan["chosen"]["prediction"]["step_seconds"]
        assert "based on it" in plan["from"]["speed"]
        assert found[name]["value"] == pytest.approx(seconds, rel=0.05)  # the very configuration that was measured
        assert found[name]["low"] < seconds < found[name]["high"]
    alone = plan_json(call, "--from", log(tmp_path / "x.jsonl", gpus=1), "--micro-batch", 16)["from"]["predicted_there"]
    width = alone["step_seconds"]["high"] / alone["step_seconds"]["low"]
    assert found["slow"]["high"] / found["slow"]["low"] < width  # it was seen once, so less is open


def test_what_was_seen_on_one_card_moves_another_the_same_way(advisor_home):
    store, expected = default_store(), {}
    before = predict_batch(profile_after(None, CARD, store, compile=True), [workload()])[0].step_seconds.value
    for factor in (0.7, 1.6):
        seen = MeasuredStep(run_id="a", own=False, workload=workload(), step_seconds=before * factor, steps=100)
        other = profile_after(seen, "a100-80gb-sxm", store, precision="bf16", compile=True)
        assert includes_run(other, seen)
        expected[factor] = predict_batch(other, [workload(gpu="a100-80gb-sxm")])[0].step_seconds.value
    plain = profile_after(None, "a100-80gb-sxm", store, precision="bf16", compile=True)
    middle = predict_batch(plain, [workload(gpu="a100-80gb-sxm")])[0].step_seconds.value
    assert expected[0.7] < middle < expected[1.6] < 1.6 * middle  # what the cards differ in is not shared


def test_exchange_between_cards_is_not_taken_for_slow_arithmetic(advisor_home):
    store, eight = default_store(), workload(gpus=8)
    plain = profile_after(None, CARD, store, compile=True)
    took = predict_batch(plain, [eight])[0].step_seconds.value  # exactly as predicted, exchange included
    seen = MeasuredStep(run_id="a", own=False, workload=eight, step_seconds=took, steps=100)
    after, alone = profile_after(seen, CARD, store, compile=True), workload()
    ratio = predict_batch(after, [alone])[0].step_seconds.value / predict_batch(plain, [alone])[0].step_seconds.value
    assert ratio == pytest.approx(1, abs=0.02)


def test_what_is_typed_goes_before_what_the_run_had(call, tmp_path):
    plan = plan_json(call, "--from", log(tmp_path / "log.jsonl"), "--gpu", "l4", "--gpus", 4, "--tokens", "2B",
                     "--depth", 6, "--seq-len", 512)  # fmt: skip
    work = plan["chosen"]["prediction"]["workload"]
    assert (work["gpu"], work["gpus"], work["shape"]["depth"], work["shape"]["seq_len"]) == ("l4", 4, 6, 512)
    assert work["shape"]["family"] == "gpt2" and work["shape"]["vocab_size"] == 50304
    assert plan["chosen"]["tokens"] == pytest.approx(2e9, rel=0.001)


def test_depths_are_held_against_the_current_run(call, tmp_path):
    plan = plan_json(call, "--from", log(tmp_path / "log.jsonl", gpus=1), "--depths", "12,24")
    own, deeper = plan["depths"]
    assert (own["depth"], own["step_ratio"], deeper["depth"]) == (12, 1.0, 24)
    assert own["step_seconds"]["value"] == pytest.approx(0.25, rel=0.05)  # the run's own, at its own micro-batch
    assert deeper["step_ratio"] > 2  # twice the blocks at twice the width


def test_a_log_without_a_shape_names_the_options_that_say_it(call, tmp_path):
    path = tmp_path / "train.log"
    path.write_text("".join(f"step {n}: loss {9 - n / 50:.4f}, time 250.00ms\n" for n in range(60)))
    code, _, err = call("plan", "--from", str(path), "--gpu", "l4")
    assert code == 2 and "--config FILE" in err and "--seq-len" in err
    shape = ("--family", "gpt2", "--depth", "12", "--width", "768", "--heads", "12", "--vocab-size", "50304")
    words = (*shape, "--seq-len", "1024", "--global-batch", "524288")
    code, _, err = call("plan", "--from", str(path), *words)
    assert code == 2 and "--was" in err and "--gpu" in err
    plan = plan_json(call, "--from", path, *words, "--was", "a100-80gb-sxm:2", "--gpu", "l4")
    assert plan["from"]["there"]["gpu"] == "a100-80gb-sxm"
    assert plan["from"]["there"]["gpus"] == 2 and plan["goal"]["tokens"] == 60 * 524288


def test_was_without_a_run_is_refused(call):
    code, _, err = call("plan", "--was", "h100:8")
    assert code == 2 and "--from" in err


def test_a_run_of_ours_keeps_its_learning_rate_and_schedule(call, tmp_path):
    run = tmp_path / "small"
    run.mkdir()
    (run / "log.jsonl").write_bytes(SMALL.read_bytes())
    (run / "run.yaml").write_bytes(
        SMALL.with_suffix(".run.yaml").read_bytes().replace(b"warmup_steps: 0", b"warmup_steps: 7")
    )
    plan = plan_json(call, "--from", run, "--gpu", CARD)
    assert (plan["run"]["optimizer"]["learning_rate"], plan["run"]["schedule"]["warmup_steps"]) == (3e-4, 7)
    assert plan["run"]["steps"] == 60 and plan["run"]["seed"] == 1337


def console(path: Path, banner: str, *, seconds=2.45, ending="", losses=None):
    """A Megatron console of 1.3 B parameters, 60 rows of 50,000 steps."""
    sizes = {"num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "seq_length": 2048, "train_iters": 50000}
    sizes |= {"padded_vocab_size": 50304, "global_batch_size": 128, "micro_batch_size": 8}
    dump = "".join(f"  {name} {'.' * 12} {value}\n" for name, value in sizes.items())
    losses = [2 + 8 / n for n in range(1, 61)] if losses is None else losses
    rows = "".join(
        f" iteration {n * 100:8}/   50000 | elapsed time per iteration (ms): {1000 * seconds:.1f} | lm loss: {loss} |\n"
        for n, loss in enumerate(losses, 1)
    )
    path.write_text(banner + dump + rows + ending)
    return path


def test_what_a_log_does_not_state_is_not_kept(call, tmp_path):
    text = console(tmp_path / "train.out", "using world size: 8, data-parallel-size: 8\n")
    plan = plan_json(call, "--from", text, "--was", "a100-80gb-sxm:8", "--gpu", CARD)
    knobs = {knob["name"]: knob for knob in plan["from"]["knobs"]}
    assert knobs["compile"]["there"] is None and knobs["precision"]["there"] is None
    assert plan["chosen"]["prediction"]["workload"]["compile"] and plan["from"]["fate"] == ""


def test_what_became_of_the_run_is_said(call, tmp_path):
    losses = [2 + 8 / n for n in range(1, 61)] + ["nan"] * 40
    text = console(tmp_path / "train.out", "using world size: 8\n", losses=losses)
    words = ("--from", str(text), "--was", "a100-80gb-sxm:8", "--gpu", CARD)
    code, out, err = call("plan", *words)
    assert code == 0, err
    said = next(line for line in out.splitlines() if line.startswith("result of the run"))
    assert "diverged" in said and "NaN from step 6,100 on" in out
    assert "NaN from step 6,100" in plan_json(call, *words)["from"]["fate"]


SIZES = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
SIZES |= {
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
}


@pytest.mark.parametrize(
    ("words", "rank"),
    [
        ("  Number of trainable parameters = 83,886,080\n", 32),
        ("trainable params: 20,971,520 || all params: 8,051,232,768 || trainable%: 0.2605\n", 8),
    ],
    ids=["the Trainer's banner", "PEFT's line"],
)
def test_adapters_are_seen_and_not_planned_as_the_whole_model(call, tmp_path, words, rank):
    banner = "***** Running training *****\n  Num examples = 3,200\n  Instantaneous batch size per device = 2\n"
    banner += "  Gradient Accumulation steps = 4\n  Total optimization steps = 400\n" + words
    rows = "".join(
        f"{{'loss': {2 - s / 400:.3f}, 'learning_rate': 1e-4, 'epoch': {s / 400}}}\n" for s in range(4, 401, 4)
    )
    (tmp_path / "sft.log").write_text(banner + rows)
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    words = ("--from", tmp_path / "sft.log", "--config", tmp_path / "config.json", "--was", "rtx-4090:1")
    code, _, err = call("plan", *map(str, words), "--gpu", "a100-80gb-sxm", "--seq-len", "2048")
    assert code == 2 and "of 8.03 B parameters; a plan trains all of them" in err
    assert f"its adapters of rank {rank} need: advisor predict" in err and f"--lora-rank {rank}" in err
