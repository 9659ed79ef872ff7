"""Two processes on the CPU train the same model as one with twice the batch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.trainer.forked import start_many
from trainer.conversations import prepare_conversations
from trainer.prepare import prepare
from trainer.run import run
from trainer.runlog import load_run_log, read_records
from trainer.schema import (
    CheckpointConfig,
    DataConfig,
    EvalConfig,
    OptimizerConfig,
    Outcome,
    RunConfig,
    TelemetryConfig,
    dump_config,
    make_shape,
)


def config(**changes) -> RunConfig:
    defaults = {
        "model": make_shape("gpt2", depth=2, width=32, heads=2, vocab_size=64, seq_len=16),
        "steps": 8,
        "micro_batch": 2,
        "grad_accum": 2,
        "device": "cpu",
        "precision": "fp32",
        "optimizer": OptimizerConfig(learning_rate=3e-3),
        "eval": EvalConfig(every_steps=4, tokens=256),
        "checkpoint": CheckpointConfig(every_steps=4),
        "telemetry": TelemetryConfig(hz=0),
    }
    return RunConfig(**(defaults | changes))


def torchrun(folder, settings) -> subprocess.Popen:
    (folder / "run.yaml").write_text(dump_config(settings))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "trainer", str(folder / "run.yaml"), "--out", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def test_two_processes_equal_one_with_twice_the_micro_batch(tmp_path):
    for name in ("two", "one"):
        (tmp_path / name).mkdir()
    for process in start_many(tmp_path / "two", config(), 2):
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
    assert run(config(micro_batch=4), tmp_path / "one") is Outcome.COMPLETED
    two, one = (load_run_log(tmp_path / name / "log.jsonl") for name in ("two", "one"))
    assert two.header["world_size"] == 2 and two.header["tokens_per_step"] == one.header["tokens_per_step"] == 128
    for field in ("loss", "grad_norm"):
        assert [r[field] for r in two.steps] == pytest.approx([r[field] for r in one.steps], rel=1e-4)
    assert [r["tokens"] for r in two.steps] == [r["tokens"] for r in one.steps]
    assert [r["loss"] for r in two.evals] == pytest.approx([r["loss"] for r in one.evals], rel=1e-4)
    assert [r["tokens"] for r in two.evals] == [256, 256]
    assert two.final["outcome"] == "completed" and [r["step"] for r in two.checkpoints] == [4, 8]


def test_two_processes_learn_conversations_as_one_does(tmp_path):
    """Answers of one word and of forty: each process has another number of learnt tokens in every step."""
    sentence = "the cat sat on the mat and the dog sat on the log. "
    (tmp_path / "text.txt").write_text(sentence * 60)
    meta = prepare([tmp_path / "text.txt"], tmp_path / "text", vocab_size=300, validation_fraction=0.2)
    answers = ["cat", sentence * 4, "the mat", sentence] * 8
    lines = [[{"role": "user", "content": "?"}, {"role": "assistant", "content": said}] for said in answers]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": one}) + "\n" for one in lines))
    tokenizer = tmp_path / "text" / "tokenizer.json"
    prepare_conversations([tmp_path / "chats.jsonl"], tmp_path / "chats", tokenizer=tokenizer, validation_fraction=0.3)
    shape = make_shape("gpt2", depth=1, width=32, heads=2, vocab_size=meta.vocab_size, seq_len=96)
    changes = {"model": shape, "data": DataConfig(path=str(tmp_path / "chats")), "steps": 4}
    for name in ("two", "one"):
        (tmp_path / name).mkdir()
    for process in start_many(tmp_path / "two", config(micro_batch=1, **changes), 2):
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
    assert run(config(micro_batch=2, **changes), tmp_path / "one") is Outcome.COMPLETED
    two, one = (load_run_log(tmp_path / name / "log.jsonl") for name in ("two", "one"))
    for field in ("loss", "grad_norm"):
        assert [r[field] for r in two.steps] == pytest.approx([r[field] for r in one.steps], rel=1e-4)


def test_stopping_torchrun_leaves_a_checkpoint_from_which_one_process_can_go_on(tmp_path):
    settings = config(steps=100_000, eval=EvalConfig(tokens=0), checkpoint=CheckpointConfig())
    process = torchrun(tmp_path, settings)
    deadline = time.monotonic() + 300
    log = tmp_path / "log.jsonl"
    while not (log.exists() and any(r["kind"] == "step" for r in read_records(log)[0])):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=300)
    stopped = load_run_log(log)
    assert stopped.final is not None and stopped.final["outcome"] == "stopped", output
    assert stopped.checkpoints[-1]["step"] == stopped.final["step"]
    last = stopped.final["step"]
    settings = config(steps=last + 2, micro_batch=4, eval=EvalConfig(tokens=0))
    assert run(settings, tmp_path) is Outcome.COMPLETED
    resumed = load_run_log(log)
    assert resumed.header["resumed_from_step"] == last and resumed.steps[-1]["step"] == last + 2
    assert resumed.steps[-1]["tokens"] == (last + 2) * 128
