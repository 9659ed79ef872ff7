"""`advisor data`: turns text into token folders, shows them and checks downloaded files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from advisor.cli.verb import EXISTING, FILE, FOLDER, NEW_FOLDER, answer, option, options, verb
from advisor.options import Kind
from advisor.records import Estimate
from advisor.report.render import progress, remark, table
from advisor.units import format_bytes, format_count, format_estimate, format_seconds
from advisor.workflows import data
from advisor.workflows.data import prepare_conversations, prepare_data, read_data
from trainer.token_folder import TokenMeta

STAGES = {"read": "reading", "tokenizer": "training the tokenizer", "encode": "encoding"}
SHOWN_SKIPPED = 5
FETCHED = "fetched again, and complete"


@click.group()
def command() -> None:
    """Turn text into token files and show them."""


@verb("prepare", group=command)
@click.argument("inputs", nargs=-1, type=EXISTING)
@click.option("--out", required=True, type=NEW_FOLDER, help="Token folder to write.")
@option("vocab_size", Kind.WHOLE, "Size of the vocabulary to train, including 256 single bytes.", default=4096,
        least=257, most=10_000_000)  # fmt: skip
@options("tokenizer", tokenizer="Use this tokenizer.json, or SentencePiece .model, instead of training one.")
@click.option("--text-key", default="text", show_default=True, help="Field or column that holds the text.")
@option("validation_fraction", Kind.NUMBER, "Share of the text to hold out.", default=0.01, least=1e-6, most=0.5)
@click.option("--conversations", is_flag=True, help="INPUTS have `messages` (role, content), and only the assistant's "
              "words are trained on. Needs the --tokenizer of the run that is trained further.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace a token folder that holds other data.")
@click.option("--skip-bad", is_flag=True, help="Leave out and list files that hold no data, instead of stopping.")
def prepare(inputs: tuple[Path, ...], out: Path, vocab_size: int, tokenizer: Path | None, text_key: str,
            validation_fraction: float, conversations: bool, force: bool, skip_bad: bool) -> None:  # fmt: skip
    """Turn text, JSON lines (.jsonl, .jsonl.gz), Parquet files or folders of them into a token folder.

    Without INPUTS the text is the source code of Python's standard library. The same inputs and settings are not
    prepared twice. A folder with other tokens is not replaced without --force.
    """
    names, shown, held_out = dict(STAGES), ("read", 0), validation_fraction
    with progress(STAGES["read"], total=100) as update:

        def expects(text_bytes: int, seconds: Estimate) -> None:
            takes = format_estimate(seconds, format_seconds)
            names["encode"] = f"encoding {format_bytes(text_bytes)} of text, which takes about {takes}"

        def moved(stage: str, done: int, total: int) -> None:
            nonlocal shown
            now = (stage, 100 * done // max(total, 1))
            if now != shown:  # once per percent: a corpus may have millions of documents
                shown = now
                update(description=names[stage], completed=now[1])

        if conversations:
            if tokenizer is None or not inputs:
                raise click.UsageError("--conversations needs files, and the --tokenizer of the run to continue")
            meta = prepare_conversations(inputs, out, tokenizer=tokenizer, validation_fraction=held_out,
                                         skip_bad=skip_bad, force=force, on_progress=moved)  # fmt: skip
        else:
            meta = prepare_data(
                list(inputs) or None, out, vocab_size=vocab_size, tokenizer=tokenizer, validation_fraction=held_out,
                text_key=text_key, skip_bad=skip_bad, force=force, on_progress=moved, on_forecast=expects,
            )  # fmt: skip
    if tokenizer is None and meta.vocab_size < vocab_size:
        remark(
            f"the vocabulary has {format_count(meta.vocab_size)} tokens, not {format_count(vocab_size)}: "
            "the text has no more pairs of tokens to merge; give more text, or be content with these"
        )
    _report(out, meta)


@verb("show", group=command)
@click.argument("folder", type=FOLDER)
def show_folder(folder: Path) -> None:
    """Show the contents of a token folder."""
    meta = read_data(folder)
    assert meta is not None  # a folder was given
    _report(folder, meta)


@verb("check", group=command)
@click.argument("paths", nargs=-1, required=True, type=EXISTING)
@click.option("--refetch", "again", is_flag=True, help="Fetch damaged files again if their address is known.")
@click.option("--urls", type=FILE,
              help="Addresses, one per line, matched to files by name. Default: urls.txt next to them.")  # fmt: skip
def check_files(paths: tuple[Path, ...], again: bool, urls: Path | None) -> int:
    """Find downloaded files that hold no data: error pages, Git LFS pointers, truncated or empty files.

    Each file is judged by its content: text, JSON lines, Parquet, gzip, Zstandard, token files. Compressed files are
    read completely. A file's address comes from --urls, or from the file itself if curl or wget stored it there
    (--xattr).
    """
    files = data.files_of(paths)
    known = data.read_urls(urls, files)
    bad = []
    with progress("looking at files", total=len(files)) as update:
        for one in data.check(files, known):
            bad += [one] if one is not None else []
            update(advance=1)
    outcomes = [_fetched(one) if again else None for one in bad]
    left = sum(outcome != FETCHED for outcome in outcomes)
    judged = list(zip(bad, outcomes, strict=True))
    fine, damaged = f"{len(files)} files: nothing is wrong with them", f"{len(bad)} of {len(files)} files are damaged"
    answer(
        "data-check",
        lambda: {"files": len(files), "left": left,
                 "damaged": [{**asdict(one), "path": one.path, "again": outcome} for one, outcome in judged]},
        lambda: [*(f"{one.path}: {one.what}\n  {outcome or one.fetch}" for one, outcome in judged),
                 damaged if bad else fine],
    )  # fmt: skip
    if not again and any(one.url for one in bad):
        remark("those whose address is known are fetched again by --refetch")
    return 1 if left else 0


def _fetched(one: data.DamagedData) -> str:
    """Say what happened to a file that was to be fetched again."""
    if one.url is None:
        return f"its address is not known: {one.fetch}"
    fault = data.refetch(one)
    return FETCHED if fault is None else f"not fetched from {one.url}: {fault}"


def _report(folder: Path, meta: TokenMeta) -> None:
    from advisor.report.rows import token_folder

    answer("data", lambda: {"path": str(folder), **asdict(meta)}, lambda: [table(["", ""], token_folder(folder, meta))])
    for line in meta.skipped[:SHOWN_SKIPPED]:
        remark(f"left out: {line}")
    if more := meta.skipped[SHOWN_SKIPPED:]:
        remark(f"left out: {len(more)} more, all in {folder / 'meta.json'}")
