"""Names, describes, tags and deletes runs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from advisor.engines.engines import describe
from advisor.engines.state import goes_on
from advisor.errors import AdvisorError
from advisor.store.disk import disk_errors
from advisor.store.run_folder import About, read_about, run_id, write_about
from advisor.store.store import Store


@dataclass(frozen=True, kw_only=True)
class Deleted:
    """A run that is no longer listed."""

    run_id: str
    path: Path
    folder_left: bool  # the folder is outside the store and may hold other things
    recorded: bool  # its measurements are still used


def annotate(
    run_dir: Path,
    *,
    name: str | None = None,
    note: str | None = None,
    tags: Sequence[str] = (),
    untags: Sequence[str] = (),
) -> About:
    """Change a user's notes about a run (None: unchanged, empty: removed) and return them; raises as `checked`."""
    now = read_about(run_dir)
    gone = {tag.strip().lower() for tag in untags}
    write_about(
        run_dir,
        About(
            name=now.name if name is None else name,
            note=now.note if note is None else note,
            tags=tuple(tag for tag in (*now.tags, *tags) if tag.strip().lower() not in gone),
        ),
    )
    return read_about(run_dir)


def delete_run(store: Store, run_dir: Path) -> Deleted:
    """Remove a run from the list, and its folder if the store made it. Its measurements stay.

    Raises AdvisorError if the run is still going on, or this cannot be determined.
    """
    state = describe(run_dir, store).state
    if goes_on(state):
        raise AdvisorError(
            f"{run_dir.name} is {state.value}, so it was not deleted", f"end it first: advisor stop {run_dir}"
        )
    name = run_id(run_dir)
    ours = run_dir.resolve().parent == (store.home / "runs").resolve()
    if ours:
        with disk_errors("delete", run_dir):
            grave = run_dir.with_name(f".deleted-{run_dir.name}")  # half a folder would be listed as a run
            run_dir.rename(grave)
            shutil.rmtree(grave)
    store.forget_run(name)
    return Deleted(run_id=name, path=run_dir, folder_left=not ours, recorded=store.is_recorded(name))
