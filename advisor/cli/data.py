"""`advisor data`: turn text into token folders, and look at them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click

from advisor.cli.params import EXISTING, FILE, FOLDER, NEW_FOLDER, Number
from advisor.records import Estimate
from advisor.report.data import facts
from advisor.report.render import print_json, progress, remark, show, table
from advisor.units import (
    format_bytes,
    format_count,
    format_estimate,
    format_seconds,
)
from advisor.workflows import downloads
from advisor.workflows.data import prepare_conversations, prepare_data, read_data
from trainer.token_folder import TokenMeta

STAGES = {"read": "reading", "tokenizer": "training the tokenizer", "encode": "encoding"}
SHOWN_SKIPPED = 5
FETCHED = "fetched again, and whole"


@click.group()
def command() -> None:
    """Turn text into token files, and look at them."""


@command.command()
@click.argument("inputs", nargs=-1, type=EXISTING)
@click.option("--out", required=True, type=NEW_FOLDER, help="Token folder to write.")
@click.option(
    "--vocab-size", type=click.IntRange(257, 2**32 - 1), default=4096, show_default=True,
    help="Tokens of the vocabulary to train; 256 stand for single bytes.",
)  # fmt: skip
@click.option(
    "--tokenizer", type=FILE, help="Use this tokenizer.json, or SentencePiece .model, instead of training one."
)
@click.option("--text-key", default="text", show_default=True, help="Field or column that holds the text.")
@click.option(
    "--validation-fraction", type=Number(0, 0.5, min_open=True), default=0.01, show_default=True,
    help="Part of the text to hold out.",
)  # fmt: skip
@click.option(
    "--conversations", is_flag=True,
    help="INPUTS have `messages` (role, content): only what the assistant says is trained on. Needs the --tokenizer of "
    "the run that is to go on.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace a token folder that holds other data.")
@click.option("--skip-bad", is_flag=True, help="Leave out what is not data, and list it, instead of refusing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def prepare(
    inputs: tuple[Path, ...],
    out: Path,
    vocab_size: int,
    tokenizer: Path | None,
    text_key: str,
    validation_fraction: float,
    conversations: bool,
    force: bool,
    skip_bad: bool,
    as_json: bool,
) -> None:
    """Turn text, JSON lines (.jsonl, .jsonl.gz), Parquet files or folders of them into a token folder.

    Without INPUTS the sources of Python's standard library are used: real text that every machine has. The same
    inputs and settings, prepared already, are not prepared again; a folder with other tokens is left alone.
    """
    with progress(STAGES["read"], total=100) as update:
        bar = _Bar(update)
        if conversations:
            if tokenizer is None or not inputs:
                raise click.UsageError("--conversations needs files, and the --tokenizer of the run that is to go on")
            meta = prepare_conversations(
                inputs, out, tokenizer=tokenizer, validation_fraction=validation_fraction, skip_bad=skip_bad,
                force=force, on_progress=bar.moved,
            )  # fmt: skip
        else:
            meta = prepare_data(
                list(inputs) or None,
                out,
                vocab_size=vocab_size,
                tokenizer=tokenizer,
                validation_fraction=validation_fraction,
                text_key=text_key,
                skip_bad=skip_bad,
                force=force,
                on_progress=bar.moved,
                on_forecast=bar.expects,
            )
    if tokenizer is None and meta.vocab_size < vocab_size:
        remark(
            f"the vocabulary has {format_count(meta.vocab_size)} tokens, not {format_count(vocab_size)}: "
            "the text has no more pairs of tokens to merge; give more text, or be content with these"
        )
    _report(out, meta, as_json)


@command.command(name="show")
@click.argument("folder", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def show_folder(folder: Path, as_json: bool) -> None:
    """Show what a token folder holds."""
    meta = read_data(folder)
    assert meta is not None  # there is a folder to read
    _report(folder, meta, as_json)


@command.command(name="check")
@click.argument("paths", nargs=-1, required=True, type=EXISTING)
@click.option("--refetch", "again", is_flag=True, help="Fetch what is damaged again, where its address is known.")
@click.option(
    "--urls", type=FILE, help="Addresses, one a line; files are known by their names. Default: urls.txt beside them."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def check_files(paths: tuple[Path, ...], again: bool, urls: Path | None, as_json: bool) -> int:
    """Find files among downloaded data that are no data: error pages, Git LFS pointers, what is cut off or empty.

    Each is judged by its content: text, JSON lines, Parquet, gzip, Zstandard, token files. Compressed ones are read
    whole. An address is known from a list, or from the file itself where curl or wget wrote it there (--xattr).
    """
    files = downloads.files_of(paths)
    known = downloads.read_urls(urls, files)
    found = []
    with progress("looking at files", total=len(files)) as update:
        for one in downloads.check(files, known):
            found += [one] if one is not None else []
            update(advance=1)
    outcomes = [_fetched(one) if again else None for one in found]
    left = sum(outcome != FETCHED for outcome in outcomes)
    if as_json:
        told = [
            {**asdict(one), "path": one.path, "again": outcome} for one, outcome in zip(found, outcomes, strict=True)
        ]
        print_json({"files": len(files), "damaged": told, "left": left})
        return 1 if left else 0
    for one, outcome in zip(found, outcomes, strict=True):
        show(f"{one.path}: {one.what}", f"  {outcome or one.fetch}")
    show(
        f"{len(found)} of {len(files)} files are damaged"
        if found
        else f"{len(files)} files: nothing is wrong with them"
    )
    if found and not again and any(one.url for one in found):
        remark("those whose address is known are fetched again by --refetch")
    return 1 if left else 0


def _fetched(one: downloads.Damaged) -> str:
    """What became of a file that was to be fetched again."""
    if one.url is None:
        return f"its address is not known: {one.fetch}"
    fault = downloads.refetch(one)
    return FETCHED if fault is None else f"not fetched from {one.url}: {fault}"


class _Bar:
    """Forwards progress to the bar once per percent: a corpus may have millions of documents."""

    def __init__(self, update: Callable[..., None]):
        self._update, self._shown, self._names = update, ("read", 0), dict(STAGES)

    def expects(self, text_bytes: int, seconds: Estimate) -> None:
        """What encoding will take is part of its name, from its beginning on."""
        time = format_estimate(seconds, format_seconds)
        self._names["encode"] = f"encoding {format_bytes(text_bytes)} of text, which takes about {time}"

    def moved(self, stage: str, done: int, total: int) -> None:
        now = (stage, 100 * done // max(total, 1))
        if now != self._shown:
            self._shown = now
            self._update(description=self._names[stage], completed=now[1])


def _report(folder: Path, meta: TokenMeta, as_json: bool) -> None:
    if as_json:
        print_json({"path": str(folder), **asdict(meta)})
        return
    show(table(["", ""], facts(folder, meta)))
    for line in meta.skipped[:SHOWN_SKIPPED]:
        remark(f"left out: {line}")
    if more := meta.skipped[SHOWN_SKIPPED:]:
        remark(f"left out: {len(more)} more, all in {folder / 'meta.json'}")
