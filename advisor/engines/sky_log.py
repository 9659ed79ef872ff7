"""What a job of SkyPilot's has printed, brought home piece by piece: the run's log among other lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from advisor.engines.export.cloud import LOG_LINE
from advisor.store.disk import disk_errors, write_atomic
from advisor.store.run_folder import LOG, STDOUT

LAST_LINES, MORE_LINES = 1000, 8  # that a look asks for; times as many where that was too few


def follow(run_dir: Path, last_lines: Callable[[int], str], *, over: bool) -> None:
    """Bring home what a job has printed since the last look; `last_lines` gives so many of its last lines, 0: all.

    What is here already is found again by the log's last line. A machine that has only just begun prints the log from
    its start: until it has passed what is here, nothing changes.
    """
    here, asked = _last_line(run_dir / LOG), LAST_LINES
    while here is not None:
        lines = last_lines(asked).splitlines()
        if (new := _after(lines, here)) is not None:
            _append(run_dir, new if over else _up_to_the_log(new))
            return
        if len(lines) < asked:
            break  # it was all
        asked *= MORE_LINES
    bring(run_dir, last_lines(0), over=over)


def bring(run_dir: Path, printed: str, *, over: bool) -> None:
    """Keep all that a job has printed: the lines of its log, and the rest.

    A machine that has only just begun has printed less than is here already: then nothing changes.
    """
    lines = printed.splitlines()
    for name, mine in zip((LOG, STDOUT), _parted(lines if over else _up_to_the_log(lines) or lines), strict=True):
        text, path = "".join(f"{line}\n" for line in mine), run_dir / name
        with disk_errors("read", path):
            size = path.stat().st_size if path.exists() else 0
        if len(text.encode()) > size:
            write_atomic(path, text)


def _parted(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """The lines of the log, and the others."""
    log: list[str] = []
    rest: list[str] = []
    for line in lines:
        _, mark, words = line.partition(LOG_LINE)  # SkyPilot puts task and node before each line
        (log if mark else rest).append(words or line)
    return log, rest


def _up_to_the_log(lines: Sequence[str]) -> Sequence[str]:
    """Without what follows the last line of the log, by which the next look finds its place; none without one."""
    last = max((place for place, line in enumerate(lines) if LOG_LINE in line), default=-1)
    return lines[: last + 1]


def _after(lines: Sequence[str], here: str) -> Sequence[str] | None:
    """What follows a line of the log; None where it is not among them."""
    places = [place for place, line in enumerate(lines) if line.endswith(LOG_LINE + here)]
    return lines[places[-1] + 1 :] if places else None


def _append(run_dir: Path, lines: Sequence[str]) -> None:
    for name, mine in zip((LOG, STDOUT), _parted(lines), strict=True):
        with disk_errors("write", run_dir / name), (run_dir / name).open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in mine)


def _last_line(path: Path) -> str | None:
    """The last line of a file; None: it has none."""
    if not path.exists():
        return None
    with disk_errors("read", path):
        lines = path.read_text(encoding="utf-8").splitlines()
    return lines[-1] if lines else None
