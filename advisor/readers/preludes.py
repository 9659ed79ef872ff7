"""A log that ends before its first record: whether a training was prepared or begun in it, and its last such words.

Only asked where no record was found. One strong sign (parameters counted, a training begun) and others beside it are
wanted: pages about trainings, code and settings of them have the words too.
"""

from __future__ import annotations

import re
from pathlib import Path

from advisor.readers.run_table import Event

KIND = "prepared"
FEWEST_OTHERS = 2  # weaker signs beside a strong one
FEWEST_OTHER_OF_ENDED = 1
CODE = 0.1  # of the lines: more are a program, not what it printed
_NO_LOGS = frozenset((".md", ".rst", ".tex", ".html", ".htm", ".xml", ".json", ".jsonl", ".csv", ".tsv", ".ipynb"))
_STRONG = re.compile(
    rb"(?i)\b(?:start|starting|started|begin|beginning|resum\w+|launch\w*|initiat\w+) (?:of )?(?:the |a |model |full )?"
    rb"(?:\w{1,20} )?(?:pre-?|fine-?)?(?:train|tuning)\w*"
    rb"|^[^\w\n]{0,8}(?:fine-?)?training (?:the )?(?:model|network|\S{1,40}\.\.\.)"
    rb"|\btrainable param\w*|\bparams? to learn\b|\btotal params\b|\bmodel parameters\W|\bparameters count\W"
    rb"|^[^\w\n]{0,40}epoch\W{0,3}\d+(?:/\d+)?[^\w\n]{0,40}$",
    re.MULTILINE,
)
_OTHERS = tuple(
    re.compile(rb"(?i)" + pattern)
    for pattern in (
        rb"\bepochs?\b",
        rb"\boptimi[sz]er\b|\blearning[ _]rate\b",
        rb"\bbatch(?:es|[ _]size)?\b|\bdata ?load\w*",
        rb"\bdatasets?\b|\bx_train\b|\btrain(?:ing)? (?:set|data|images|samples|split)\b",
        rb"\bcuda\b|\bgpus?\b|\bdevice\b",
        rb"\bpytorch\b|\btorch\b|\btensorflow\b|\bkeras\b|\bwandb\b|\bw&b\b",
        rb"\bcheckpoints?\b|\bweights\b|\bpretrained\b",
        rb"\b(?:model|layer|conv\w*|linear|dense)\b",
    )
)
_OVER = re.compile(rb"(?i)\bfinish(?:ed)? train\w*")
_CODE = re.compile(
    rb"(?m)^[ \t]*(?:import |from \w[\w.]* import |def |class |return\b|if .*:[ \t]*$|for .* in .*:[ \t]*$"
    rb"|#include|\w+ = )"
)


def tells_of_training(head: bytes, path: Path, *, over: bool = False) -> bool:
    """Whether a sample of a file without records is of a program that was to train; `over`: it says that it has."""
    if path.suffix.lower() in _NO_LOGS or not (over or _STRONG.search(head)):
        return False
    lines = sum(1 for line in head.split(b"\n") if line.strip())
    if len(_CODE.findall(head)) > CODE * lines:
        return False
    signs = sum(sign.search(head) is not None for sign in _OTHERS)
    return _OVER.search(head) is not None or signs >= (FEWEST_OTHER_OF_ENDED if over else FEWEST_OTHERS)


def preparations(head: bytes, path: Path) -> list[Event]:
    """The last words of a training that was prepared or begun, as an event; none where the sample has none."""
    if not tells_of_training(head, path):
        return []
    said = [match for match in _STRONG.finditer(head)][-1]
    start, end = head.rfind(b"\n", 0, said.start()) + 1, head.find(b"\n", said.end())
    line = head[start : end if end >= 0 else len(head)].strip()[:200]
    return [Event(kind=KIND, text=line.decode("utf-8", "replace"))]
