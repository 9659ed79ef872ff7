"""The child process that asks providers for prices through gpuhunt. It prints one JSON line as each provider answers.

    python -m advisor.hardware.price_hunt SECONDS

It is a separate process because gpuhunt may wait for a connection without end, and a waiting thread cannot be stopped.
Providers are asked in separate threads, so that none can break or delay the others. A line has `provider` and either
`items` or `error`.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import gpuhunt

# providers whose price lists gpuhunt publishes; gpuhunt's own loader fetches them
PUBLISHED = ("aws", "azure", "gcp", "lambdalabs", "nebius", "oci", "runpod", "verda", "cloudrift")
# providers that are asked directly; one that needs credentials reports an error if the environment has none
ASKED = {
    "vastai": "VastAIProvider",
    "vultr": "VultrProvider",
    "crusoe": "CrusoeProvider",
    "digitalocean": "DigitalOceanProvider",
    "hotaisle": "HotAisleProvider",
    "jarvislabs": "JarvisLabsProvider",
    "seeweb": "SeewebProvider",
}
FIELDS = (
    *("instance_name", "location", "price", "cpu", "memory", "gpu_count", "gpu_name", "gpu_memory", "spot"),
)  # of a gpuhunt item


def main() -> None:
    """Print answers until all providers have answered or the time is up. Then leave without waiting for the rest."""
    seconds = float(sys.argv[1])
    socket.setdefaulttimeout(max(1.0, 0.8 * seconds))
    answers: queue.Queue[dict] = queue.Queue()
    left = {*PUBLISHED, *ASKED}
    threading.Thread(target=_published, args=(answers,), daemon=True).start()
    for name in ASKED:
        threading.Thread(target=_answer, args=(answers, name, lambda name=name: _asked(name)), daemon=True).start()
    until = time.monotonic() + seconds
    while left and (remaining := until - time.monotonic()) > 0:
        try:
            answer = answers.get(timeout=remaining)
        except queue.Empty:
            break
        left.discard(answer["provider"])
        print(json.dumps(answer), flush=True)
    for name in sorted(left):
        print(json.dumps({"provider": name, "error": f"no answer within {seconds:g} s"}), flush=True)
    os._exit(0)  # threads may still be waiting for a connection


def _published(answers: queue.Queue[dict]) -> None:
    import gpuhunt

    catalog = gpuhunt.Catalog(auto_reload=False)
    failure = None
    if "GPUHUNT_CATALOG_DIR" not in os.environ:  # gpuhunt's own switch for lists on disk
        try:
            catalog.load()
        except gpuhunt.GPUHuntError as error:  # no list exists at all; `load` skips single missing ones
            failure = f"{error}: {error.__cause__}"
    for name in PUBLISHED:
        _answer(answers, name, partial(_items, catalog, name, failure))


def _asked(name: str) -> list[dict]:
    import gpuhunt

    module = importlib.import_module(f"gpuhunt.providers.{name}")
    catalog = gpuhunt.Catalog(auto_reload=False)
    catalog.add_provider(getattr(module, ASKED[name]).from_env())
    return _items(catalog, name, None)


def _items(catalog: gpuhunt.Catalog, name: str, failure: str | None) -> list[dict]:
    if failure:
        raise ConnectionError(failure)
    items = catalog.query(provider=name, min_gpu_count=1)
    if not items:
        raise ConnectionError("its price list came back empty")
    return [{field: getattr(item, field) for field in FIELDS} for item in items]


def _answer(answers: queue.Queue[dict], name: str, ask: Callable[[], list[dict]]) -> None:
    try:
        answers.put({"provider": name, "items": ask()})
    except Exception as error:  # an error in the code for one provider must not end the others
        answers.put({"provider": name, "error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
