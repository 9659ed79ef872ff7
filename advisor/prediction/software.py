"""Training software by name, from profiles/software.csv: what each does by default that decides memory and speed."""

from __future__ import annotations

import csv
import difflib
import re
from dataclasses import dataclass, replace
from functools import cache

from advisor.errors import AdvisorError
from advisor.records import Adapters, Software
from advisor.store.folders import profiles_folder

USUAL_STATE = 0.75  # how often a loop in bf16 that says no more keeps fp32 weights under autocast: judged
OWN_NAME = "own"  # this project's trainer, which calibrations measure


@dataclass(frozen=True, kw_only=True, eq=False)  # a row of the table is there once
class Named:
    """One trainer as its own defaults have it; a row of the table."""

    name: str
    also: tuple[str, ...]  # other names for it
    words: str
    written: re.Pattern[str] | None  # how tables of runs name it; None: they never do
    kind: str  # as `Software.kind`
    compiled: bool
    fused_kernels: bool
    whole_logits: bool
    state: str  # as `Software.state`, where all weights are trained
    gradients: str  # fp32 | 16bit
    optimizer: str  # adamw | muon
    recomputed: str  # none | selective | full: what it recomputes by default
    hf_models: bool  # it trains Hugging Face's own code of a model: fp32 copies of logits, norms and GELU written out
    step_bytes: float  # per weight, that its optimizer's step makes anew
    half_tables: bool  # its embeddings are kept in 16 bits, moments too
    logit_bytes: float | None  # per token and row of the vocabulary, compiled; None: as its kind
    extra_lanes: float  # 16-bit numbers of the width that its blocks keep per token beyond the usual
    state_chance: float  # that a run whose words leave it open has this state
    sharding: str  # what it splits by default where it runs on several GPUs
    source: str

    @property
    def software(self) -> Software:
        """What a run of it is believed to be, as far as nothing else is said."""
        return Software(
            name=self.name,
            kind=self.kind,
            state=self.state,
            state_chance=self.state_chance,
            whole_logits=self.whole_logits,
            fused_kernels=self.fused_kernels,
        )


@cache
def table() -> dict[str, Named]:
    """Every named software, in the order in which a run's words are held against them."""
    with (profiles_folder() / "software.csv").open(encoding="utf-8", newline="") as file:
        return {row["name"]: _named(row) for row in csv.DictReader(file)}


def _named(row: dict[str, str]) -> Named:
    return Named(
        name=row["name"],
        also=tuple(filter(None, row["also"].split("|"))),
        words=row["words"],
        written=re.compile(row["written"]) if row["written"] else None,
        kind=row["kind"],
        compiled=row["compiled"] == "yes",
        fused_kernels=row["kernels"] == "fused",
        whole_logits=row["loss"] == "whole",
        state=row["state"],
        gradients=row["gradients"],
        optimizer=row["optimizer"],
        recomputed=row["recomputed"] or "none",
        hf_models=row["models"] == "hf",
        step_bytes=float(row["step_bytes"] or 0),
        half_tables=row["tables"] == "16bit",
        logit_bytes=float(row["logit_bytes"]) if row["logit_bytes"] else None,
        extra_lanes=float(row["extra_lanes"] or 0),
        state_chance=float(row["state_chance"] or 1),
        sharding=row["sharding"],
        source=row["source"],
    )


def require_software(name: str) -> Named:
    """The software of this name or of another name for it; AdvisorError (exit 2) with the nearest names."""
    asked = name.strip().lower()
    names = {also: named for named in table().values() for also in (named.name, *named.also)}
    if asked in names:
        return names[asked]
    near = difflib.get_close_matches(asked, names, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(table())}"
    raise AdvisorError(f"no software {name!r} is known", hint, exit_code=2)


def software_in(words: str) -> Named | None:
    """The software that a run's own words name; the first of the table that does."""
    low = words.lower()
    return next((named for named in table().values() if named.written and named.written.search(low)), None)


def software_of(
    name: str | None,
    *,
    adapters: Adapters | None = None,
    frozen_blocks: int = 0,
    fp8: bool = False,
    extra_parameters: int = 0,
) -> Software:
    """Published software by its name; None: of nobody in particular, in 16 bits where it trains a part."""
    if name is None:
        in_part = adapters is not None or frozen_blocks > 0
        kept = "16bit" if in_part else "fp32"
        software = Software(state=kept, state_chance=1.0 if in_part else USUAL_STATE, whole_logits=None)
    else:
        software = require_software(name).software
    return replace(software, adapters=adapters, frozen_blocks=frozen_blocks, fp8=fp8, extra_parameters=extra_parameters)


def words_of(software: Software | None) -> str:
    """The software's name as people write it."""
    if software is not None and software.name is None:
        return "software that is not named"
    return table()[software.name if software is not None and software.name else OWN_NAME].words
