"""Published training software by name: its defaults that decide memory and speed, from profiles/software.csv."""

from __future__ import annotations

import csv
import difflib
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from advisor.errors import AdvisorError
from advisor.records import Adapters, Software
from advisor.store.folders import profiles_folder

USUAL_STATE = 0.75  # share of bf16 loops that keep fp32 weights under autocast if the state is unstated: our judgement
OWN_NAME = "own"  # this project's trainer, which calibrations measure


@dataclass(frozen=True, kw_only=True, eq=False)  # each row of the table exists once
class NamedSoftware:
    """One row of profiles/software.csv: a training software with its defaults."""

    name: str
    also: tuple[str, ...]  # aliases
    words: str
    written: re.Pattern[str] | None  # finds the software in tables of runs; None: it never appears there
    kind: str  # see `Software.kind`
    compiled: bool
    fused_kernels: bool
    whole_logits: bool | None  # None: depends on version or options
    state: str  # see `Software.state`, if all weights are trained
    gradients: str  # fp32 | 16bit
    optimizer: str  # adamw | muon
    recomputed: str  # default activation checkpointing: none | selective | full
    loops: bool  # runs the experts of a mixture one after the other
    hf_models: bool  # trains Hugging Face's models: fp32 copies of logits, norms and GELU without kernels
    step_bytes: float  # temporary bytes per weight in the optimizer step
    half_tables: bool  # embeddings and their moments have 16 bits
    logit_bytes: float | None  # per token and vocabulary entry if compiled; None: the number of its kind
    extra_lanes: float  # additional 16-bit values that a block saves per token, in units of the width
    state_chance: float  # probability of `state` for a run that does not state it
    shardings: tuple[str, ...]  # possible kinds of sharding, the default first
    balanced: bool  # pipeline stages have equal FLOPs, so that the stage with the head has fewer layers
    by_tensor: bool  # after a sharded optimizer step, each GPU's piece of each tensor is copied separately
    afab_chance: float  # probability of the AFAB schedule for a pipeline that does not state its schedule
    source: str

    @property
    def software(self) -> Software:
        """The software of a run that states only its name."""
        return Software(
            name=self.name,
            kind=self.kind,
            state=self.state,
            state_chance=self.state_chance,
            whole_logits=self.whole_logits,
            fused_kernels=self.fused_kernels,
        )


@cache
def table() -> dict[str, NamedSoftware]:
    """Return the rows of profiles/software.csv by name. If a run's description matches several rows, the first
    counts."""
    same = ("name", "words", "kind", "state", "gradients", "optimizer", "source")
    found: dict[str, NamedSoftware] = {}
    with (profiles_folder() / "software.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            numbers = {name: float(row[name] or 0) for name in ("step_bytes", "extra_lanes")}
            found[row["name"]] = NamedSoftware(
                also=tuple(filter(None, row["also"].split("|"))),
                written=re.compile(row["written"]) if row["written"] else None,
                compiled=row["compiled"] == "yes",
                fused_kernels=row["kernels"] == "fused",
                whole_logits={"whole": True, "chunked": False}.get(row["loss"]),
                recomputed=row["recomputed"] or "none",
                loops=row["experts"] == "loop",
                hf_models=row["models"] == "hf",
                half_tables=row["tables"] == "16bit",
                logit_bytes=float(row["logit_bytes"]) if row["logit_bytes"] else None,
                state_chance=float(row["state_chance"] or 1),
                shardings=tuple(row["sharding"].split("|")),
                balanced=row["stages"] == "balanced",
                by_tensor=row["gathers"] == "by tensor",
                afab_chance=float(row["afab_chance"] or 0),
                **dict[str, Any]({name: row[name] for name in same} | numbers),
            )
    return found


def require_software(name: str) -> NamedSoftware:
    """Return the software with a name or alias. Raises AdvisorError (exit 2), which lists the closest names."""
    requested = name.strip().lower()
    names = {also: named for named in table().values() for also in (named.name, *named.also)}
    if requested in names:
        return names[requested]
    near = difflib.get_close_matches(requested, names, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(table())}"
    raise AdvisorError(f"unknown software {name!r}", hint, exit_code=2)


def software_of(
    name: str | None,
    *,
    adapters: Adapters | None = None,
    frozen_blocks: int = 0,
    fp8: bool = False,
    extra_parameters: int = 0,
    expert_parameters: int = 0,
    experts: int = 0,
) -> Software:
    """Return published software by name. None means unknown software, in 16 bits if it trains only some weights."""
    if name is None:
        in_part = adapters is not None or frozen_blocks > 0
        kept = "16bit" if in_part else "fp32"
        software = Software(state=kept, state_chance=1.0 if in_part else USUAL_STATE, whole_logits=None)
    else:
        software = require_software(name).software
    return replace(
        software,
        adapters=adapters,
        frozen_blocks=frozen_blocks,
        fp8=fp8,
        extra_parameters=extra_parameters,
        expert_parameters=expert_parameters,
        looped_experts=experts if name is None or require_software(name).loops else 0,
    )


def words_of(software: Software | None) -> str:
    """Return the software's name as people write it."""
    if software is not None and software.name is None:
        return "software that is not named"
    return table()[software.name if software is not None and software.name else OWN_NAME].words
