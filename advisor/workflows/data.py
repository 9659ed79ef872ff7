"""Token folders made of text and read for planning, and downloaded files judged by their content, fetched again."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from advisor.errors import AdvisorError
from advisor.records import Basis, Estimate
from advisor.store.disk import disk_errors
from trainer.damage import damage
from trainer.token_folder import ITEM_BYTES, TRAIN_FILE, DataError, TokenMeta, read_meta, tokenizer_file

# bytes of text to encode, the seconds that this will take
OnForecast = Callable[[int, Estimate], None]
DATA_SUFFIXES = frozenset(
    ".parquet .pq .jsonl .ndjson .json .txt .text .csv .tsv .gz .zst .bin .npy .npz .arrow".split()  # noqa: SIM905
)
URL_LIST = "urls.txt"  # beside the files, one address a line
_ORIGIN = "user.xdg.origin.url"  # the attribute in which `curl --xattr`, `wget --xattr` and browsers keep it
_HUB = re.compile(r"/(datasets|models)--([^/]+)--([^/]+)/snapshots/([^/]+)/(.+)$")  # of Hugging Face's cache
_TIMEOUT_SECONDS = 60


@contextlib.contextmanager
def _in_our_words() -> Iterator[None]:
    """Raise the trainer's errors about data as the advisor's."""
    try:
        yield
    except DataError as error:
        raise AdvisorError(error.message, error.hint) from error


def read_data(path: str | Path | None) -> TokenMeta | None:
    """A token folder's metadata; None for synthetic tokens. Raises AdvisorError when it is no token folder."""
    with _in_our_words():
        return None if path is None else read_meta(path)


def prepare_data(
    inputs: Sequence[Path] | None, folder: Path, *, on_forecast: OnForecast | None = None, **options: Any
) -> TokenMeta:
    """Turn text files (None: the sources of Python's library) into a token folder and give its metadata.

    `options` are those of `trainer.prepare`. Raises AdvisorError with file and line of what is not data.
    """
    from trainer.prepare import Forecast, prepare  # numpy and tokenizers: only where they are used

    def tell(found: Forecast) -> None:
        if on_forecast is not None:
            seconds = Estimate(value=found.seconds, low=found.low, high=found.high, basis=Basis.EXTRAPOLATED)
            on_forecast(found.text_bytes, seconds)

    with _in_our_words():
        return prepare(list(inputs) if inputs is not None else None, folder, on_forecast=tell, **options)


def prepare_conversations(inputs: Sequence[Path], folder: Path, **options: Any) -> TokenMeta:
    """Turn conversations into a token folder of which only what the assistant says is learnt; raises AdvisorError."""
    from trainer.conversations import prepare_conversations as prepare  # as above

    with _in_our_words():
        return prepare(inputs, folder, **options)


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
    with _in_our_words():
        tokenizer = load_tokenizer_file(file)
    return tokenizer.decode(numbers), [Token(number=n, text=tokenizer.decode([n])) for n in numbers]


@dataclass(frozen=True, kw_only=True)
class Damaged:
    """A file that is not the data its name promises."""

    path: Path
    what: str  # in words
    url: str | None  # where it came from; None: not known
    fetch: str  # the command that fetches it again


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Every file named, and the data files of every folder, without hidden ones; sorted within a folder."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        for parent, folders, names in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            data = [name for name in sorted(names) if Path(name).suffix.lower() in DATA_SUFFIXES]
            found += [Path(parent, name) for name in data if not name.startswith(".") and name != URL_LIST]
    if not found:
        raise AdvisorError("there is no data file in " + ", ".join(map(str, paths)), "name files, or another folder")
    return list(dict.fromkeys(found))


def check(files: Sequence[Path], urls: Mapping[str, str]) -> Iterator[Damaged | None]:
    """Judge file after file; None for each that is what it promises. `urls` are addresses by file name."""
    for file in files:
        with disk_errors("read", file):
            what = damage(file)
        url = urls.get(file.name) or _origin(file)
        yield None if what is None else Damaged(path=file, what=what, url=url, fetch=_command(file, what, url))


def read_urls(given: Path | None, files: Sequence[Path]) -> dict[str, str]:
    """Addresses by file name: of the list that was given, else of `urls.txt` beside the files.

    A name that two addresses end in is nobody's. Raises AdvisorError for what is no address.
    """
    lists = [given] if given is not None else sorted({file.parent / URL_LIST for file in files})
    found: dict[str, str | None] = {}
    for path in lists:
        if given is None and not path.is_file():
            continue
        with disk_errors("read", path):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            url = line.strip()
            if not url or url.startswith("#"):
                continue
            if urlsplit(url).scheme not in ("http", "https"):
                raise AdvisorError(f"{path}, line {number}: {url[:80]!r} is no address", "one a line: https://…")
            name = unquote(urlsplit(url).path).rsplit("/", 1)[-1]
            found[name] = url if found.get(name, url) == url else None
    return {name: url for name, url in found.items() if url is not None}


def refetch(damaged: Damaged) -> str | None:
    """Fetch a file again from its address into its place; gives what is wrong with what came, None where it is whole.

    What was there stays until a whole file has come.
    """
    assert damaged.url is not None
    partial = damaged.path.with_name(f".{damaged.path.name}.partial{damaged.path.suffix}")
    try:
        fault = _fetched(damaged.url, partial) or damage(partial)
        if fault is None:
            os.replace(partial, damaged.path)
        return fault
    except OSError as error:  # the network's errors and the disk's
        return " ".join(str(error).split())
    finally:
        partial.unlink(missing_ok=True)


def _origin(file: Path) -> str | None:
    """Where a program that downloaded it said that it came from."""
    try:
        url = os.getxattr(file, _ORIGIN).decode("utf-8", "replace")
    except (OSError, AttributeError):  # it did not say, or this system has no such attributes
        return None
    return url if urlsplit(url).scheme in ("http", "https") else None


def _command(file: Path, what: str, url: str | None) -> str:
    if "Git LFS pointer" in what:
        return f"git -C {shlex.quote(str(file.parent))} lfs pull --include {shlex.quote(file.name)}"
    if (hub := _HUB.search(str(file.absolute()))) is not None:
        kind, owner, name, revision, inside = hub.groups()
        of = f"{owner}/{name} {shlex.quote(inside)} --repo-type {kind.removesuffix('s')} --revision {revision}"
        return f"hf download {of} --force-download"
    address = "URL" if url is None else shlex.quote(url)
    return f"curl --fail --location --output {shlex.quote(str(file))} {address}"


def _fetched(url: str, to: Path) -> str | None:
    """Write what an address gives; what is wrong with the answer, None where all of it came."""
    import urllib.error  # a tenth of a second with what it imports, which nothing else needs
    import urllib.request

    request = urllib.request.Request(url, headers={"User-Agent": "training-advisor"})
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        return f"the server answers {error.code} {error.reason}"
    with answer, to.open("wb") as file:
        shutil.copyfileobj(answer, file, 1 << 20)
        promised = answer.headers.get("Content-Length")
        came = file.tell()
    if promised is not None and came != int(promised):
        return f"{came:,} of {int(promised):,} bytes came"
    return None
