"""Text becomes tokens and back unchanged; what is not data is refused with file and line, leaving nothing behind."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.terminal import advisor, document
from trainer.corpus import STANDARD_LIBRARY_MAX_BYTES, gather
from trainer.prepare import PrepareError, prepare
from trainer.token_folder import DataError, read_meta

VOCAB = 300


def documents(count=40):
    return [f"Document {n}: naïve café – {n * n} ☃\r\n" + "the quick brown fox\n" * (n % 7) for n in range(count)]


def write_json_lines(file, texts, key="text"):
    file.write_text("".join(json.dumps({key: text}) + "\n" for text in texts), encoding="utf-8")
    return file


def decoded(folder):
    """All documents of both splits, as text; the splits' sizes are checked against the metadata on the way."""
    meta = read_meta(folder)
    encoder = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = []
    for name, prefix in (("tokens.bin", ""), ("val.bin", "validation_")):
        tokens = np.fromfile(folder / name, meta.dtype)
        ends = np.flatnonzero(tokens == meta.end_of_text)
        assert tokens.max() < meta.vocab_size and ends[-1] == len(tokens) - 1
        split = [encoder.decode(part[:-1].tolist()) for part in np.split(tokens, ends + 1)[:-1]]
        assert getattr(meta, f"{prefix}tokens") == len(tokens)
        assert getattr(meta, f"{prefix}bytes") == sum(len(text.encode()) for text in split)
        texts.append(split)
    assert meta.bytes_per_token == meta.bytes / meta.tokens
    return texts


def test_every_document_comes_back_unchanged_from_one_of_the_splits(tmp_path):
    texts = documents()
    meta = prepare([write_json_lines(tmp_path / "a.jsonl", texts)], tmp_path / "out", vocab_size=VOCAB)
    training, validation = decoded(tmp_path / "out")
    assert sorted(training + validation) == sorted(texts)
    assert [text for text in texts if text in set(training)] == training  # in the order they came
    assert meta == read_meta(tmp_path / "out")
    assert (meta.documents, meta.vocab_size, meta.dtype) == (40, VOCAB, "uint16")
    assert meta.sources == (str(tmp_path / "a.jsonl"),)


def test_validation_holds_the_fraction_asked_for(tmp_path):
    texts = [f"{n:05d} " + "x" * 94 for n in range(500)]
    file = write_json_lines(tmp_path / "a.jsonl", texts)
    meta = prepare([file], tmp_path / "out", vocab_size=VOCAB, validation_fraction=0.1)
    assert meta.validation_bytes == 5000 and meta.bytes == 45_000
    _, first = decoded(tmp_path / "out")
    assert first != texts[:50]  # drawn from all over, not cut off one end
    prepare([file], tmp_path / "other", vocab_size=VOCAB, validation_fraction=0.1, seed=2)
    assert decoded(tmp_path / "other")[1] != first


def test_the_same_text_gives_the_same_bytes(tmp_path):
    file = write_json_lines(tmp_path / "a.jsonl", documents())
    for name in ("one", "two"):
        prepare([file], tmp_path / name, vocab_size=VOCAB)
    for name in ("tokens.bin", "val.bin", "tokenizer.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_prepared_already_returns_at_once_and_a_change_prepares_again(tmp_path):
    file, out = write_json_lines(tmp_path / "a.jsonl", documents()), tmp_path / "out"
    stages = []

    def run(**settings):
        stages.clear()
        prepare([file], out, on_progress=lambda stage, done, total: stages.append(stage), **settings)
        return bool(stages)

    assert run(vocab_size=VOCAB)
    assert stages[0] == "read" and stages[-1] == "encode"
    assert not run(vocab_size=VOCAB)
    assert run(vocab_size=VOCAB + 1, force=True)
    write_json_lines(file, documents(41))
    assert run(vocab_size=VOCAB + 1, force=True)
    assert not run(vocab_size=VOCAB + 1, force=True)
    (out / "tokens.bin").write_bytes(b"\0\0")
    assert run(vocab_size=VOCAB + 1)
    assert not run(vocab_size=VOCAB + 1)
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "out"]


