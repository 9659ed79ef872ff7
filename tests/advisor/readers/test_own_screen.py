"""The trainer's banner: what it prints as it starts is read back as what its log's header says."""

import json
from pathlib import Path

from advisor.readers.read import read_run
from trainer.banner import banner

SMALL = Path(__file__).parents[2] / "recorded" / "small.jsonl"
NAMES = ("family", "depth", "width", "heads", "vocab_size", "seq_len", "parameters", "micro_batch", "grad_accum",
         "step_tokens", "planned_steps", "precision", "compile", "gpu", "world_size")  # fmt: skip


def header() -> dict:
    return json.loads(SMALL.read_text().splitlines()[0])


def test_the_screen_is_read_back_as_the_log_is(tmp_path):
    lines = [*banner(header()), *(f"step {n}/60  loss {6.2 - n / 100:.4f}  0.020 s" for n in (1, 20, 40, 60))]
    path = tmp_path / "stdout.log"
    path.write_text("\n".join([*lines, "completed: all 60 steps done"]) + "\n")
    run, log = read_run(path), read_run(SMALL)
    assert run.format == "own_screen" and (run.rows, run.last_step, run.last_loss) == (4, 60, 5.6)
    assert {name: run.facts.get(name) for name in NAMES} == {name: log.facts[name] for name in NAMES}


def test_a_card_is_named_with_its_tf32_and_the_data_with_their_tokens():
    record = header()
    record["device"] |= {"type": "cuda", "name": "NVIDIA L4"}
    record["data"] = {"tokens": 1000}
    said = list(banner(record))
    assert said[0] == "device: NVIDIA L4" and "tf32: true" in said and "data: 1000 training tokens" in said
    assert "checkpoints: every 30 steps, at the end" in said and "attention_kernel: auto" in said


def test_a_run_folder_is_still_read_by_its_log(tmp_path):
    (tmp_path / "log.jsonl").write_bytes(SMALL.read_bytes())
    (tmp_path / "stdout.log").write_text("\n".join([*banner(header()), "step 1/60  loss 6.2378  0.020 s"]) + "\n")
    assert read_run(tmp_path).format == read_run(SMALL).format
