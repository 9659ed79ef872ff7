"""Reads a trace of torch.profiler (Kineto), or another in Chrome's JSON that names its events the same way."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from advisor.readers.traces.json_stream import JsonStream
from advisor.readers.traces.kinds import Kind
from advisor.readers.traces.timeline import COPY, KERNEL, SET, Columns, Message, Numbers, Timeline, linked

_MICROSECOND = 1e-6
_LONGEST_NAME = 400
_LATEST = 1e18  # microseconds; later ones are damage
_DEVICE = {"kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": SET}
_CALLS = ("cuda_runtime", "cuda_driver")
# Operators whose shapes tell the vocabulary, the numbers' format, and attention that is written out.
_SHAPED = frozenset(
    f"aten::{name}"
    for name in ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "_scaled_mm", "softmax", "_softmax", "nll_loss",
                 "nll_loss_nd", "log_softmax", "_log_softmax", "cross_entropy_loss")
)  # fmt: skip
_RANK = re.compile(r"(?i)(?:rank|worker)[_.-]?(\d+)")


def read_kineto(stream: BinaryIO, name: str) -> Timeline:
    """Read a trace. Raises AdvisorError if it is not one; a cut trace is read as far as it goes."""
    source, rows = JsonStream(stream, name), _Rows()
    takers = {**dict.fromkeys(_DEVICE, rows.add_device), **dict.fromkeys(_CALLS, rows.add_call),
              "cpu_op": rows.add_op, "user_annotation": rows.add_range}  # fmt: skip
    for event in source.events():
        try:
            take = takers.get(event.get("cat"))
            if take is None or event.get("ph") != "X":
                continue
            start, seconds = float(event["ts"]), max(float(event.get("dur", 0)), 0.0) * _MICROSECOND
            if not (abs(start) < _LATEST and seconds < _LATEST):
                raise ValueError("no time")
            if rows.zero is None:
                rows.zero = start
            args = event.get("args")
            take(event, (start - rows.zero) * _MICROSECOND, seconds, args if isinstance(args, dict) else {})
        except (KeyError, TypeError, ValueError, OverflowError):  # a field of another type than torch writes
            source.broken += 1
    return rows.timeline(source, name)


class _Rows:
    """The events of a trace as they are read."""

    def __init__(self) -> None:
        self.zero: float | None = None  # the first time, in microseconds
        self.names, self.threads, self.messages, self.shapes = Numbers(), Numbers(), Numbers(), Numbers()
        self.device, self.calls, self.ops, self.ranges = Columns(), Columns(), Columns(), Columns()
        self.device_id, self.device_kind, self.message = array("i"), array("b"), array("i")
        self.device_bytes = array("d")
        self.op_differentiable = array("b")

    def _name(self, event: Mapping[str, Any]) -> int:
        return self.names[str(event["name"])[:_LONGEST_NAME]]

    def add_device(self, event: Mapping[str, Any], start: float, seconds: float, args: Mapping[str, Any]) -> None:
        kind = _DEVICE[event["cat"]]
        stream, device = args.get("stream", event.get("tid")), args.get("device", event.get("pid"))
        values = int(args.get("correlation", -1)), float(args.get("bytes", 0))
        message = -1
        if "Collective name" in args:
            message = self.messages[_message(args)]
        self.device.add(start, seconds, self._name(event), self.threads["stream", stream], values[0])
        self.device_id.append(self.threads["device", device])
        self.device_kind.append(kind)
        self.device_bytes.append(values[1])
        self.message.append(message)

    def add_call(self, event: Mapping[str, Any], start: float, seconds: float, args: Mapping[str, Any]) -> None:
        correlation = int(args.get("correlation", -1))
        self.calls.add(start, seconds, self._name(event), self._thread(event), correlation)

    def add_op(self, event: Mapping[str, Any], start: float, seconds: float, args: Mapping[str, Any]) -> None:
        shape = -1
        if event["name"] in _SHAPED and "Input Dims" in args:
            types = args.get("Input type", args.get("Input Types"))
            shape = self.shapes[_frozen(args["Input Dims"]), _frozen(types)]
        elif event["name"] == "record_param_comms" and "Collective name" in args:
            shape = self.messages[_message(args)]
        self.ops.add(start, seconds, self._name(event), self._thread(event), shape)
        self.op_differentiable.append("Sequence number" in args)

    def add_range(self, event: Mapping[str, Any], start: float, seconds: float, args: Mapping[str, Any]) -> None:
        self.ranges.add(start, seconds, self._name(event), self._thread(event))

    def _thread(self, event: Mapping[str, Any]) -> int:
        return self.threads["host", event.get("pid"), event.get("tid")]

    def timeline(self, source: JsonStream, name: str) -> Timeline:
        """Return the record: the busiest device, without the events whose launch is not in the file."""
        device, calls = self.device.events(), self.calls.events()
        ids = np.asarray(self.device_id)
        busy = Counter(ids.tolist())
        mine = ids == (max(busy, key=lambda one: busy[one]) if busy else -1)
        launch, are_linked = linked(calls.extra, device[mine])
        rows = np.flatnonzero(mine)
        if are_linked:
            rows, launch = rows[launch >= 0], launch[launch >= 0]
        columns = {name: np.asarray(getattr(self, name))[rows] for name in ("device_kind", "device_bytes", "message")}
        chosen = device[rows]
        head = source.head
        about = head.get("distributedInfo")
        about = about if isinstance(about, dict) else {}
        gpu = _gpu(head.get("deviceProperties"), self, ids[mine])
        return Timeline(
            source=name,
            kind=Kind.KINETO,
            names=tuple(self.names),
            device=chosen.with_extra(launch),
            calls=calls,
            ops=self.ops.events(),
            op_differentiable=np.asarray(self.op_differentiable).astype(bool),
            ranges=self.ranges.events(),
            messages=tuple(self.messages),
            shapes=tuple(self.shapes),
            rank=_whole(about.get("rank"), _rank_of(name)),
            world_size=_whole(about.get("world_size"), None),
            gpu=gpu.get("name") if isinstance(gpu.get("name"), str) else None,
            gpu_bytes=float(_whole(gpu.get("totalGlobalMem"), None) or 0) or None,
            devices=len(busy),
            unlinked=int(mine.sum()) - len(rows),
            linked=are_linked,
            stacks=bool(head.get("with_stack")),
            cut=source.cut,
            broken=source.broken,
            **columns,
        )


def _gpu(properties: Any, rows: _Rows, ids: Any) -> Mapping[str, Any]:
    """Return the properties of the device whose events are kept, or of the first if all are alike."""
    known = [one for one in properties if isinstance(one, dict)] if isinstance(properties, list) else []
    labels = {number: key[1] for key, number in rows.threads.items() if key[0] == "device"}
    wanted = labels.get(int(ids[0])) if len(ids) else None
    mine = [one for one in known if one.get("id") == wanted]
    return (mine or known or [{}])[0]


def _rank_of(name: str) -> int | None:
    found = _RANK.findall(name)
    return int(found[-1]) if found else None


def _whole(value: Any, other: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else other


def _message(args: Mapping[str, Any]) -> Message:
    return Message(
        collective=str(args["Collective name"])[:40],
        group=str(args.get("Process Group Description") or args.get("Process Group Name") or "")[:60],
        group_size=_whole(args.get("Group size"), None),
        elements_in=_whole(args.get("In msg nelems"), None),
        elements_out=_whole(args.get("Out msg nelems"), None),
        dtype=str(args.get("dtype", ""))[:20],
    )


def _frozen(value: Any) -> Any:
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value