def test_all_formats_hold_the_same_documents(tmp_path):
    texts = documents()
    write_json_lines(tmp_path / "plain.jsonl", texts, key="body")
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress((tmp_path / "plain.jsonl").read_bytes()))
    pq.write_table(pa.table({"id": list(range(40)), "body": texts}), tmp_path / "table.parquet", row_group_size=7)
    for name in ("plain.jsonl", "packed.jsonl.gz", "table.parquet"):
        out = tmp_path / f"out-{name}"
        prepare([tmp_path / name], out, vocab_size=VOCAB, text_key="body")
        assert decoded(out) == decoded(tmp_path / "out-plain.jsonl")


def test_a_folder_is_read_recursively_in_sorted_order(tmp_path):
    source = tmp_path / "source"
    files = {"b.txt": "second", "a.md": "first", "c/d.py": "third", "empty.py": "", ".hidden.txt": "no", "x.png": "no"}
    files |= {".git/config.txt": "no", "__pycache__/e.py": "no"}
    for name, text in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    corpus = gather([source])
    assert [piece.text for piece in corpus.pieces(100)] == ["first", "second", "third"]
    assert corpus.passed_over == ["1 files .png"]


def test_a_long_text_is_cut_at_line_ends_so_that_a_part_can_be_held_out(tmp_path):
    text = "".join(f"line {n}\n" for n in range(2000))
    (tmp_path / "book.txt").write_text(text)
    meta = prepare([tmp_path / "book.txt"], tmp_path / "out", vocab_size=VOCAB)
    training, validation = decoded(tmp_path / "out")
    assert meta.documents == 1
    assert len(validation) == 1 and 0 < len(validation[0]) <= 1024
    assert all(part.endswith("\n") for part in training + validation)
    assert sorted("".join(training + validation).split("\n")) == sorted(text.split("\n"))


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200), st.integers(1, 50))
def test_parts_join_to_the_text(tmp_path_factory, text, max_chars):
    file = tmp_path_factory.mktemp("text") / "a.jsonl"
    file.write_text(json.dumps({"text": text}) + "\n")
    pieces = list(gather([file]).pieces(max_chars))
    assert "".join(piece.text for piece in pieces) == text
    assert all(0 < len(piece.text) <= max_chars for piece in pieces)
    assert [piece.starts_document for piece in pieces] == [n == 0 for n in range(len(pieces))]


def test_a_large_file_is_read_in_blocks_without_damage(tmp_path):
    text = "\ufeff" + "ab☃" * 900_000 + "\nend"  # 4.5 MB: three-byte characters lie across the blocks
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    pieces = [piece.text for piece in gather([tmp_path / "a.txt"]).pieces(1 << 20)]
    assert "".join(pieces) == text[1:]  # without the byte-order mark


def test_the_tokenizer_never_sees_held_out_text(tmp_path):
    words = [chr(97 + n) * 3 + "xyz" for n in range(20)]
    file = write_json_lines(tmp_path / "a.jsonl", [f"{word} " * 50 for word in words])
    prepare([file], tmp_path / "out", vocab_size=600, validation_fraction=0.2)
    training, validation = decoded(tmp_path / "out")
    known = set(json.loads((tmp_path / "out" / "tokenizer.json").read_text())["model"]["vocab"])
    assert all(text.split()[0] in known for text in training)
    assert len(validation) == 4
    assert not any(text.split()[0] in known for text in validation)


def test_end_of_text_written_inside_a_text_is_text(tmp_path):
    texts = ["before<|endoftext|>after", *documents()]
    prepare([write_json_lines(tmp_path / "a.jsonl", texts)], tmp_path / "out", vocab_size=VOCAB)
    training, validation = decoded(tmp_path / "out")
    assert texts[0] in training + validation


