"""What our own trainer prints, where its log is not at hand: `step 1/60  loss 6.2378  0.020 s` below a banner."""

from __future__ import annotations

from advisor.readers.line_format import LOSS, Facts, LineFormat, Row, Sign


def _fact(name: str, fact: str, value: bytes = rb"\d+") -> Facts:
    key = name.encode()
    return Facts(pattern=rb"(?m)^" + key + rb": (?P<" + fact.encode() + rb">" + value + rb")\s*$", needs=key)


FORMAT = LineFormat(
    name="own_screen",
    framework="training-advisor",
    rows=(
        Row(
            pattern=rb"step (?P<step>\d+)/\d+  loss (?P<loss>" + LOSS + rb")  (?P<seconds>[\d.]+) s\s*$",
            needs=b"  loss ",
        ),
    ),
    facts=(
        _fact("device", "gpu", rb"[^\n]+?"),
        _fact("world_size", "world_size"),
        _fact("precision", "precision", rb"\w+"),
        _fact("compile", "compile", rb"\w+"),
        _fact("family", "family", rb"\w+"),
        _fact("n_layer", "depth"),
        _fact("n_embd", "width"),
        _fact("n_head", "heads"),
        _fact("vocab_size", "vocab_size"),
        _fact("seq_len", "seq_len"),
        _fact("parameters", "parameters"),
        _fact("micro_batch", "micro_batch"),
        _fact("grad_accum", "grad_accum"),
        _fact("tokens_per_step", "step_tokens"),
        _fact("max_steps", "planned_steps"),
    ),
    signs=(Sign(pattern=rb"(?m)^attention_kernel: \w+\s*$", weight=0.5),),
)
