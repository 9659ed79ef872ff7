"""Line formats that a user or an assistant wrote: a YAML file for --format, or in `formats/` of the data folder.

Their patterns come from strangers. Nothing of a file is executed, its size is limited, and before a pattern is used
here, a process of its own applies it to every line of the log within a time limit (`rows_by`). `FIELDS` says what a
file may hold; it becomes a `LineFormat` like those that are shipped.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from advisor.errors import AdvisorError
from advisor.readers.chunks import Progress, read_lines, sample
from advisor.readers.fact_lines import COUNT_FACTS, FLAG_FACTS, TEXT_FACTS
from advisor.readers.generic import GenericReader
from advisor.readers.line_format import EVAL, HIDDEN, LOSS, MORE, NUMBER, SETS, TRAIN, Facts, LineFormat, Mark, Row
from advisor.readers.line_reader import LineReader
from advisor.readers.records import LONGEST_RECORD
from advisor.readers.run_table import RunTable, names_of
from advisor.store.disk import dump_yaml, read_yaml, write_atomic
from advisor.store.folders import advisor_home

# what a format file holds: name → what it means, as people and assistants are told
FIELDS = {
    "name": "the program's name: letters, digits, dots and dashes",
    "rows": "list of regular expressions (Python) of the lines with a training loss, each found anywhere in a line. "
    "Named groups are columns, with the printed unit after two underscores if it is not the column's own: "
    r"`(?P<step>\d+)`, `(?P<loss><<LOSS>>)`, `(?P<seconds__ms>[\d.]+)`. `<<LOSS>>` and `<<NUMBER>>` are any number, "
    "also with a sign, an exponent or nan. A step that starts again with each epoch stands beside the group epoch. "
    "Empty if only validation losses are printed",
    "validation": "list of the same for lines with a validation loss alone (group eval_loss); one on a line with a "
    "training loss is a group of rows; optional",
    "context": "list of the same for lines whose numbers hold for the rows after them, as a step or an epoch on a line "
    "of its own; optional",
    "more": "list of the same for lines that complete the row before them, as a step below its loss; optional",
    "steps": "how a step is counted: printed (the default; also an epoch alone), bar (only a progress bar shows it) or "
    "rows (by no number)",
    "ends": "what an end means → list of words, verbatim, that only a line about the end has; optional",
    "settings": "name of a setting → the words before its value in the banner, verbatim; optional",
}
STEPS = ("printed", "bar", "rows")
# what words may mean, as kinds of events (`status.py`)
ENDS = ("finished", "stopped", "early_stop", "exception", "out_of_memory", "disk_full", "killed", "interrupt",
        "time_limit", "diverged", "nccl_timeout")  # fmt: skip
FOLDER = "formats"  # of the data folder
NO_COLUMNS = ("loss_is_nan", "eval_loss_is_nan", "phase", "clipped", "skipped")
KEPT = ("shapes", "by")  # what this program adds to a format that it keeps
MOST_BYTES, MOST_FILES = 1 << 16, 200  # of a file; of the folder
MOST_PATTERNS, LONGEST_PATTERN, LONGEST_WORDS = 8, 2000, 200
SECONDS, BYTES_PER_SECOND = 20.0, 2e6  # the time for a log: so long, and longer by its size
SURE = 0.99  # score of a format of the user's own: above that of any other reader
SHAPES, LEAST_SHARED = 100, 0.5  # lines of the head that make its shape; share of them that another log must show
COUNTS = "[kKMBGT]|million|billion"  # letters after a count
FEWEST_ROWS = 3  # by which a format without shapes is recognised
_TIMES = frozenset(("seconds", "elapsed_seconds", "epoch_seconds", "tokens_per_second"))
_NAME = re.compile(r"[\w.-]{1,60}")
_FLAGS = re.compile(r"\(\?([imsx]+)\)")
_KINDS = {"rows": TRAIN, "validation": EVAL, "context": SETS, "more": MORE}
_NEEDED = {TRAIN: ("loss", "reward", "accuracy"), EVAL: ("eval_loss", "eval_bits_per_byte", "eval_accuracy")}
_COUNTERS = {"step", "epoch", "tokens"}
_PARTS = {"<<LOSS>>": LOSS.decode(), "<<NUMBER>>": NUMBER.decode()}
_TOTAL = re.compile(
    r"(\(\?P<(step|epoch)>[^()]*\)(?: |\\s|[*+?])*/(?: |\\s|[*+?])*)((?:\\d|\[\d,\]|\[0-9\])(?:\+|\{[\d,]+\}))"
)
_MASKS = re.compile(rb"([\"'])[^\"']*\1|\S*[/\\@]\S*|\w*\d[\w.,:+-]*")


class MatchedRow(NamedTuple):
    """A line that a pattern matches, with the step, the loss and the seconds as they are printed there."""

    line: int
    step: str
    loss: str
    clock: str


@dataclass(frozen=True, kw_only=True)
class MatchedRows:
    """What a format's patterns find in a log."""

    rows: tuple[MatchedRow, ...]  # those of training; empty if they are only counted
    trained: int  # number of those of training
    rule_of: np.ndarray  # index of the format's row that reads each line; -1 for none
    written: int  # lines of the log that are not blank
    matched: int  # by any pattern
    shapes: int  # of the matched lines, apart from digits