NOT_DATA = {
    "page.txt": (b"\n<!DOCTYPE html><html><body>404 Not Found", r"page.txt:1: an HTML page"),
    "page.jsonl": (b"<html><head><title>502 Bad Gateway", r"page.jsonl:1: an HTML page"),
    "page.parquet": (b"<?xml version='1.0'?><Error><Code>NoSuchKey", r"page.parquet:1: an XML document"),
    "page.gz.jsonl.gz": (b"<Error><Code>AccessDenied", r"page.gz.jsonl.gz:1: an XML error message"),
    "packed.jsonl.gz": (gzip.compress(b"<html>"), r"packed.jsonl.gz:1: an HTML page"),
    "pointer.txt": (b"version https://git-lfs.github.com/spec/v1\noid sha256:", r"pointer.txt:1: a Git LFS pointer"),
    "empty.txt": (b"", r"empty.txt is empty"),
    "blank.txt": (b" \n\n", r"blank.txt holds no text"),
    "nul.txt": (b"one\ntwo\0three", r"nul.txt:2: a binary file.*offset 7"),
    "latin.txt": ("one\ntwo\ncafé".encode("latin-1"), r"latin.txt:3: not UTF-8 text \(byte 0xe9 at offset 11\)"),
    "cut.txt": ("one\ncafé".encode()[:-1], r"cut.txt:2: not UTF-8 text \(byte 0xc3 at offset 7\)"),
    "broken.jsonl": (b'{"text": "a"}\n\n{"text": "b"\n', r"broken.jsonl:3: not valid JSON"),
    "nested.jsonl": (b"[" * 100_000, r"nested.jsonl:1: not valid JSON"),
    "bytes.jsonl": (b'{"text": "a"}\n{"text": "\xff"}\n', r"bytes.jsonl:2: not valid JSON"),
    "key.jsonl": (b'{"body": "a", "id": 1}\n', r"key.jsonl:1: no field 'text'; fields present: body, id"),
    "list.jsonl": (b'{"text": "a"}\n["b"]\n', r"list.jsonl:2: expected an object with 'text', found list"),
    "null.jsonl": (b'{"text": null}\n', r"null.jsonl:1: field 'text' is null"),
    "half.jsonl": (b'{"text": "a\\ud800"}\n', r"half.jsonl:1: .*half a surrogate pair at 1"),
    "cut.jsonl.gz": (
        gzip.compress(np.random.default_rng(0).bytes(4000).hex().encode())[:-900],
        r"cut.jsonl.gz: damaged or truncated gzip",
    ),
    "cut.parquet": (b"PAR1" + b"\1" * 500, r"cut.parquet: damaged or truncated Parquet"),
}


@pytest.mark.parametrize("name", NOT_DATA)
def test_what_is_not_data_is_refused_with_file_and_line(tmp_path, name):
    content, message = NOT_DATA[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PrepareError, match=message) as refusal:
        prepare([tmp_path / name], tmp_path / "out", vocab_size=VOCAB)
    assert refusal.value.hint
    assert os.listdir(tmp_path) == [name]


def test_parquet_without_the_column_names_those_present(tmp_path):
    pq.write_table(pa.table({"body": ["a"], "id": [1]}), tmp_path / "a.parquet")
    with pytest.raises(PrepareError, match="no column 'text'; columns present: body, id"):
        prepare([tmp_path / "a.parquet"], tmp_path / "out")
    with pytest.raises(PrepareError, match="column 'id' is int64, not text"):
        prepare([tmp_path / "a.parquet"], tmp_path / "out", text_key="id")


def test_a_null_in_parquet_is_refused_with_its_row(tmp_path):
    pq.write_table(pa.table({"text": ["a", "b", None]}), tmp_path / "a.parquet")
    with pytest.raises(PrepareError, match="row 3: column 'text' is null"):
        prepare([tmp_path / "a.parquet"], tmp_path / "out")


def test_an_error_beyond_the_first_block_has_its_offset(tmp_path):
    head = "☃\n".encode() * 300_000  # 1.2 MB; the block ends inside a character
    (tmp_path / "a.txt").write_bytes(head + b"x\xffy")
    with pytest.raises(PrepareError, match=rf"a.txt:300001: .*byte 0xff at offset {len(head) + 1}\)"):
        prepare([tmp_path / "a.txt"], tmp_path / "out")


