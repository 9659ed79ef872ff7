"""Batches are a pure function of the step; a token folder that does not fit is refused with a next step."""

from __future__ import annotations

import json
import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.data import DataError, SyntheticTokens, TokenFolder, open_tokens, permute
from trainer.schema import DataConfig

SEQ_LEN = 8


def write_folder(folder, train, validation, *, dtype="uint16", vocab_size=1000, **changes):
    folder.mkdir(exist_ok=True)
    np.asarray(train, dtype).tofile(folder / "tokens.bin")
    np.asarray(validation, dtype).tofile(folder / "val.bin")
    meta = {
        "schema": 1,
        "created": "2026-01-01T00:00:00+00:00",
        "vocab_size": vocab_size,
        "dtype": dtype,
        "end_of_text": 0,
        "documents": 1,
        "bytes": 4 * len(train),
        "tokens": len(train),
        "validation_tokens": len(validation),
        "validation_bytes": 3 * len(validation),
        "bytes_per_token": 4.0,
        "sources": [],
        "skipped": [],
        "fingerprint": "",
    }
    (folder / "meta.json").write_text(json.dumps(meta | changes))
    return folder


@pytest.fixture
def folder(tmp_path):
    """Tokens that equal their position, so that a window tells where it was cut."""
    return write_folder(tmp_path / "tokens", np.arange(1000), np.arange(205))


def both_sources(folder):
    return [TokenFolder(folder, 1000, SEQ_LEN, 5), SyntheticTokens(1000, SEQ_LEN, 5)]


def starts(source, steps, micro_batch=4):
    return [int(row[0]) for step in steps for row in source.train_batch(step, 0, 0, 1, micro_batch, 1)[0]]


@given(st.integers(1, 5000), st.integers(0, 2**64 - 1))
def test_permute_is_one_to_one(count, key):
    assert np.array_equal(np.sort(permute(np.arange(count), count, key)), np.arange(count))


def test_permute_scatters_neighbours_and_depends_on_its_key():
    count = 100_003
    orders = [permute(np.arange(count), count, key) for key in range(8)]
    for order in orders:
        # Distances between neighbours of a random order average a third of the range, with a spread of 1/sqrt(18 n).
        assert abs(np.abs(np.diff(order)).mean() / count - 1 / 3) < 0.005
        assert abs(np.corrcoef(np.arange(count), order)[0, 1]) < 0.02
    agreements = (orders[0] == orders[1]).sum()
    assert agreements < 20  # expected: one


def test_an_epoch_visits_each_window_once_and_the_next_cuts_elsewhere(folder):
    source = TokenFolder(folder, 1000, SEQ_LEN, 5)
    windows = (1000 - SEQ_LEN) // SEQ_LEN
    assert windows == 124
    first, second = starts(source, range(31)), starts(source, range(31, 62))
    for epoch in (first, second):
        ordered = sorted(epoch)
        assert set(np.diff(ordered)) == {SEQ_LEN}
        assert len(epoch) == windows
        assert epoch != ordered
    assert first[0] % SEQ_LEN != second[0] % SEQ_LEN
    assert [a // SEQ_LEN for a in first] != [b // SEQ_LEN for b in second]


def test_a_batch_may_straddle_two_epochs(folder):
    source = TokenFolder(folder, 1000, SEQ_LEN, 5)
    one_by_one = starts(source, range(3 * 124), micro_batch=1)
    assert starts(source, range(4), micro_batch=93) == one_by_one


def test_targets_are_inputs_one_later(folder):
    for source in both_sources(folder):
        inputs, targets = source.train_batch(3, 1, 0, 2, 4, 2)
        assert inputs.shape == targets.shape == (4, SEQ_LEN)
        assert inputs.dtype == targets.dtype == torch.int64
        assert inputs.is_contiguous() and targets.is_contiguous()
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
    inputs, targets = TokenFolder(folder, 1000, SEQ_LEN, 5).train_batch(0, 0, 0, 1, 4, 1)
    assert torch.equal(inputs + 1, targets)


def test_batches_are_a_pure_function_of_step_and_seed(folder):
    for source, fresh in zip(both_sources(folder), both_sources(folder), strict=True):
        forwards = [source.train_batch(step, 0, 0, 1, 4, 1)[0] for step in range(40)]
        backwards = [fresh.train_batch(step, 0, 0, 1, 4, 1)[0] for step in reversed(range(40))]
        assert all(torch.equal(a, b) for a, b in zip(forwards, reversed(backwards), strict=True))
    other = TokenFolder(folder, 1000, SEQ_LEN, 6)
    assert starts(other, range(31)) != starts(TokenFolder(folder, 1000, SEQ_LEN, 5), range(31))


def test_streams_never_change_between_versions(folder):
    """A run resumed after an upgrade must see the data it would have seen: these numbers are frozen."""
    assert starts(TokenFolder(folder, 1000, SEQ_LEN, 5), range(2)) == GOLDEN_STARTS
    assert SyntheticTokens(1000, SEQ_LEN, 5).train_batch(0, 0, 0, 1, 2, 1)[0].tolist() == GOLDEN_SYNTHETIC


@pytest.mark.parametrize(("world_size", "micro_batch", "grad_accum"), [(1, 8, 1), (2, 4, 1), (4, 1, 2), (1, 2, 4)])
def test_a_step_holds_the_same_samples_however_it_is_split(folder, world_size, micro_batch, grad_accum):
    for source in both_sources(folder):
        whole = source.train_batch(7, 0, 0, 1, 8, 1)[0]
        parts = [
            source.train_batch(7, micro, rank, world_size, micro_batch, grad_accum)[0]
            for micro in range(grad_accum)
            for rank in range(world_size)
        ]
        assert torch.equal(torch.cat(parts), whole)


def test_evaluation_repeats_itself_in_batches_of_one_size(folder):
    for source in both_sources(folder):
        once, again = list(source.eval_batches(100, 4)), list(source.eval_batches(100, 4))
        assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(once, again, strict=True))
        assert [tuple(inputs.shape) for inputs, _ in once] == [(4, SEQ_LEN)] * 3  # 13 windows, whole batches of 4
        assert [inputs.shape[0] for inputs, _ in source.eval_batches(17, 4)] == [3]
        assert list(source.eval_batches(0, 4)) == []