@dataclass(frozen=True, kw_only=True)
class OwnFormat:
    """A reader of logs by a format file."""

    format: LineFormat
    entry: Mapping[str, Any]  # as written
    source: str  # the file's name

    @property
    def name(self) -> str:
        return self.format.name

    def score(self, head: bytes, path: Path) -> float:
        """Return how surely a log has this format: it is asked only for logs that `own_format_of` gave it."""
        return SURE

    def read(self, path: Path, progress: Progress | None = None) -> RunTable:
        """Read a log. Raises AdvisorError if its patterns find no row there or take too long."""
        found = rows_by(self.format, path, self.source)
        if not found.trained:
            why = f"rows: no pattern matches a line of {path.name}"
            raise AdvisorError(f"the format {self.name} ({self.source}): {why}", "read the log without --format")
        table = _with_times(LineReader(self.format, found.rule_of).read(path, progress), path)
        by = f", which {self.entry['by']} described" if self.entry.get("by") else ""
        return dataclasses.replace(table, notes=(*table.notes, f"by the format {self.name} ({self.source}){by}"))


def _with_times(table: RunTable, path: Path) -> RunTable:
    """Return the table of a format that names no time with the times that a log's lines show without a format."""
    if table.lines is None or _TIMES & table.columns.keys() or any(run.clock_seconds for run in table.runs):
        return table
    shown = GenericReader().read(path)
    if shown.lines is None:
        return table
    at = np.clip(np.searchsorted(shown.lines, table.lines), 0, max(0, len(shown.lines) - 1))
    same = shown.lines[at] == table.lines if len(shown.lines) else np.zeros(len(at), bool)
    times = {name: np.where(same, shown.columns[name][at], np.nan) for name in _TIMES & shown.columns.keys()}
    return dataclasses.replace(table, columns={**table.columns, **times}) if same.any() else table


def load_format(path: Path) -> OwnFormat:
    """Read a format file. Raises AdvisorError, naming the entry and the field, if it cannot be used."""
    raw = _raw(path)
    entry = raw["format"] if isinstance(raw.get("format"), dict) else raw  # an answer has an outcome beside it
    return OwnFormat(format=as_format(entry, path.name), entry=entry, source=path.name)


def _raw(path: Path) -> dict[str, Any]:
    hint = "name a format's file"
    if path.is_file() and path.stat().st_size > MOST_BYTES:
        raise AdvisorError(f"{path} is larger than {MOST_BYTES // 1024} KiB, so it is no format", hint)
    try:
        return read_yaml(path, "log format")
    except RecursionError as error:
        raise AdvisorError(f"{path} is nested too deeply to be a format", hint) from error