def test_bad_input_can_be_left_out_and_is_listed(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    texts = documents()
    write_json_lines(source / "good.jsonl", texts)
    with (source / "good.jsonl").open("a") as stream:
        stream.write("not json\n" + json.dumps({"text": "last"}) + "\n")
    (source / "page.txt").write_text("<html>")
    with pytest.raises(PrepareError):
        prepare([source], tmp_path / "out", vocab_size=VOCAB)
    meta = prepare([source], tmp_path / "out", vocab_size=VOCAB, skip_bad=True)
    training, validation = decoded(tmp_path / "out")
    assert sorted(training + validation) == sorted([*texts, "last"])
    assert len(meta.skipped) == 2
    assert "good.jsonl:41: not valid JSON" in meta.skipped[0] and "page.txt:1" in meta.skipped[1]


@pytest.mark.parametrize("text", ["", "short"])
def test_too_little_text_is_refused(tmp_path, text):
    write_json_lines(tmp_path / "a.jsonl", [text])
    with pytest.raises(PrepareError, match="too few to hold out"):
        prepare([tmp_path / "a.jsonl"], tmp_path / "out")


@pytest.mark.parametrize(("setting", "value"), [("vocab_size", 256), ("validation_fraction", 0.0)])
def test_impossible_settings_are_refused(tmp_path, setting, value):
    with pytest.raises(PrepareError, match=f"{setting} {value}"):
        prepare(None, tmp_path / "out", **{setting: value})


def test_a_folder_with_other_files_is_never_replaced(tmp_path):
    file = write_json_lines(tmp_path / "a.jsonl", documents())
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.doc").write_text("years of work")
    with pytest.raises(PrepareError, match="holds thesis.doc"):
        prepare([file], out, vocab_size=VOCAB)
    with pytest.raises(PrepareError, match="is a file"):
        prepare([file], file, vocab_size=VOCAB)
    assert (out / "thesis.doc").read_text() == "years of work"


def test_other_tokens_are_replaced_only_by_force(tmp_path):
    file, out = write_json_lines(tmp_path / "a.jsonl", documents()), tmp_path / "out"
    meta = prepare([file], out, vocab_size=VOCAB)
    with pytest.raises(PrepareError, match="a.jsonl, vocabulary 300") as caught:
        prepare([file], out, vocab_size=VOCAB + 1)
    assert "--force" in caught.value.hint
    other = write_json_lines(tmp_path / "b.jsonl", documents(50))
    with pytest.raises(PrepareError, match="holds other data"):
        prepare([other], out, vocab_size=VOCAB)
    assert read_meta(out) == meta
    assert prepare([other], out, vocab_size=VOCAB, force=True).documents == 50


def test_a_failure_leaves_the_older_folder_in_place(tmp_path):
    file, out = write_json_lines(tmp_path / "a.jsonl", documents()), tmp_path / "out"
    meta = prepare([file], out, vocab_size=VOCAB)
    file.write_text("{}\n")
    with pytest.raises(PrepareError):
        prepare([file], out, vocab_size=VOCAB, force=True)
    assert read_meta(out) == meta
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "out"]


FULL_DISK = """
import resource, sys
from pathlib import Path
from trainer.prepare import PrepareError, prepare
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    prepare([Path(sys.argv[1])], Path(sys.argv[2]), vocab_size=300)
except PrepareError as error:
    print(error.message, error.hint, sep="|")
"""


