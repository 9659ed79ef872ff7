"""Time stamps of a device: the CPU's counter, or events in the CUDA stream, which need no synchronisation."""

from __future__ import annotations

import time

import torch

from trainer.device import DeviceContext

Stamp = float | torch.cuda.Event


class Clock:
    """Stamps on the timeline of one device, and the seconds between two stamps."""

    def __init__(self, context: DeviceContext):
        self._cuda = context.is_cuda

    def stamp(self) -> Stamp:
        """Return the present point in time. On CUDA it is the moment when the GPU has done all work queued so far."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self, stamp: Stamp) -> None:
        """Wait until the device has reached a stamp."""
        if not isinstance(stamp, float):
            stamp.synchronize()

    def between(self, start: Stamp, end: Stamp) -> float:
        """Return the seconds from one stamp to a later one. The device must have reached both."""
        if isinstance(start, float) and isinstance(end, float):
            return end - start
        assert not isinstance(start, float) and not isinstance(end, float)
        return start.elapsed_time(end) / 1000