def named_format(name: str) -> OwnFormat | None:
    """Return the format in this file, or of this name in the data folder; None if there is neither."""
    if name.lower().endswith((".yaml", ".yml", ".json")):
        return load_format(Path(name))
    found = [path for path in _files() if path.stem == name or _raw(path).get("name") == name]
    return load_format(found[0]) if found else None


def own_format_of(path: Path, head: bytes, *, kept: bool) -> OwnFormat | None:
    """Return the format in the data folder by which a log is read, or None.

    A format that the user wrote is taken if its patterns find rows. A format that was kept after reading a log is taken
    if this log's head has the same shape, but only with `kept`: not where a shipped format knows the log.
    """
    shapes, best = None, None
    for file in _files():
        raw = _raw(file)
        known = {str(one) for one in raw["shapes"]} if isinstance(raw.get("shapes"), list) else set()
        if known and not kept:
            continue
        shapes = frozenset(shapes_of(head)) if shapes is None else shapes
        share = len(known & shapes) / len(known) if known else LEAST_SHARED
        if share < LEAST_SHARED or (best is not None and share <= best[0]):
            continue
        own = load_format(file)
        if rows_by(own.format, path, own.source).trained >= (1 if known else FEWEST_ROWS):
            best = share, own
    return None if best is None else best[1]


def keep_format(entry: Mapping[str, Any], path: Path, by: str) -> Path:
    """Keep a format in the data folder under the fingerprint of a log's shape; returns its file."""
    shapes = shapes_of(sample(path))
    mark = hashlib.sha256(" ".join(shapes).encode()).hexdigest()[:8]
    file = advisor_home() / FOLDER / f"{entry['name']}-{mark}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, dump_yaml({**entry, "by": by, "shapes": shapes}))
    return file


def shapes_of(head: bytes) -> list[str]:
    """Return hashes of the shapes of a log's first lines, with numbers, quoted words, paths and names masked."""
    lines = [line.strip() for line in head[: 1 << 18].split(b"\n")]
    masked = [_MASKS.sub(b"0", line[:1000]) for line in filter(None, lines[: 4 * SHAPES])][:SHAPES]
    return [hashlib.sha256(line).hexdigest()[:8] for line in dict.fromkeys(masked)]


def _files() -> list[Path]:
    return sorted((advisor_home() / FOLDER).glob("*.y*ml"))[:MOST_FILES]


