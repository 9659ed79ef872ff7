"""Token folders: made of text, and read for planning; the trainer's errors in the advisor's words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.records import Basis, Estimate
from trainer.token_folder import ITEM_BYTES, TRAIN_FILE, DataError, TokenMeta, read_meta, tokenizer_file

# stage (read | tokenizer | encode), done, total
OnProgress = Callable[[str, int, int], None]
# bytes of text to encode, the seconds that this will take
OnForecast = Callable[[int, Estimate], None]


def read_data(path: str | Path | None) -> TokenMeta | None:
    """A token folder's metadata; None for synthetic tokens. Raises AdvisorError when it is no token folder."""
    if path is None:
        return None
    try:
        return read_meta(path)
    except DataError as error:
        raise AdvisorError(error.message, error.hint) from error


def prepare_data(
    inputs: Sequence[Path] | None,
    folder: Path,
    *,
    vocab_size: int,
    tokenizer: Path | None = None,
    text_key: str = "text",
    validation_fraction: float = 0.01,
    force: bool = False,
    skip_bad: bool = False,
    on_progress: OnProgress | None = None,
    on_forecast: OnForecast | None = None,
) -> TokenMeta:
    """Turn text files (None: the sources of Python's library) into a token folder and give its metadata.

    Raises AdvisorError with file and line of what is not data.
    """
    from trainer.prepare import Forecast, prepare  # numpy and tokenizers: only where they are used

    def tell(found: Forecast) -> None:
        if on_forecast is not None:
            seconds = Estimate(value=found.seconds, low=found.low, high=found.high, basis=Basis.EXTRAPOLATED)
            on_forecast(found.text_bytes, seconds)

    try:
        return prepare(
            list(inputs) if inputs is not None else None,
            folder,
            vocab_size=vocab_size,
            tokenizer=tokenizer,
            validation_fraction=validation_fraction,
            text_key=text_key,
            skip_bad=skip_bad,
            force=force,
            on_progress=on_progress,
            on_forecast=tell,
        )
    except DataError as error:
        raise AdvisorError(error.message, error.hint) from error


def prepare_conversations(
    inputs: Sequence[Path],
    folder: Path,
    *,
    tokenizer: Path,
    validation_fraction: float = 0.01,
    force: bool = False,
    skip_bad: bool = False,
    on_progress: OnProgress | None = None,
) -> TokenMeta:
    """Turn conversations into a token folder of which only what the assistant says is learnt; raises AdvisorError."""
    from trainer.conversations import prepare_conversations as prepare  # as above

    try:
        return prepare(
            inputs,
            folder,
            tokenizer=tokenizer,
            validation_fraction=validation_fraction,
            skip_bad=skip_bad,
            force=force,
            on_progress=on_progress,
        )
    except DataError as error:
        raise AdvisorError(error.message, error.hint) from error


@dataclass(frozen=True, kw_only=True)
class Token:
    """One token of a folder: its number and its text; some are a part of a character, whose text is a placeholder."""

    number: int
    text: str


def preview(folder: Path, meta: TokenMeta, first: int, count: int) -> tuple[str, list[Token]]:
    """Tokens of the training split from number `first` on: their text as a whole, and each by itself.

    Raises AdvisorError where the folder's tokenizer is missing or damaged.
    """
    from trainer.tokenizer import load_tokenizer_file  # tokenizers: only where they are used

    file = tokenizer_file(folder)
    if file is None:
        raise AdvisorError(f"{folder} has no tokenizer, so its tokens cannot be read as text", "prepare it again")
    width = ITEM_BYTES[meta.dtype]
    with open(folder / TRAIN_FILE, "rb") as tokens:
        tokens.seek(width * first)
        read = tokens.read(width * count)
    numbers = [int.from_bytes(read[at : at + width], "little") for at in range(0, len(read) - width + 1, width)]
    try:
        tokenizer = load_tokenizer_file(file)
    except DataError as error:
        raise AdvisorError(error.message, error.hint) from error
    return tokenizer.decode(numbers), [Token(number=n, text=tokenizer.decode([n])) for n in numbers]