def test_evaluation_is_spread_over_the_split_and_stays_inside(folder):
    source = TokenFolder(folder, 1000, SEQ_LEN, 5)
    few = [int(row[0]) for inputs, _ in source.eval_batches(5 * SEQ_LEN, 1) for row in inputs]
    assert few == [0, 40, 80, 120, 160]  # 25 windows fit into 205 tokens: every fifth
    everything = [int(row[0]) for inputs, _ in source.eval_batches(10**9, 1) for row in inputs]
    assert everything == list(range(0, 200, SEQ_LEN))


def test_what_is_known_of_the_data(folder):
    real, synthetic = both_sources(folder)
    assert (real.unique_tokens, real.bytes_per_token) == (1000, 3.0)  # bytes per token of the validation split
    assert real.meta.tokens == 1000
    assert (synthetic.unique_tokens, synthetic.bytes_per_token, synthetic.meta) == (None, None, None)


def test_the_smallest_folder_that_holds_one_window(tmp_path):
    tokens = np.arange(SEQ_LEN + 1)
    source = TokenFolder(write_folder(tmp_path / "tiny", tokens, tokens), 1000, SEQ_LEN, 5)
    assert starts(source, range(5), micro_batch=1) == [0] * 5


@given(st.integers(9, 60), st.integers(1, 8), st.integers(0, 200))
def test_windows_stay_inside_the_file(tmp_path_factory, count, seq_len, step):
    folder = write_folder(tmp_path_factory.mktemp("data") / "tokens", np.arange(count), np.arange(count))
    inputs, targets = TokenFolder(folder, 1000, seq_len, 5).train_batch(step, 0, 0, 1, 3, 1)
    assert torch.equal(inputs + 1, targets)
    assert int(targets.max()) < count


def test_tokens_beyond_the_vocabulary_are_refused_with_both_sizes(tmp_path):
    promised = write_folder(tmp_path / "a", np.arange(1000), np.arange(100), vocab_size=1000)
    with pytest.raises(DataError, match="1000 tokens.*vocab_size 512") as refusal:
        TokenFolder(promised, 512, SEQ_LEN, 5)
    assert "--vocab-size 512" in refusal.value.hint
    held = write_folder(tmp_path / "b", [*range(900), 70_000], np.arange(100), dtype="uint32", vocab_size=512)
    with pytest.raises(DataError, match=r"tokens\.bin.*70001 tokens.*vocab_size 512"):
        TokenFolder(held, 512, SEQ_LEN, 5)