def as_format(entry: Mapping[str, Any], source: str) -> LineFormat:
    """Return an entry as a line format. Raises AdvisorError, naming source and field, if it cannot be one."""

    def wrong(field: str, why: str) -> AdvisorError:
        return AdvisorError(f"{source}: {field}: {why}", "docs/findings.md shows a format", exit_code=2)

    def texts(field: str, value: Any, longest: int) -> list[str]:
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(one, str) and one.strip() for one in listed):
            raise wrong(field, "it must be a text or a list of texts")
        if len(listed) > MOST_PATTERNS or max(map(len, listed), default=0) > longest:
            raise wrong(field, f"at most {MOST_PATTERNS} texts of at most {longest:,} characters")
        return listed

    def mapping(field: str, names: Sequence[str]) -> Mapping[str, Any]:
        value = entry.get(field) or {}
        if not isinstance(value, Mapping):
            raise wrong(field, "it must be a mapping")
        for name in value:
            if name not in names:
                raise wrong(f"{field}.{name}", f"no such name; there are {', '.join(names)}")
        return value

    for field in entry:
        if field not in (*FIELDS, *KEPT):
            raise wrong(str(field)[:60], f"no such field; there are {', '.join(FIELDS)}")
    name, steps = entry.get("name"), entry.get("steps") or STEPS[0]
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("."):
        raise wrong("name", FIELDS["name"])
    if steps not in STEPS:
        raise wrong("steps", f"it is one of {', '.join(STEPS)}")
    rows = {
        kind: [_row(one, wrong, field, kind) for one in texts(field, entry.get(field) or [], LONGEST_PATTERN)]
        for field, kind in _KINDS.items()
    }
    if not rows[TRAIN] and not rows[EVAL]:
        raise wrong("rows", "there is no pattern of a line with a loss")
    given = {target.partition("__")[0] for kind in (SETS, MORE) for row in rows[kind] for target in row.targets}
    for row in rows[TRAIN] if steps == STEPS[0] else ():
        if not _COUNTERS & {*given, *(target.partition("__")[0] for target in row.targets)}:
            why = "the pattern has no group step, epoch or tokens: add one, or say steps: bar or steps: rows"
            raise wrong("rows", why)
    ends = [
        Mark(pattern=re.escape(words).encode(), kind=kind, needs=words.encode())
        for kind, listed in mapping("ends", ENDS).items()
        for words in texts(f"ends.{kind}", listed, LONGEST_WORDS)
    ]
    settings = [_setting(fact, one) for fact, written in mapping("settings", tuple(names_of("facts"))).items()
                for one in texts(f"settings.{fact}", written, LONGEST_WORDS)]  # fmt: skip
    from advisor.readers.read import READERS  # which imports this module

    shipped = name in {reader.name for reader in READERS}  # what is known of that format must not be said of this one
    return LineFormat(
        name=f"{name}-own" if shipped else name, framework=name, facts=tuple(settings), marks=tuple(ends), learnt=True,
        rows=tuple(row for kind in _KINDS.values() for row in rows[kind]), steps_by_bar=steps == "bar",
    )  # fmt: skip


def _row(pattern: str, wrong: Callable[[str, str], AdvisorError], field: str, kind: int) -> Row:
    for part, meant in _PARTS.items():
        pattern = pattern.replace(part, meant)
    if kind == TRAIN:  # `step 10/614`: the number that a counter counts to is the plan, or the length of an epoch
        pattern = _TOTAL.sub(
            lambda at: at[0] if f"<planned_{at[2]}s>" in pattern else f"{at[1]}(?P<planned_{at[2]}s>{at[3]})", pattern
        )
    flags = _FLAGS.match(pattern)
    inner = f"(?{flags[1]}:{pattern[flags.end() :]})" if flags else f"(?:{pattern})"
    row = Row(pattern=f".*?{inner}".encode(), kind=kind)
    try:
        bases = {target.partition("__")[0] for target in row.targets}
    except ValueError as error:
        raise wrong(field, f"group {error}; columns are {', '.join(columns())}") from error
    except (re.error, RecursionError, OverflowError) as error:
        raise wrong(field, f"no regular expression: {error}") from error
    if not bases.intersection(_NEEDED.get(kind, bases)):
        raise wrong(field, f"the pattern has no group {' or '.join(_NEEDED.get(kind, ['of a column']))}")
    return dataclasses.replace(row, step="previous") if kind == EVAL and "step" not in bases else row


def columns() -> list[str]:
    """Return the columns that a pattern may name."""
    return [name for name in (*names_of("columns"), *HIDDEN) if name not in NO_COLUMNS]


def _setting(fact: str, words: str) -> Facts:
    value = rf"(?P<{fact}>[^\s,;|\"']+(?: [^\s,;|\"'=:]+){{0,3}})"
    if fact not in TEXT_FACTS | FLAG_FACTS:
        letters = COUNTS if fact in COUNT_FACTS else "k|K"
        value = rf"(?P<{fact}>{NUMBER.decode()})(?:[ \t]?(?P<{fact}__unit>{letters})\b)?"
    pattern = rf"{re.escape(words)}[\"']?[ \t]*[:=]?[ \t]*[\"']?{value}"
    return Facts(pattern=pattern.encode(), needs=words.encode())


