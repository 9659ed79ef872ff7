"""Turns text into token numbers and back: with a tokenizer.json, a SentencePiece model, or a vocabulary trained here.

The file's bytes show which one it is. Tokens that a tokenizer would add around a text are always left out. Training
encodes the text alone and ends each document with the end-of-text token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer.corpus import PrepareError
from trainer.token_folder import SENTENCEPIECE_FILE, TOKENIZER_FILE

END_OF_TEXT = "<|endoftext|>"
_OTHER_END_OF_TEXT = ("</s>", "<|end_of_text|>", "<eos>", "<|eot_id|>", "<|im_end|>", "[SEP]")  # in other tokenizers


class TextTokenizer(Protocol):
    """The interface of a tokenizer."""

    file_name: str  # the name of its file in a token folder
    vocab_size: int  # one more than the largest token; some vocabularies have gaps
    end_of_text: int | None

    def encode(self, text: str) -> list[int]:
        """Encode a text. Special tokens that are written in it are read as such."""
        ...

    def encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many texts at once, on all cores. `<|endoftext|>` inside a text counts as text."""
        ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def content(self) -> bytes:
        """Return the content of its file."""
        ...


def load_tokenizer_file(file: Path) -> TextTokenizer:
    """Read the tokenizer in a file. Raises PrepareError."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise PrepareError(f"cannot read tokenizer {file}: {error}", "name a tokenizer.json or a .model") from error
    if content.lstrip()[:1] == b"{":
        return JsonTokenizer(_from_json(content, file))
    first = content[:200].split(b"\n")[0].split()
    if len(first) == 2 and first[1].isdigit() and not content[:1] == b"\n":
        raise PrepareError(
            f"{file} is a list of tokens as tiktoken writes it, not a SentencePiece model",
            "name the tokenizer.json that was published beside it",
        )
    return SentencePieceTokenizer(content, file)


def train_tokenizer(sample: list[str], vocab_size: int) -> TextTokenizer:
    """Train a byte-level BPE. It can encode any text, and decode it back unchanged."""
    encoder = Tokenizer(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    encoder.train_from_iterator(sample, trainer)
    return JsonTokenizer(encoder)


class JsonTokenizer:
    """A tokenizer in the format of the tokenizers library."""

    file_name = TOKENIZER_FILE

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        ends = (tokenizer.token_to_id(name) for name in (END_OF_TEXT, *_OTHER_END_OF_TEXT))
        self.end_of_text = next((end for end in ends if end is not None), None)

    def encode(self, text: str) -> list[int]:
        self.tokenizer.encode_special_tokens = False
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        self.tokenizer.encode_special_tokens = True
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens)))

    def content(self) -> bytes:
        return str(self.tokenizer.to_str()).encode()


class SentencePieceTokenizer:
    """A SentencePiece model (Kudo and Richardson 2018), read by its own library, since others give other pieces."""

    file_name = SENTENCEPIECE_FILE

    def __init__(self, content: bytes, file: Path):
        self._content = content
        self._pieces = _from_sentencepiece(content, file)
        self.vocab_size = int(self._pieces.vocab_size())
        end = int(self._pieces.eos_id())
        self.end_of_text = end if end >= 0 else None  # -1 if it was trained without one

    def encode(self, text: str) -> list[int]:
        return list(self._pieces.encode(text, out_type=int))

    def encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        return list(self._pieces.encode(list(texts), out_type=int))

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._pieces.decode(list(tokens)))

    def content(self) -> bytes:
        return self._content


def _from_json(content: bytes, file: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises no narrower type
        reason = f"{file} is not a tokenizer: {error}"
        raise PrepareError(reason, "name a tokenizer.json written by the tokenizers library") from error
    tokenizer.no_truncation()  # saved tokenizers often cut or pad text to the context of their model
    tokenizer.no_padding()
    return tokenizer


def _from_sentencepiece(content: bytes, file: Path) -> Any:
    try:
        from sentencepiece import SentencePieceProcessor  # an optional package, which only such models need
    except ImportError as error:
        raise PrepareError(
            f"{file}: SentencePiece models are read by a package that is not installed", "pip install sentencepiece"
        ) from error
    try:
        return SentencePieceProcessor(model_proto=content)
    except Exception as error:  # a RuntimeError, or an error of protobuf
        reason = f"{file} is neither a tokenizer.json nor a SentencePiece model"
        raise PrepareError(reason, "name a tokenizer.json, or the .model that sentencepiece wrote") from error
