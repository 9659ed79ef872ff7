"""Sentences that conclude something of a run: each by its words, judged by what the run's numbers support."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from advisor.auditing.paper.document import Document
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.figures import figures
from advisor.auditing.paper.words import phrase

_MORE_BATCH = r"(?:increas\w+|larger|bigger|rais\w+|higher)(?: the)? (?:micro-?|device )?batch"
# what is concluded → words that conclude it; a sentence that doubts, asks or denies concludes nothing
_CONCLUDED = (
    ("clipping_works", r"norms? (?:stays?|remains?|kept|is|was)[^.]{0,20}(?:under|below|at|<=?"
    r"|≤)[^.]{0,40}clipp|clipping (?:is )?working"),
    ("clipping_stabilised", r"clipp\w+[^.]{0,40}(?:kept|keeps|made|makes)[^.]{0,20}stable"),
    ("compute_bound", r"utili[sz]ation[^.]{0,60}compute[- ]bound|compute[- ]bound[^.]{0,60}utili[sz]ation"
    r"|unchanged, still compute-bound"),
    ("memory_bound", r"bottleneck\W+(?:is )?\W*(?:memory bandwidth|bandwidth)|(?:is|are) memory[- ](?:bandwidth"
    r" )?bound"),
    ("bigger_batch_pays", rf"{_MORE_BATCH}[^.]{{0,40}}(?:fill|utili[sz]|better use)|(?:fill"
    rf"|utili[sz])[^.]{{0,40}}{_MORE_BATCH}|batch size could be increased"),
    ("bigger_batch_pays", r"larger model dims or bigger batches would improve"),
    ("faster_gpu_pays", r"(?:use|using|switch\w* to|upgrad\w+ to) (?:a )?(?:more powerful|faster|bigger) GPU"),
    ("healthy_phases", r"forward[^.]{0,60}(?:healthy|normal|as expected)"),
    ("never_waits", r"GPUs? never (?:waits?|idles?|starves?)"),
    ("normal_progress", r"(?:training|run) (?:is|was) (?:progressing|proceeding) (?:normally|well|as expected)"),
    ("works", r"functionally correct|training (?:is )?functional\b|training works\b"),
    ("startup_overhead", r"(?:step 0|first step)\b[^.]{0,40}(?:initiali[sz]ation|warm-?up|start-?up|set-?up)(?:"
    r" overhead| cost|\))"),
    ("smaller_is_stabler", r"smaller (?:model|batch)[^.]{0,40}more stable"),
    ("more_tokens_help", r"more tokens[^.]{0,20}better"),
    ("used_better", r"(?:better|improved?) (?:hardware|GPU) utili[sz]ation\W[^.]{0,30}memory (?:usage|use)"),
)  # fmt: skip
_COMPILED = tuple((that, phrase(pattern, re.IGNORECASE)) for that, pattern in _CONCLUDED)
_CONVERGING = phrase(
    r"(?:loss|training|model)\W[^.]{0,20}converg(?:es|ing|ed|ence)\b[^.]{0,20}(?:expected|good|well|nicely|confirmed)",
    re.IGNORECASE,
)
_DOUBTED = re.compile(
    r"\?|\b(?:if|whether|not|n't|never been|unclear|should|might|may|could it|likely|check|invalid|wrong|misleading"
    r"|myth|mistake)\b",
    re.IGNORECASE,
)


def drafts(document: Document, run: dict[str, Any]) -> Iterator[Drafted]:
    """Conclusions about the run."""
    for passage in document.passages:
        text = passage.text
        if passage.fenced:
            continue
        for that, pattern in _COMPILED:
            match = pattern.search(text)
            if match is None or (_DOUBTED.search(text) and that not in ("clipping_works", "bigger_batch_pays")):
                continue
            says: dict[str, Any] = {"that": that}
            if that == "bigger_batch_pays" and (to := _batch(text[match.end() :])):
                says["to"] = to
            yield Drafted(kind="conclusion", line=passage.line, text=shortened(text), says=says)
            break
        if _CONVERGING.search(text) and not _DOUBTED.search(text):
            yield Drafted(kind="converging", line=passage.line, text=shortened(text))


def _batch(text: str) -> str | None:
    """The batch that is advised."""
    found = [f for f in figures(text) if f.dimension == "count" and not f.scaled and 2 <= f.quantity.low <= 4096]
    return found[0].quantity.text if found else None
