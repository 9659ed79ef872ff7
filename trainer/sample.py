"""`python -m trainer.sample RUN` prints text from a run's newest checkpoint, as JSON lines on stdout.

The prompt comes from stdin. `{"kind": "model", …}` is first, then for each sample `{"kind": "text", "text": …}` as it
grows and `{"kind": "end", …}`. A failed start gives one `{"kind": "error", "text": …, "hint": …}`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

from trainer.conversations import asked
from trainer.corpus import PrepareError
from trainer.device import DeviceError, describe_device
from trainer.generate import Drawing, generate
from trainer.schema import ConfigError
from trainer.tokenizer import TextTokenizer
from trainer.trained import NothingTrainedError, Trained, load_tokenizer, load_trained

_BROKEN = "\N{REPLACEMENT CHARACTER}"  # half a character, which the next token may complete


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code: 0, or 1 with an error line."""
    parser = argparse.ArgumentParser(prog="python -m trainer.sample", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--chat", action="store_true")
    options = parser.parse_args(arguments)
    try:
        trained = load_trained(options.run, options.device, lambda text: _say("message", text=text))
        tokenizer, end = load_tokenizer(trained.config, options.tokenizer)
        prompt = sys.stdin.read()
        read = asked(tokenizer, prompt) if options.chat else tokenizer.encode(prompt)
    except (NothingTrainedError, PrepareError) as error:
        _say("error", text=str(error), hint=error.hint)
        return 1
    except (ConfigError, DeviceError, OSError) as error:
        _say("error", text=str(error), hint=None)
        return 1
    _say("model", step=trained.step, parameters=sum(p.numel() for p in trained.model.parameters()),
         device=describe_device(trained.context).name, precision=trained.context.precision)  # fmt: skip
    if not read:  # the prompt is empty, so start as a document does
        read = [end] if end is not None else [0]
    for number in range(options.samples):
        drawing = Drawing(
            temperature=options.temperature, top_k=options.top_k, top_p=options.top_p, seed=options.seed + number
        )
        _sample(trained, tokenizer, end, read, drawing, options.tokens)
    return 0


def _sample(
    trained: Trained, tokenizer: TextTokenizer, end: int | None, read: list[int], drawing: Drawing, count: int
) -> None:
    began = time.perf_counter()
    tokens: list[int] = []
    # decoded together with the prompt, because some tokenizers drop the space at the start of a text's first piece
    said, ended = tokenizer.decode(read), False
    for token in itertools.islice(generate(trained, read, drawing), count):
        if ended := token == end:
            break
        tokens.append(token)
        said = _grown(tokenizer.decode([*read, *tokens]), said)
    _grown(tokenizer.decode([*read, *tokens]), said, whole=True)
    seconds = round(time.perf_counter() - began, 4)
    _say("end", tokens=len(tokens), seconds=seconds, ended_itself=ended, seed=drawing.seed)


def _grown(text: str, said: str, *, whole: bool = False) -> str:
    """Print the new part of a text, unless it ends in half a character. Return what has been printed so far."""
    if text == said or (text.endswith(_BROKEN) and not whole):
        return said
    _say("text", text=text[len(said) :])
    return text


def _say(kind: str, **fields: Any) -> None:
    print(json.dumps({"kind": kind, **fields}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
