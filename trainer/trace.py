"""Records a profiler trace of a few steps in the run folder: what the GPU and the process did, event by event."""

from __future__ import annotations

from typing import Any

from torch.profiler import ProfilerActivity, profile, schedule

from trainer.device import DeviceContext
from trainer.guard import Guard
from trainer.loop import Trainer
from trainer.parallel import World
from trainer.schema import TRACE_LEAD, TRACE_WARMUP, TRACES


class StepTrace:
    """Traces some steps of an attempt, after the first ones, which compile and fill caches.

    The steps before the trace warm the profiler up, and are slowed by it too. Their seconds are logged as they are.
    """

    def __init__(self, steps: int, context: DeviceContext, world: World, guard: Guard):
        self._steps, self._context, self._world, self._guard = steps, context, world, guard
        self._done = 0
        self._profile: Any = None

    def after_step(self, trainer: Trainer) -> None:
        """Start the profiler, tell it of a new step, or write the file; call this after each step."""
        self._done += 1
        if self._done == TRACE_LEAD:
            cuda = [ProfilerActivity.CUDA] if self._context.is_cuda else []
            self._profile = profile(
                activities=[ProfilerActivity.CPU, *cuda],
                schedule=schedule(wait=0, warmup=TRACE_WARMUP, active=self._steps, repeat=1),
                record_shapes=True,  # without stacks, which slow the process down
            )
            self._profile.start()
        elif self._profile is not None and self._done <= TRACE_LEAD + TRACE_WARMUP + self._steps:
            self._profile.step()
            if self._done == TRACE_LEAD + TRACE_WARMUP + self._steps:
                self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        folder = self._guard.folder.path / TRACES
        folder.mkdir(exist_ok=True)
        name = f"rank_{self._world.rank}.json.gz"
        self._profile.stop()
        self._profile.export_chrome_trace(str(folder / name))
        self._profile = None
        last = trainer.steps_done
        self._guard.journal.write("trace", file=f"{TRACES}/{name}", first_step=last - self._steps + 1, step=last)
        words = f"traced steps {last - self._steps + 1} to {last}: advisor analyze {self._guard.folder.path}"
        self._guard.journal.message("info", words)
        trainer.restart_clock()  # writing the file belongs to no step
