"""Folders and archives as one run, configurations in every notation, and what files of strangers must never do."""

from __future__ import annotations

import dataclasses
import gzip
import json
import pickle
import tarfile
import zipfile
from pathlib import Path

import pytest

from advisor.errors import AdvisorError
from advisor.readers import archive
from advisor.readers.config_names import read_config
from advisor.readers.folder import step_of, with_facts
from advisor.readers.read import read_run
from advisor.readers.run_table import Status
from advisor.readers.telemetry_file import read_telemetry

RECORDED = Path(__file__).parents[1] / "recorded" / "logs"
OWN = Path(__file__).parents[2] / "recorded"


def copy(name, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes((RECORDED / name).read_bytes())


def hugging_face_folder(folder):
    """Two checkpoints, the newer with the whole history; telemetry and the launcher's stderr beside."""
    for step in (20, 40):
        inside = folder / f"checkpoint-{step}"
        inside.mkdir(parents=True)
        (inside / "model.safetensors").write_bytes(bytes(3000))
        (inside / "optimizer.pt").write_bytes(bytes(6000))
        (inside / "training_args.bin").write_bytes(bytes(5000))
        (inside / "config.json").write_text('{"architectures": ["X"], "num_hidden_layers": 3, "n_positions": 32768}')
    copy("trainer_state.json", folder / "checkpoint-40" / "trainer_state.json")
    (folder / "checkpoint-20" / "trainer_state.json").write_text(
        '{"log_history": [{"loss": 9.9, "step": 10}], "global_step": 20}'
    )
    copy("headerless_smi.csv", folder / "gpu.csv")
    (folder / "args.json").write_text(
        '{"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "max_steps": 60}'
    )
    (folder / "job.err").write_text(
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***\n"
    )
    return folder


def check_hugging_face(table):
    assert (table.format, table.rows, table.last_step) == ("hf_trainer_state", 4, 40)
    saved = [(event.text, event.step, event.numbers["bytes"]) for event in table.events if event.kind == "checkpoint"]
    assert saved == [("checkpoint-20", 20, 9000), ("checkpoint-40", 40, 9000)]
    assert table.facts["depth"] == 3 and table.facts["grad_accum"] == 8
    assert "seq_len" not in table.facts  # the model's limit is not what it was trained at
    assert table.facts["planned_steps"] == 50 and any("args.json says planned_steps 60" in note for note in table.notes)
    assert len(table.telemetry["power_watts"]) == 3


def test_folder_of_hugging_face(tmp_path):
    table = read_run(hugging_face_folder(tmp_path / "out"))
    check_hugging_face(table)
    assert table.status == Status.TIME_LIMIT and "job.err" in table.status_reason


@pytest.mark.parametrize(
    ("bar", "place", "note"),
    [
        ("", "after step 550 of 3000", None),
        ("\r 18%|#8  | 540/3000 [09:00<41:00,  1.00s/it]", "after step 550 of 3000", None),
        ("\r 18%|#8  | 553/3000 [09:13<40:47,  1.00s/it]", "after step 553 of 3000", None),
        (
            "\r  0%|   | 1/1200 [00:09<3:03:14,  9.17s/it]",
            "after step 550 of 3000",
            "counts to 1,200 steps, and the log to",
        ),
    ],
)
def test_log_and_stderr_agree_how_far_the_run_was(tmp_path, bar, place, note):
    rows = (f"step {step}/3000 | loss {4 - step / 3000:.4f} | step time 1.000 s\n" for step in range(10, 551, 10))
    (tmp_path / "job.out").write_text("".join(rows))
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB.\n"
    (tmp_path / "job.err").write_text(f"{bar}Traceback (most recent call last):\n{oom}")
    table = read_run(tmp_path)
    assert table.status == Status.OUT_OF_MEMORY and f"out of memory {place}: " in table.status_reason
    assert table.last_step == 550
    assert any("is it of the same run?" in text for text in table.notes) == (note is not None)
    assert note is None or any(note in text for text in table.notes)


def test_folder_of_wandb(tmp_path):
    files = tmp_path / "run-1" / "files"
    copy("wandb_config.yaml", files / "config.yaml")
    copy("wandb-events.jsonl", files / "wandb-events.jsonl")
    copy("wandb-summary.json", files / "wandb-summary.json")
    rows = (json.dumps({"_step": step, "train/loss": 5 - step / 10, "_runtime": step * 2.0}) for step in range(20))
    (files / "wandb-history.jsonl").write_text("\n".join(rows) + "\n")
    (files / "wandb-metadata.json").write_text(
        '{"gpu": "NVIDIA L4", "gpu_count": 2, "gpu_nvidia": [{"memoryTotal": "24152899584"}]}'
    )
    for given in (tmp_path / "run-1", files):
        table = read_run(given)
        assert (table.rows, table.first_loss, table.last_step) == (20, 5.0, 19)
        assert table.facts["gpu"] == "NVIDIA L4" and table.facts["world_size"] == 2
        assert table.facts["gpu_memory_bytes"] == 24152899584
        assert table.facts["depth"] == 12 and table.facts["total_seconds"] == 600.5
        assert table.telemetry["power_watts"].tolist() == [280.5, 284.0]
        assert (table.status, table.status_reason) == (Status.INCOMPLETE, "the log ends at step 19 of 6000")


def test_our_own_run_folder(tmp_path):
    (tmp_path / "log.jsonl").write_bytes((OWN / "small.jsonl").read_bytes())
    (tmp_path / "run.yaml").write_bytes((OWN / "small.run.yaml").read_bytes())
    (tmp_path / "stdout.log").write_text("step 1/60 loss 9.9\n" * 100)
    table = read_run(tmp_path)
    assert (table.format, table.rows, table.last_step, table.status) == ("training-advisor", 60, 60, Status.COMPLETED)


def test_config_and_telemetry_given_beside_a_log(tmp_path):
    config = tmp_path / "train.yaml"
    config.write_text("n_layer: 6\nmax_iters: 401\n")
    csv = tmp_path / "run.csv"
    csv.write_text("step,loss\n" + "".join(f"{100 * n},{7 - n / 10}\n" for n in range(1, 5)))
    table = with_facts(read_run(csv), read_config(config), config.name)
    table = dataclasses.replace(table, telemetry=read_telemetry(RECORDED / "nvidia_smi.csv"))
    assert table.facts == {"depth": 6, "planned_steps": 401}
    assert table.status == Status.COMPLETED  # step 400 of 401, counted from 0
    assert table.telemetry["gpu"].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("content", ["", "notes.md"])
def test_folders_without_a_log_are_refused(tmp_path, content):
    if content:
        (tmp_path / content).write_text("# nothing\n")
    with pytest.raises(AdvisorError, match="holds no training log"):
        read_run(tmp_path)


def test_links_out_of_a_folder_are_not_followed(tmp_path):
    secret = tmp_path / "elsewhere.csv"
    secret.write_text("step,loss\n1,2.5\n2,2.25\n")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.csv").symlink_to(secret)
    with pytest.raises(AdvisorError, match="holds no training log"):
        read_run(folder)


# --- archives


def zipped(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in files.items():
            out.writestr(name, data)
    return path


@pytest.mark.parametrize("name", ["../evil.csv", "/tmp/evil.csv", "a/../../evil.csv", "..\\evil.csv", "C:/evil.csv"])
def test_a_packed_log_is_written_nowhere_else(tmp_path, name):
    inside = tmp_path / "x"
    inside.mkdir()
    assert read_run(zipped(inside / "a.zip", {name: "step,loss\n1,2.5\n2,2.25\n"})).rows == 2
    assert not list(tmp_path.glob("**/*evil*")) and not Path("/tmp/evil.csv").exists()


def test_archives_of_more_than_one_log_are_to_be_unpacked(tmp_path, monkeypatch):
    with pytest.raises(AdvisorError, match="holds 4 files: a log is one of them"):
        read_run(zipped(tmp_path / "a.zip", {f"{n}.csv": "x" for n in range(4)}))
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as out:
        out.add(RECORDED / "metrics.csv", "metrics.csv")
    with pytest.raises(AdvisorError, match="is a tar archive"):
        read_run(tmp_path / "a.tgz")
    monkeypatch.setattr(archive, "MOST_BYTES", 2**20)
    with pytest.raises(AdvisorError, match="far more than"):
        read_run(zipped(tmp_path / "b.zip", {"log.txt": bytes(2**21)}))


class Trap:
    """Unpickling it would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_nothing_is_ever_unpickled(tmp_path):
    mark = tmp_path / "executed"
    payload = pickle.dumps(Trap(mark))
    packed = zipped(tmp_path / "model.pt", {"model/data.pkl": payload, "model/version": "3"})
    with pytest.raises(AdvisorError, match="never loaded"):
        read_run(packed)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "training_args.bin").write_bytes(payload)
    (folder / "state.pkl").write_bytes(payload)
    copy("metrics.csv", folder / "metrics.csv")
    assert read_run(folder).rows == 4
    assert not mark.exists()


def test_damaged_archives_are_refused(tmp_path):
    packed = zipped(tmp_path / "a.zip", {"metrics.csv": "step,loss\n1,2.5\n" * 500})
    data = packed.read_bytes()
    for cut in (data[: len(data) // 2], data[:40] + bytes(20) + data[60:]):
        packed.write_bytes(cut)
        with pytest.raises(AdvisorError):
            read_run(packed)


def test_an_archive_of_one_packed_file_is_that_file(tmp_path):
    packed = zipped(tmp_path / "a.zip", {"deep/metrics.csv.gz": gzip.compress((RECORDED / "metrics.csv").read_bytes())})
    table = read_run(packed)
    assert (table.rows, table.source) == (4, str(packed))


# --- checkpoints


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("step-00000100", 100),
        ("iter_0001000", 1000),
        ("global_step2000", 2000),
        ("ckpt_2000.pt", 2000),
        ("model_004000.pt", 4000),
        ("epoch=3-step=1200.ckpt", 1200),
        ("ep0-ba4800-rank0.pt", 4800),
        ("ckpt.pt", None),
        ("model-00001-of-00002.safetensors", None),
        ("best.pt", None),
        ("gpt2-large.bin", None),
    ],
)
def test_steps_in_the_names_of_checkpoints(name, step):
    assert step_of(name) == step


def test_output_of_wandb_is_read_in_the_programs_own_format(tmp_path):
    files = tmp_path / "files"
    copy("nanogpt_bits.log", files / "output.log")
    copy("wandb_config.yaml", files / "config.yaml")
    copy("wandb-summary.json", files / "wandb-summary.json")
    alone, table = read_run(RECORDED / "nanogpt_bits.log"), read_run(tmp_path)
    assert (table.format, table.rows, table.last_loss) == ("nanogpt", alone.rows, alone.last_loss)
    assert table.facts["depth"] == 12 and table.facts["total_seconds"] == 600.5