def test_four_byte_tokens_are_read(tmp_path):
    tokens = np.arange(1000) + 65_536
    folder = write_folder(tmp_path / "wide", tokens, np.arange(100), dtype="uint32", vocab_size=70_000)
    inputs, targets = TokenFolder(folder, 70_000, SEQ_LEN, 5).train_batch(0, 0, 0, 1, 2, 1)
    assert int(inputs.min()) >= 65_536 and torch.equal(inputs + 1, targets)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "meta.json").unlink(), "no meta.json"),
        (lambda folder: (folder / "meta.json").write_text("{"), "damaged"),
        (lambda folder: (folder / "meta.json").write_text("[]"), "expected an object"),
        (lambda folder: (folder / "meta.json").write_text('{"schema": 1}'), "missing or wrong created, vocab_size"),
        (lambda folder: (folder / "meta.json").write_text('{"schema": 99}'), "schema 99"),
        (lambda folder: (folder / "val.bin").unlink(), "cannot read .*val.bin"),
        (lambda folder: (folder / "tokens.bin").write_bytes(b"\0" * 1998), "holds 1998 bytes .* promises 2000"),
    ],
)
def test_a_damaged_folder_is_refused(folder, spoil, message):
    spoil(folder)
    with pytest.raises(DataError, match=message) as refusal:
        TokenFolder(folder, 1000, SEQ_LEN, 5)
    assert refusal.value.hint


def test_a_file_that_shrinks_while_it_is_read_is_an_error_in_words_and_kills_nobody(folder):
    source = TokenFolder(folder, 1000, SEQ_LEN, 5)
    os.truncate(folder / "tokens.bin", 100)
    with pytest.raises(DataError, match="tokens.bin ends at byte 100; it had 2000 when the run began") as refusal:
        for step in range(31):
            source.train_batch(step, 0, 0, 1, 4, 1)
    assert "restore it and resume" in refusal.value.hint


def test_a_missing_folder_names_the_command_that_makes_one(tmp_path):
    with pytest.raises(DataError, match="does not exist") as refusal:
        open_tokens(DataConfig(path=str(tmp_path / "none")), 1000, SEQ_LEN, 5)
    assert refusal.value.hint == f"advisor data prepare FILES --out {tmp_path / 'none'}"


def test_too_little_text_for_one_window_is_refused(folder):
    with pytest.raises(DataError, match="val.bin holds 205 tokens; one window of seq_len 512 needs 513") as refusal:
        TokenFolder(folder, 1000, 512, 5)
    assert "--validation-fraction" in refusal.value.hint


@pytest.mark.parametrize("vocab_size", [1, 2, 100, 65_536])
def test_synthetic_tokens_are_learnable(vocab_size):
    source = open_tokens(DataConfig(), vocab_size, 512, 5)
    assert isinstance(source, SyntheticTokens)
    inputs, targets = source.train_batch(0, 0, 0, 1, 64, 1)
    assert int(inputs.min()) >= 0 and int(inputs.max()) < vocab_size
    successor = float(((inputs + 1) % vocab_size == targets).float().mean())
    assert successor > 0.74  # three in four, and chance hits of the fourth
    if vocab_size >= 100:
        assert successor < 0.8  # and not a constant


def test_synthetic_restarts_follow_zipf():
    vocab_size = 65_536
    inputs, targets = SyntheticTokens(vocab_size, 1024, 5).train_batch(0, 0, 0, 1, 256, 1)
    drawn = targets[(inputs + 1) % vocab_size != targets]
    # Density 1/x on [1, V): ranks below r hold ln r / ln V of the mass.
    for rank in (2, 16, 256, 4096):
        assert abs(float((drawn < rank - 1).float().mean()) - math.log(rank) / math.log(vocab_size)) < 0.01


def test_synthetic_validation_is_apart_from_training():
    source = SyntheticTokens(65_536, 64, 5)
    training = {tuple(row.tolist()) for row in source.train_batch(0, 0, 0, 1, 256, 1)[0]}
    validation = {tuple(row.tolist()) for inputs, _ in source.eval_batches(64 * 256, 32) for row in inputs}
    assert len(training) == len(validation) == 256
    assert not training & validation


GOLDEN_STARTS = [190, 214, 134, 822, 302, 526, 174, 150]
GOLDEN_SYNTHETIC = [[3, 4, 80, 467, 468, 469, 44, 45], [248, 341, 342, 343, 344, 345, 346, 347]]
