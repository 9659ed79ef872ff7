"""Settings that a report declares anywhere: `batch_size = 12`, `--total_steps 30000`,"
" `"seq_length": 8192`, `Layers: 32`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from advisor.auditing.paper.document import Document

_ASSIGNED = re.compile(
    r"(?:^|[\s,{(|`\"'])(?:--)?(?P<name>[A-Za-z][A-Za-z_]*(?:[ _-][A-Za-z_]+){0,3})[\"'`]?\s*(?:[:=]"
    r"|(?<=[a-z_])\s(?=\d))\s*"
    r"[\"'`]?(?P<value>\d[\d,_]*(?:\.\d+)?)(?P<scale>[kKMB])?(?![\w.%/]|\s?[x×*/+-]\s?\d|\s?(?:GB|MB|param"
    r"|tokens? (?:per|each|/)))"
)
_FLAG = re.compile(r"--(?P<name>[a-z][\w-]*)[ =](?P<value>\d[\d,_]*(?:\.\d+)?)(?P<scale>[kKMB])?(?![\w.])")
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}
# setting → names that it goes by, without case and with underscores
_NAMES = tuple(
    (setting, re.compile(rf"(?:{pattern})"))
    for setting, pattern in (
        ("global_batch", r"global_batch(?:_size)?|effective_batch(?:_size)?|total_batch(?:_size)?"),
        ("micro_batch", r"(?:micro_|per_device_(?:train_)?|device_|train_)?batch(?:_size)?(?:_per_(?:gpu|device))?"),
        ("accumulation", r"(?:gradient_|grad_)?acc(?:um|umulation)?(?:_steps)?|(?:gradient_|grad_)accum\w*"),
        (
            "sequence",
            r"(?:max_)?seq(?:uence)?(?:_?len(?:gth)?)?|block_size|context(?:_len(?:gth)?|_size|_window)?|n_ctx",
        ),
        ("steps", r"(?:total_|max_|num_|training_|train_)?(?:training_|train_)?(?:steps|iters|iterations)"),
        ("layers", r"(?:n_|num_|number_of_)?(?:hidden_)?layers?|depth"),
        ("width", r"n_embd|(?:hidden|embed(?:ding)?)_(?:size|dim(?:ension)?)|model_dim|d_model|hidden_dim"),
        ("vocabulary", r"vocab(?:ulary)?(?:_size)?"),
        ("tensor_parallel", r"tensor(?:_model)?_parallel(?:_size|_degree|ism)?|tp(?:_size|_degree)?"),
        ("pipeline_parallel", r"pipeline(?:_model)?_parallel(?:_size|_degree|ism)?|pp(?:_size|_degree)?"),
        ("data_parallel", r"data_parallel(?:_size|_degree|ism)?|dp(?:_size|_degree)?"),
        ("context_parallel", r"context_parallel(?:_size|_degree|ism)?|cp(?:_size|_degree)?"),
        ("gpus", r"(?:num_|n_|total_|number_of_)?gpus|world_size|num_devices"),
        ("nodes", r"(?:num_|n_|number_of_)?nodes"),
        ("gpus_per_node", r"(?:num_|n_)?gpus_per_(?:node|server|machine)|nproc_per_node"),
    )
)


def settings(document: Document) -> dict[str, list[float]]:
    """All values that a report sets anywhere, the one that it states most often first, of equals the least."""
    texts = [p.text for p in document.passages]
    return together(
        [*texts, *(f"{row.cells[0]}: {row.cells[1]}" for g in document.grids if len(g.header) == 2 for row in g.rows)]
    )


def together(texts: Iterable[str]) -> dict[str, list[float]]:
    """All values that some texts set, the one that is stated most often first, of equals the least."""
    found: dict[str, Counter[float]] = {}
    for text in texts:
        for name, value in settings_in(text).items():
            found.setdefault(name, Counter())[value] += 1
    return {name: sorted(values, key=lambda v: (-values[v], v)) for name, values in found.items()}


def settings_in(text: str) -> Mapping[str, float]:
    """What one line sets; of a name that it sets twice, nothing."""
    found: dict[str, set[float]] = {}
    for match in [*_ASSIGNED.finditer(text), *_FLAG.finditer(text)]:
        name = re.sub(r"[ -]+", "_", match["name"].lower())
        setting = next((s for s, pattern in _NAMES if pattern.fullmatch(name)), None)
        if setting is not None:
            value = float(re.sub(r"[,_]", "", match["value"])) * _SCALES[(match["scale"] or "").lower()]
            found.setdefault(setting, set()).add(value)
    return {name: next(iter(values)) for name, values in found.items() if len(values) == 1}
