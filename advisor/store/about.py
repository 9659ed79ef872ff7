"""What its owner says of a run: another name, a note, tags; in its folder, so that a copy has it too."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.store.disk import bad_fields, dump_yaml, read_yaml, write_atomic
from trainer.schema import ConfigError, record_from_dict, to_dict

ABOUT = "about.yaml"
LONGEST_NAME, LONGEST_NOTE, MOST_TAGS = 80, 10_000, 20
_TAG = re.compile(r"[\w][\w.+-]{0,29}")


@dataclass(frozen=True, kw_only=True)
class About:
    """A run in its owner's words; empty where they said nothing."""

    name: str = ""
    note: str = ""
    tags: tuple[str, ...] = ()


def read_about(run_dir: Path) -> About:
    """What was written down of a run; AdvisorError when the file is damaged."""
    path = run_dir / ABOUT
    if not path.exists():
        return About()
    try:
        return record_from_dict(About, read_yaml(path, "note of a run"))
    except ConfigError as error:
        raise bad_fields("note of a run", path, error, f"remove it to go on without it: rm {path}") from error


def write_about(run_dir: Path, about: About) -> None:
    """Keep it, whole or not at all; AdvisorError for a name, note or tag that is none."""
    write_atomic(run_dir / ABOUT, dump_yaml(to_dict(checked(about))))


def checked(about: About) -> About:
    """The same, tidied: blanks at the ends gone, each tag once; AdvisorError for what cannot be kept."""
    name, note = about.name.strip(), about.note.strip()
    tags = tuple(dict.fromkeys(tag.strip().lower() for tag in about.tags if tag.strip()))
    if len(name) > LONGEST_NAME or any(not letter.isprintable() for letter in name):
        raise AdvisorError(
            f"a name is one line of at most {LONGEST_NAME} characters", "say more in a note", exit_code=2
        )
    if len(note) > LONGEST_NOTE:
        raise AdvisorError(f"a note has at most {LONGEST_NOTE:,} characters", "keep the rest in a file", exit_code=2)
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise AdvisorError(
                f"{tag[:40]!r} is no tag", "letters, digits and . + - _, 30 at most: wide-batch", exit_code=2
            )
    if len(tags) > MOST_TAGS:
        raise AdvisorError(f"a run has at most {MOST_TAGS} tags", "drop one: --untag TAG", exit_code=2)
    return About(name=name, note=note, tags=tags)