# It has nothing but the standard library, reads patterns and lines from its input, and is ended if it takes too long.
_IN_ITS_OWN_PROCESS = r"""
import json, re, sys
lines, out = sys.stdin.buffer, sys.stdout.buffer
asked = json.loads(lines.readline())
patterns = [re.compile(one.encode()) for one in asked["patterns"]]
training, sets, more = (frozenset(asked[name]) for name in ("training", "sets", "more"))
words = re.compile(rb"[A-Za-z]{3,}")
written, rules, shapes, context, rows = 0, bytearray(), set(), {}, []
for raw in lines:
    line = raw[:-1]
    written += bool(line.strip())
    rules.append(255)
    for rule, pattern in enumerate(patterns if len(line) <= asked["longest"] else ()):
        if (found := pattern.match(line)) is not None:
            break
    else:
        continue
    rules[-1] = rule
    if not asked["listed"]:
        continue
    if len(shapes) < 1000:
        shapes.add(b" ".join(words.findall(line)))
    groups = {name.partition("__")[0]: text for name, text in found.groupdict().items() if text is not None}
    if rule in sets:
        context |= groups
    if rule in more and rows and not rows[-1][1] and "step" in groups:
        rows[-1][1] = groups["step"][:40].decode("utf-8", "replace")
    if rule in training:
        groups = context | groups
        step = groups.get("step", groups.get("epoch", groups.get("tokens", b"")))
        clock = groups.get("elapsed_seconds", groups.get("seconds", b""))
        loss = groups.get("loss", b"")
        shown = [text[:40].decode("utf-8", "replace").split() for text in (step, loss, clock)]
        rows.append([len(rules) - 1, *map(" ".join, shown)])
out.write(json.dumps([written, len(shapes), len(rules)]).encode() + b"\n" + rules)
out.write("\n".join(map(json.dumps, rows)).encode())
"""


def rows_by(format: LineFormat, path: Path, source: str, *, listed: bool = False) -> MatchedRows:
    """Return what a format's patterns find in a log, found in a process of its own within a time limit.

    Its rows are counted, and returned one by one if they are to be `listed`. Raises AdvisorError if it takes longer, as
    patterns do that try a line in every division.
    """
    patterns = [row.pattern.decode() for row in format.rows if isinstance(row, Row)]
    of_kind = {kind: [i for i, row in enumerate(format.rows) if row.kind == kind] for kind in (TRAIN, EVAL, SETS, MORE)}
    training = of_kind[TRAIN] or of_kind[EVAL]
    asked = {"patterns": patterns, "longest": LONGEST_RECORD, "training": training, "sets": of_kind[SETS],
             "more": of_kind[MORE], "listed": listed}  # fmt: skip
    cannot = f"the format {format.name} ({source}) cannot be used"
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as found:
        given.write(json.dumps(asked).encode() + b"\n")
        lines = read_lines(path)
        given.write(lines.text)
        limit = SECONDS + given.tell() / BYTES_PER_SECOND
        given.seek(0)
        try:
            command = [sys.executable, "-I", "-S", "-c", _IN_ITS_OWN_PROCESS]
            done = subprocess.run(command, stdin=given, stdout=found, stderr=subprocess.PIPE, timeout=limit)
        except subprocess.TimeoutExpired as error:
            hint = "write them without repeats inside repeats, as (a+)+"
            why = f"its patterns need more than {limit:.0f} s for the lines of {path.name}"
            raise AdvisorError(f"{cannot}: {why}", hint) from error
        if done.returncode:
            raise AdvisorError(f"{cannot}: {done.stderr.decode('utf-8', 'replace')[-200:]}", "mend its patterns")
        found.seek(0)
        written, shapes, total = json.loads(found.readline())
        rule_of = np.frombuffer(found.read(total), np.int8)
        rows = [json.loads(text) for text in found.read().splitlines()]
    return MatchedRows(
        rows=tuple(MatchedRow(int(lines.numbers[index]), *words) for index, *words in rows),
        trained=int(np.isin(rule_of, training).sum()), rule_of=rule_of,
        written=written, matched=int((rule_of >= 0).sum()), shapes=shapes,
    )  # fmt: skip
