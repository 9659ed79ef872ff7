"""Makes token folders from text, reads them for plans, checks downloaded files and fetches damaged ones again."""

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

# receives the bytes of text and the seconds that encoding will take
OnForecast = Callable[[int, Estimate], None]
DATA_SUFFIXES = frozenset(
    ".parquet .pq .jsonl .ndjson .json .txt .text .csv .tsv .gz .zst .bin .npy .npz .arrow".split()  # noqa: SIM905
)
URL_LIST = "urls.txt"  # in the folder of the files, one address per line
_ORIGIN = "user.xdg.origin.url"  # the attribute in which `curl --xattr`, `wget --xattr` and browsers keep the address
_HUB = re.compile(r"/(datasets|models)--([^/]+)--([^/]+)/snapshots/([^/]+)/(.+)$")  # path in Hugging Face's cache
_TIMEOUT_SECONDS = 60


@contextlib.contextmanager
def _in_our_words() -> Iterator[None]:
    """Raise the trainer's data errors as AdvisorError."""
    try:
        yield
    except DataError as error:
        raise AdvisorError(error.message, error.hint) from error


def read_data(path: str | Path | None) -> TokenMeta | None:
    """Returns a token folder's metadata, or None for synthetic tokens. Raises AdvisorError for any other folder."""
    with _in_our_words():
        return None if path is None else read_meta(path)


def prepare_data(
    inputs: Sequence[Path] | None, folder: Path, *, on_forecast: OnForecast | None = None, **options: Any
) -> TokenMeta:
    """Turn text files (None: the sources of Python's library) into a token folder; returns its metadata.

    `options` are those of `trainer.prepare`. Raises AdvisorError with the file and line of anything that is not data.
    """
    from trainer.prepare import Forecast, prepare  # import numpy and tokenizers only if they are used

    def tell(found: Forecast) -> None:
        if on_forecast is not None:
            seconds = Estimate(value=found.seconds, low=found.low, high=found.high, basis=Basis.EXTRAPOLATED)
            on_forecast(found.text_bytes, seconds)

    with _in_our_words():
        return prepare(list(inputs) if inputs is not None else None, folder, on_forecast=tell, **options)


def prepare_conversations(inputs: Sequence[Path], folder: Path, **options: Any) -> TokenMeta:
    """Turn conversations into a token folder that trains only on what the assistant says; raises AdvisorError."""
    from trainer.conversations import prepare_conversations as prepare  # as above

    with _in_our_words():
        return prepare(inputs, folder, **options)


@dataclass(frozen=True, kw_only=True)
class Token:
    """One token of a folder with its text, which is a placeholder if the token is only part of a character."""

    number: int
    text: str


def preview(folder: Path, meta: TokenMeta, first: int, count: int) -> tuple[str, list[Token]]:
    """Returns tokens of the training split from number `first` on: the whole text, and each token.

    Raises AdvisorError if the folder's tokenizer is missing or damaged.
    """
    from trainer.tokenizer import load_tokenizer_file  # import tokenizers only if they are used

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
class DamagedData:
    """A data file whose content is damaged or is not what its name says."""

    path: Path
    what: str  # description of the damage
    url: str | None  # where it came from; None: unknown
    fetch: str  # the command that fetches it again


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Returns the named files and the data files in the named folders, without hidden ones, sorted within a folder."""
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


def check(files: Sequence[Path], urls: Mapping[str, str]) -> Iterator[DamagedData | None]:
    """Judge one file after another; yields None for each intact file. `urls` are addresses by file name."""
    for file in files:
        with disk_errors("read", file):
            what = damage(file)
        url = urls.get(file.name) or _origin(file)
        yield None if what is None else DamagedData(path=file, what=what, url=url, fetch=_command(file, what, url))


def read_urls(given: Path | None, files: Sequence[Path]) -> dict[str, str]:
    """Returns addresses by file name, from the given list or else from `urls.txt` next to the files.

    A file name shared by two addresses gets neither. Raises AdvisorError for a line that is not an address.
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
                raise AdvisorError(f"{path}, line {number}: {url[:80]!r} is not an address", "one per line: https://…")
            name = unquote(urlsplit(url).path).rsplit("/", 1)[-1]
            found[name] = url if found.get(name, url) == url else None
    return {name: url for name, url in found.items() if url is not None}


def refetch(damaged: DamagedData) -> str | None:
    """Fetch a file again from its address; returns what is wrong with the new file, or None if it is intact.

    The old file is replaced only by an intact one.
    """
    assert damaged.url is not None
    partial = damaged.path.with_name(f".{damaged.path.name}.partial{damaged.path.suffix}")
    try:
        fault = _fetched(damaged.url, partial) or damage(partial)
        if fault is None:
            os.replace(partial, damaged.path)
        return fault
    except OSError as error:  # errors of the network or the disk
        return " ".join(str(error).split())
    finally:
        partial.unlink(missing_ok=True)


def _origin(file: Path) -> str | None:
    """Returns the address that the downloading program recorded for a file."""
    try:
        url = os.getxattr(file, _ORIGIN).decode("utf-8", "replace")
    except (OSError, AttributeError):  # no address was recorded, or this system has no such attributes
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
    """Write the content of an address to a file; returns what is wrong with the answer, or None if it is complete."""
    import urllib.error  # its imports take a tenth of a second, and only this function needs it
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
