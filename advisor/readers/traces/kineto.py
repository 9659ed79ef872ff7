"""Reads a trace of torch.profiler (Kineto), or another in Chrome's JSON that names its events the same way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, BinaryIO

from advisor.readers.traces.json_stream import JsonStream
from advisor.readers.traces.kinds import Kind
from advisor.readers.traces.timeline import COPY, KERNEL, SET, Collector, Message, Timeline

_MICROSECOND = 1e-6
_LONGEST_NAME = 400
_LATEST = 1e18  # microseconds; later ones are damage
# Names of categories, with those before torch 1.11, where steps were operators too.
_DEVICE = {"kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": SET, "Kernel": KERNEL, "Memcpy": COPY, "Memset": SET}
_CALLS = ("cuda_runtime", "cuda_driver", "Runtime")
_OLD_RANGE = re.compile(r"ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)#|DistributedDataParallel")
# Operators whose shapes tell the vocabulary, the numbers' format, and attention that is written out.
_SHAPED = frozenset(
    f"aten::{name}"
    for name in ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "_scaled_mm", "softmax", "_softmax", "nll_loss",
                 "nll_loss_nd", "log_softmax", "_log_softmax", "cross_entropy_loss")
)  # fmt: skip
_RANK = re.compile(r"(?i)(?:rank|worker)[_.-]?(\d+)")


def read_kineto(stream: BinaryIO, file: str) -> Timeline:
    """Read a trace. Raises AdvisorError if it is not one; a cut trace is read as far as it goes."""
    source, rows = JsonStream(stream, file), _Rows()
    takers = {**dict.fromkeys(_DEVICE, rows.take_device), **dict.fromkeys(_CALLS, rows.take_call),
              "cpu_op": rows.take_op, "Operator": rows.take_op, "user_annotation": rows.take_range}  # fmt: skip
    for event in source.events():
        try:
            take = takers.get(event["cat"]) if "cat" in event else None
            if take is None or event.get("ph") != "X":
                continue
            start, seconds = float(event["ts"]), max(float(event.get("dur", 0)), 0.0) * _MICROSECOND
            if not (abs(start) < _LATEST and seconds < _LATEST):
                raise ValueError("no time")
            if rows.zero is None:
                rows.zero = start
            name = str(event["name"])[:_LONGEST_NAME]
            take(event, name, (start - rows.zero) * _MICROSECOND, seconds)
        except (KeyError, TypeError, ValueError, OverflowError):  # a field of another type than torch writes
            source.broken += 1
    about = source.head.get("distributedInfo")
    about = about if isinstance(about, dict) else {}
    in_name = _RANK.findall(file)
    return rows.timeline(
        file,
        Kind.KINETO,
        _gpus(source.head.get("deviceProperties")),
        rank=_whole(about.get("rank"), int(in_name[-1]) if in_name else None),
        world_size=_whole(about.get("world_size")),
        stacks=bool(source.head.get("with_stack")),
        cut=source.cut,
        broken=source.broken,
    )


class _Rows(Collector):
    """Takes the events of a trace, sort by sort."""

    zero: float | None = None  # the first time, in microseconds

    def take_device(self, event: Mapping[str, Any], name: str, start: float, seconds: float) -> None:
        args = _args(event)
        message = self.messages[_message(args)] if "Collective name" in args else -1
        device, stream = args.get("device", event.get("pid")), args.get("stream", event.get("tid"))
        correlation = int(args.get("correlation", -1))
        self.add_device(device, _DEVICE[event["cat"]], name, start, seconds, stream, correlation, message)

    def take_call(self, event: Mapping[str, Any], name: str, start: float, seconds: float) -> None:
        self.calls.add(start, seconds, self.names[name], self._thread(event), int(_args(event).get("correlation", -1)))

    def take_op(self, event: Mapping[str, Any], name: str, start: float, seconds: float) -> None:
        if _OLD_RANGE.match(name):
            self.take_range(event, name, start, seconds)
            return
        args = _args(event)
        extra = self.shapes[_frozen(args["Input Dims"])] if name in _SHAPED and "Input Dims" in args else -1
        self.add_op(name, start, seconds, self._thread(event), extra, differentiable="Sequence number" in args)

    def take_range(self, event: Mapping[str, Any], name: str, start: float, seconds: float) -> None:
        self.ranges.add(start, seconds, self.names[name], self._thread(event))

    def _thread(self, event: Mapping[str, Any]) -> int:
        return self.threads["host", event.get("pid"), event.get("tid")]


def _args(event: Mapping[str, Any]) -> dict[str, Any]:
    return args if isinstance(args := event.get("args"), dict) else {}


def _gpus(properties: Any) -> dict[Any, tuple[str | None, float | None]]:
    known = [one for one in properties if isinstance(one, dict)] if isinstance(properties, list) else []
    names = {one.get("id"): one for one in known if isinstance(one.get("id"), int) and isinstance(one.get("name"), str)}
    return {number: (one["name"][:80], _whole(one.get("totalGlobalMem"))) for number, one in names.items()}


def _whole(value: Any, other: int | None = None) -> int | None:
    return value if type(value) is int and 0 <= value < 2**53 else other


def _message(args: Mapping[str, Any]) -> Message:
    return Message(
        collective=str(args["Collective name"])[:40],
        group=str(args.get("Process Group Description") or args.get("Process Group Name") or "")[:60],
        elements_in=_whole(args.get("In msg nelems")),
        elements_out=_whole(args.get("Out msg nelems")),
        dtype=str(args.get("dtype", ""))[:20],
    )


def _frozen(value: Any) -> Any:
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value
