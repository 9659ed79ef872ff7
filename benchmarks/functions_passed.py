"""Counts the functions of `advisor/` that a question calls, by room, from command to answer: the default plan or yours.

python benchmarks/functions_passed.py [VERB WORDS …]      # e.g. analyze train.log
"""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

from advisor.cli import main

ROOT = Path(main.__code__.co_filename).parents[1]
QUESTION = ["plan", "--gpu", "any", "--budget", "20", "--deadline", "8h"]


def passed(words: list[str]) -> set[CodeType]:
    """Return the functions of `advisor/` that a command with these words calls.

    Comprehensions, lambdas, and the bodies of modules and classes, which run on import, are not counted.
    """
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.add(frame.f_code)

    sys.setprofile(note)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            main(words)
    finally:
        sys.setprofile(None)
    called = (code for code in seen if code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<"))
    return {code for code in called if code.co_filename.startswith(str(ROOT))}


if __name__ == "__main__":
    functions = passed(sys.argv[1:] or QUESTION)
    rooms = Counter(Path(code.co_filename).relative_to(ROOT).parts[0] for code in functions)
    for room, count in rooms.most_common():
        print(f"{count:5} {room}")
    print(f"{len(functions):5} functions in {len({code.co_filename for code in functions})} files")
