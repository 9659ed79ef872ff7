"""Tokenizers of others: SentencePiece models beside tokenizer.json, and what is neither; what encoding will take."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from tests.trainer.small import config
from trainer import prepare as preparing
from trainer.corpus import PrepareError
from trainer.huggingface import main as export
from trainer.prepare import Survey, prepare
from trainer.run import run
from trainer.sample import main as sample
from trainer.schema import CheckpointConfig, DataConfig, OptimizerConfig, dump_config, make_shape
from trainer.tokenizer import load_tokenizer_file

SENTENCE = "the cat sat on the mat and the dog sat on the log."


def sentencepiece_model(file, **options):
    sentencepiece = pytest.importorskip("sentencepiece", reason="pip install sentencepiece")
    model = io.BytesIO()
    settings = {"vocab_size": 300, "byte_fallback": True, "normalization_rule_name": "identity", "minloglevel": 2,
                "remove_extra_whitespaces": False, "model_type": "bpe", "hard_vocab_limit": False}  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([SENTENCE, "it was a café"] * 20), model_writer=model, **(settings | options)
    )
    file.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_file=str(file))


def test_a_token_folder_holds_what_sentencepiece_itself_says(tmp_path):
    own = sentencepiece_model(tmp_path / "spm.model")
    texts = [f"the cat sat {n} times\n\nand  the dog – naïve ☃" for n in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    meta = prepare([tmp_path / "a.jsonl"], tmp_path / "out", tokenizer=tmp_path / "spm.model", validation_fraction=0.1)
    assert (meta.vocab_size, meta.end_of_text) == (own.vocab_size(), own.eos_id())
    assert (tmp_path / "out" / "tokenizer.model").read_bytes() == (tmp_path / "spm.model").read_bytes()
    assert not (tmp_path / "out" / "tokenizer.json").exists()
    found = []
    for name in ("tokens.bin", "val.bin"):
        tokens = np.fromfile(tmp_path / "out" / name, meta.dtype)
        found += [part[:-1].tolist() for part in np.split(tokens, np.flatnonzero(tokens == own.eos_id()) + 1)[:-1]]
    assert sorted(found) == sorted(own.encode(text, out_type=int) for text in texts)
    assert sorted(own.decode(part) for part in found) == sorted(texts)  # nothing is lost by byte fallback
    again = prepare([tmp_path / "a.jsonl"], tmp_path / "out", tokenizer=tmp_path / "spm.model", validation_fraction=0.1)
    assert again.created == meta.created  # prepared already


def test_what_is_no_tokenizer_is_said(tmp_path):
    (tmp_path / "words.txt").write_text(SENTENCE)
    with pytest.raises(PrepareError, match="neither a tokenizer.json nor a SentencePiece model"):
        pytest.importorskip("sentencepiece")
        load_tokenizer_file(tmp_path / "words.txt")
    (tmp_path / "tokenizer.model").write_text("IQ== 0\nIg== 1\n")  # as Llama 3 has it
    with pytest.raises(PrepareError, match="as tiktoken writes it") as refusal:
        load_tokenizer_file(tmp_path / "tokenizer.model")
    assert "tokenizer.json" in refusal.value.hint
    with pytest.raises(PrepareError, match="cannot read tokenizer"):
        load_tokenizer_file(tmp_path / "none.model")


def test_a_model_without_an_end_of_text_is_refused(tmp_path):
    sentencepiece_model(tmp_path / "spm.model", eos_id=-1)
    (tmp_path / "text.txt").write_text(SENTENCE * 200)
    with pytest.raises(PrepareError, match="no end-of-text token"):
        prepare([tmp_path / "text.txt"], tmp_path / "out", tokenizer=tmp_path / "spm.model")
    assert not (tmp_path / "out").exists()


def test_a_run_on_sentencepiece_tokens_goes_on_with_the_space_between_words(tmp_path, capsys, monkeypatch):
    """SentencePiece leaves out the space before a text's first piece: of a continuation it must not."""
    sentencepiece_model(tmp_path / "spm.model")
    (tmp_path / "text.txt").write_text(f"{SENTENCE} " * 40)
    data = tmp_path / "data"
    meta = prepare([tmp_path / "text.txt"], data, tokenizer=tmp_path / "spm.model", validation_fraction=0.2)
    settings = config(
        model=make_shape("gpt2", depth=2, width=64, heads=2, vocab_size=meta.vocab_size, seq_len=32),
        steps=60,
        micro_batch=8,
        data=DataConfig(path=str(data)),
        optimizer=OptimizerConfig(learning_rate=3e-3),
        checkpoint=CheckpointConfig(every_seconds=None),
    )
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.yaml").write_text(dump_config(settings))
    run(settings, folder)
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat"))
    assert sample([str(folder), "--device", "cpu", "--temperature", "0", "--tokens", "3"]) == 0
    said = "".join(line.get("text", "") for line in map(json.loads, capsys.readouterr().out.splitlines()))
    assert said.startswith(" sat on")
    assert export([str(folder), "--out", str(tmp_path / "model")]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "tokenizer.model" in lines[-1]["files"] and "read by the package sentencepiece" in lines[0]["text"]


class Clockwork:
    """Encodes a byte in the seconds that it is told, on a clock of its own."""

    file_name, vocab_size, end_of_text = "tokenizer.json", 300, 0

    def __init__(self, seconds_per_byte):
        self.now, self._rates = 0.0, iter(seconds_per_byte)

    def encode_plain(self, texts):
        self.now += next(self._rates) * sum(len(text.encode()) for text in texts)
        return [[] for _ in texts]


def test_what_encoding_will_take_is_reckoned_from_parts_of_a_sample(monkeypatch):
    """After the first part 1, 2, 2 and 3 µs a byte: 100 MB take 200 s (100 to 300), and the reading again."""
    clock = Clockwork([9e-6, 1e-6, 2e-6, 2e-6, 3e-6])
    monkeypatch.setattr(preparing.time, "perf_counter", lambda: clock.now)
    survey = Survey(documents=9, bytes=100_000_000, held_out=np.zeros(1, bool), sample=["x" * 400_000] * 9)
    found = preparing._forecast(clock, survey, reading_seconds=7.0)
    assert (found.seconds, found.low, found.high) == pytest.approx((207, 107, 307))
    assert found.text_bytes == 100_000_000


def test_a_forecast_is_made_before_encoding_where_it_is_worth_it(tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "_FORECAST_BYTES", 10_000)
    (tmp_path / "text.txt").write_text(SENTENCE * 300)
    told = []
    prepare([tmp_path / "text.txt"], tmp_path / "out", vocab_size=300, on_forecast=told.append,
            on_progress=lambda stage, done, total: told.append(stage))  # fmt: skip
    (forecast,) = [one for one in told if not isinstance(one, str)]
    assert forecast.text_bytes == 50 * 300 and 0 < forecast.low <= forecast.seconds <= forecast.high
    assert told.index(forecast) < told.index("encode")
    told.clear()
    (tmp_path / "short.txt").write_text(SENTENCE * 30)
    prepare([tmp_path / "short.txt"], tmp_path / "short", vocab_size=300, on_forecast=told.append)
    assert told == []