def test_a_write_that_fails_is_one_error_and_leaves_nothing(tmp_path):
    """The system refuses to let a child write more than 20 kB to a file, as a full disk would."""
    file = write_json_lines(tmp_path / "a.jsonl", documents(2000))
    command = [sys.executable, "-c", FULL_DISK, str(file), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    message, hint = done.stdout.strip().split("|")
    assert message.startswith(f"cannot write {tmp_path / 'out'}: ") and "free space" in hint
    assert os.listdir(tmp_path) == ["a.jsonl"]


def test_a_given_tokenizer_is_used_whole(tmp_path):
    words = {f"w{n}": n + 5 for n in range(70_000)} | {"[UNK]": 0}
    encoder = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    encoder.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    encoder.add_special_tokens(["</s>"])
    encoder.enable_truncation(3)
    encoder.enable_padding(length=50)
    encoder.save(str(tmp_path / "t.json"))
    end = encoder.token_to_id("</s>")
    file = write_json_lines(tmp_path / "a.jsonl", ["w0 w1 w2 w69999 w4", "w5"])
    meta = prepare([file], tmp_path / "out", tokenizer=tmp_path / "t.json")
    found = [np.fromfile(tmp_path / "out" / name, "<u4").tolist() for name in ("tokens.bin", "val.bin")]
    assert sorted(found) == sorted([[5, 6, 7, 70_004, 9, end], [10, end]])
    assert (meta.dtype, meta.vocab_size) == ("uint32", 70_005)  # the largest token and one; the ids have gaps


def test_a_useless_tokenizer_is_refused(tmp_path):
    file = write_json_lines(tmp_path / "a.jsonl", documents())
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(PrepareError, match="is not a tokenizer"):
        prepare([file], tmp_path / "out", tokenizer=tmp_path / "t.json")
    with pytest.raises(PrepareError, match="cannot read tokenizer"):
        prepare([file], tmp_path / "out", tokenizer=tmp_path / "none.json")
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "t.json"))
    with pytest.raises(PrepareError, match="no end-of-text token"):
        prepare([file], tmp_path / "out", tokenizer=tmp_path / "t.json")


def test_missing_input_is_refused(tmp_path):
    with pytest.raises(DataError, match="none.txt does not exist"):
        prepare([tmp_path / "none.txt"], tmp_path / "out")
    with pytest.raises(DataError, match="nothing to read"):
        prepare([tmp_path], tmp_path / "out")


def test_the_default_corpus_is_the_standard_library():
    corpus = gather(None)
    assert [file.name for file in corpus.files] == [file.name for file in gather(None).files]
    assert 8_000_000 < corpus.stored_bytes <= STANDARD_LIBRARY_MAX_BYTES
    names = {file.name for file in corpus.files}
    assert {"argparse.py", "topics.py"} <= names  # sources with docstrings, and the language reference
    assert not any("site-packages" in file.parts for file in corpus.files)
    assert sum(1 for _ in corpus.pieces(1 << 20)) >= 500


def test_the_command_prints_one_document_and_errors_with_a_next_step(tmp_path):
    file, out = write_json_lines(tmp_path / "a.jsonl", documents()), tmp_path / "out"
    words = ("data", "prepare", file, "--out", out, "--vocab-size", VOCAB)
    assert document(*words) == {"path": str(out), **json.loads((out / "meta.json").read_text())}
    done = advisor(*words, "--json")
    assert "not 300" not in done.stderr
    small = advisor("data", "prepare", str(file), "--out", str(tmp_path / "small"), "--vocab-size", "9000")
    assert f"has {read_meta(tmp_path / 'small').vocab_size} tokens, not 9,000" in small.stderr
    shown = advisor("data", "show", str(out))
    assert shown.returncode == 0 and "40" in shown.stdout and "stored as uint16" in shown.stdout
    failed = advisor("data", "show", str(tmp_path))
    assert failed.returncode == 1 and "Traceback" not in failed.stderr
    # The folder of the texts itself is never where the tokens go.
    assert f"hint: advisor data prepare {tmp_path} --out {tmp_path}-tokens" in failed.stderr


@pytest.mark.parametrize("wrong", [("--vocab-size", "256"), ("--validation-fraction", "0.6")])
def test_settings_out_of_range_are_wrong_usage(tmp_path, wrong):
    failed = advisor("data", "prepare", "--out", str(tmp_path / "out"), *wrong)
    assert failed.returncode == 2 and f"{wrong[0]} {wrong[1]}: must be at" in failed.stderr
