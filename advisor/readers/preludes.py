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
    rb"|\binitiali[sz](?:ed|ing) (?:the )?(?:optimi[sz]er|trainer|epoch runners?|training|loss)\b"
    rb"|^[\W\d]{0,40}(?:info\b\W{1,8})?(?:fine-?)?training (?:the )?(?:model|network|\S{1,40}\.\.\.)"
    rb"|\bepoch\W{0,3}\d{1,6}(?:/\d{1,6})?[^\n|%]{0,20}%\|"  # a bar of an epoch
    rb"|\btrainable param\w*|\bparams? to learn\b|\btotal params\b|\bmodel parameters\W|\bparameters count\W"
    rb"|^(?:[\d:.,T -]{8,32}[\[ ]{1,3}(?:info|debug)\b)?[^\w\n]{0,40}epoch\W{0,3}\d+(?:/\d+)?[^\w\n]{0,40}$"
    rb"|\bend of (?:epoch|iteration)\W{1,3}\d",
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
        rb"\btrain(?:ing)?\W{1,3}\d{1,3}%\|",
        rb"\b(?:model|layer|conv\w*|linear|dense)\b",
    )
)
_LIBRARY = re.compile(
    rb"(?i)/(?:site|dist)-packages/(?:torch|torchvision|torchaudio|tensorflow|keras|jax|flax|paddle|mxnet|transformers"
    rb"|lightning|pytorch_lightning|accelerate|deepspeed|diffusers|timm|peft|trl|datasets)/[^\n:]{1,200}\.py:\d"
    rb"|^[\W\d]{0,40}(?:using|running on|selected) (?:device|gpu)\W{1,4}(?:cuda|cpu|mps|gpu|nvidia|tesla)\b",
    re.MULTILINE,
)
_LOGGED_ERROR = re.compile(
    rb"\W{0,3}(?:19|20)\d\d[-/.]\d\d[-/.]\d\d[ T]\d\d:\d\d:\d\d[^\n]{0,60}?[\s\[|:-](?:ERROR|CRITICAL|FATAL)[\s\]|:-]"
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
    if len(_CODE.findall(head)) > max(1.0, CODE * lines):  # a warning quotes one
        return False
    signs = sum(sign.search(head) is not None for sign in _OTHERS)
    return _OVER.search(head) is not None or signs >= (FEWEST_OTHER_OF_ENDED if over else FEWEST_OTHERS)


def uses_a_library(head: bytes, path: Path) -> bool:
    """Whether a file without records is what a program printed that uses a library of trainings: whatever it did, no
    step of a training is in it.
    """
    return path.suffix.lower() not in _NO_LOGS and _LIBRARY.search(head) is not None


def logged_failure(head: bytes) -> Event | None:
    """The last line of a sample as a failure, where a program's own logger stamped it as an error; else None."""
    lines = head.rstrip().split(b"\n")
    if not _LOGGED_ERROR.match(lines[-1][:200]):
        return None
    return Event(kind="exception", text=lines[-1].strip()[:200].decode("utf-8", "replace"), line=len(lines))


def preparations(head: bytes, path: Path) -> list[Event]:
    """The last words of a training that was prepared or begun, as an event; none where the sample has none."""
    if not tells_of_training(head, path):
        return []
    said = [match for match in _STRONG.finditer(head)][-1]
    start, end = head.rfind(b"\n", 0, said.start()) + 1, head.find(b"\n", said.end())
    line = head[start : end if end >= 0 else len(head)].strip()[:200]
    return [Event(kind=KIND, text=line.decode("utf-8", "replace"))]
