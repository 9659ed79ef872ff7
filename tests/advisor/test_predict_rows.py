"""`advisor predict --rows`: each row is the command with the options that its cells state."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest

from tests.terminal import advisor, document

LLAMA = "--model llama-3.1-8b --micro-batch 1"
COMMANDS = (
    "--gpu h100 --model gpt2 --micro-batch 8",
    "--gpu 4090 --depth 12",  # micro-batch, context and vocabulary are not given
    f"--gpu 8xh100 {LLAMA} --zero 2 --seq-len 4096",
    f"--gpu a100-80gb-sxm --gpus 8 {LLAMA} --sharding full --software hf-trainer",
    f"--gpu 4090 {LLAMA} --lora-rank 16 --software trl",
    f"--gpu 4090 {LLAMA} --lora-rank 8 --qlora --lora-targets attention --activation-checkpointing full",
    f"--gpu 4090 {LLAMA}",  # does not fit: what would
    "--gpu 8xh100 --model mixtral-8x7b --tokens 1T --download-rate 100MB",
    "--gpu h100 --gpus 64 --model llama-3-70b --tp 8 --pp 4 --vpp 2 --grad-accum 16 --software megatron",
    "--gpu h100 --gpus 16 --model qwen3-30b-a3b --ep 8 --precision fp8",
    "--gpu a100-40gb-pcie --gpus 16 --model llama-3.1-8b",  # two machines
    "--gpu l4 --family llama --depth 8 --width 1024 --heads 16 --kv-heads 4 --ffn-width 3072 --tied --no-compile",
    "--gpu v100-32gb-sxm2 --model gpt2-xl --optimizer muon --depths 12,24 --compile",  # nobody rents it
    "--gpu tpu-v4 --gpus 8 --depth 12 --micro-batch 4",  # nothing says what joins them, so no time
    "--gpu h900 --model gpt2",
    "--gpu l4 --depth 12 --heads 7",
    "--gpu l4",
    "--gpu l4 --depth twelve",
    "--gpu 8xh100 --model llama-3-70b --tp 3",
    "--gpu l4 --model gpt2 --seq-len 3",
)


def cells_of(command: str) -> dict[str, str]:
    """Return a command's options as cells: yes for an option without a value, no for its opposite."""
    cells = {}
    for option in command.split("--")[1:]:
        name, _, value = option.strip().partition(" ")
        cells[name.removeprefix("no-")] = value or ("no" if name.startswith("no-") else "yes")
    return cells


def table(path: Path, rows: list[dict[str, str]]) -> Path:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def lines(path: Path, expect: int = 0) -> list[dict]:
    return [json.loads(line) for line in advisor("predict", "--rows", path, expect=expect).stdout.splitlines()]


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> dict[str, dict]:
    path = table(tmp_path_factory.mktemp("rows") / "rows.csv", [cells_of(command) for command in COMMANDS])
    found = lines(path)
    assert [row.pop("row") for row in found] == list(range(1, len(COMMANDS) + 1))
    return dict(zip(COMMANDS, found, strict=True))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_row_is_the_command_with_its_options(rows: dict[str, dict], command: str):
    row = rows[command]
    if "error" in row:
        said = advisor("predict", *command.split(), expect=2).stderr
        assert row["error"].rpartition(": ")[2] in said and (row["hint"] in said or "is no whole" in said)
    else:
        assert row == document("predict", *command.split(), expect=3 if row["fits"] is False else 0)


def test_what_a_row_says_beside_its_numbers(rows: dict[str, dict]):
    assert "error" not in rows[COMMANDS[12]] and sum("error" in row for row in rows.values()) == 6
    assert (
        "--seq-len 2048" in rows[COMMANDS[1]]["assumed"] and "link between 8 GPUs" in rows[COMMANDS[13]]["time_unknown"]
    )
    assert rows[COMMANDS[6]]["would_fit"] and rows[COMMANDS[10]]["network"]
    assert rows[COMMANDS[11]]["workload"]["compile"] is False


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("layers,dim,n_gpus", ("layers is now depth", "dim is now width", "n_gpus is now gpus")),
        ("gpu,act_ckpt,flash_attn,parallelism", ("act_ckpt is now activation-checkpointing", "flash_attn is now soft",
                                                 "parallelism is now sharding, tp, pp, cp and ep")),
        ("gpu,micro_bach,colour", ("micro_bach is no option (did you mean micro_batch", "colour is no option")),
        ("gpu,depth,tensor-parallel-size", ("tensor-parallel-size is now tp",)),
        ("gpu,micro-batch,Micro_Batch", ("Micro_Batch occurs twice",)),
        ("", ("there is no column",)),
    ],
)  # fmt: skip
def test_all_columns_that_are_no_options_are_named_at_once(tmp_path: Path, header: str, words: tuple[str, ...]):
    path = tmp_path / "rows.csv"
    path.write_text(f"{header}\nl4,12,8\n", encoding="utf-8")
    done = advisor("predict", "--rows", path, expect=2)
    assert done.stdout == "" and not [said for said in words if said not in done.stderr]


def test_columns_that_nothing_reads_and_how_names_and_cells_may_be_written(tmp_path: Path):
    path = tmp_path / "rows.csv"
    head = "\ufeff,name,GPU,Micro_Batch, grad-accum,params,family,#colour,step_seconds"
    path.write_text(f"{head}\n0,mine,l4, 8 ,2,124M,gpt2,red,0.5\n\n1,short,l4,8\n", encoding="utf-8")
    first, second = lines(path)
    assert (first["workload"]["micro_batch"], first["workload"]["grad_accum"]) == (8, 2)
    assert first["parameters"] == pytest.approx(124e6, rel=0.05)
    assert second["row"] == 2 and "no model is given" in second["error"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"gpu,depth\nl4,12\nl4,4,8\n", "line 3: 3 cells under 2 columns"),
        (b"gpu,depth\nl4,12\n\xff\xfe\x00\n", "is not a CSV file"),
    ],
)
def test_a_broken_file_is_refused_before_its_first_answer(tmp_path: Path, content: bytes, words: str):
    (tmp_path / "rows.csv").write_bytes(content)
    done = advisor("predict", "--rows", tmp_path / "rows.csv", expect=2)
    assert words in done.stderr and done.stdout == ""


def test_equal_rows_are_predicted_once_and_a_table_that_fits_nowhere_is_3(tmp_path: Path):
    kinds, made = [cells_of(f"--gpu l4 --model gpt2 --micro-batch {size}") for size in (4, 8)], Counter[str]()

    def count(frame: FrameType, event: str, _: object) -> None:
        made[frame.f_code.co_name] += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        found = lines(table(tmp_path / "many.csv", kinds * 500))
    finally:
        sys.setprofile(before)
    assert len(found) == 1000 and made["predict_batch"] == 2
    assert {**found[0], "row": 999} == found[998]
    none = table(tmp_path / "none.csv", [cells_of("--gpu tpu-v4 --model llama-3.1-8b")])
    assert advisor("predict", "--rows", none, expect=3).stderr.startswith(
        "warning: the trainer was never run on tpu-v4"
    )
    assert lines(table(tmp_path / "both.csv", [*kinds, cells_of("--gpu l4 --model llama-3.1-8b")]))


def test_options_beside_a_table_are_refused():
    done = advisor("predict", "--gpu", "l4", "--rows", __file__, expect=2)
    assert "--gpu cannot be combined with --rows" in done.stderr
