"""Decides when a run writes checkpoints, and logs them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from trainer.checkpoint import CheckpointError, prune
from trainer.checkpoint_files import CHECKPOINTS
from trainer.guard import Guard
from trainer.loop import Trainer
from trainer.pace import Pace
from trainer.saving import Saver


def checkpoint_folder(guard: Guard) -> Path:
    """Return the present folder of the checkpoints, because a run folder may be moved during its run."""
    return guard.folder.path / CHECKPOINTS


class Checkpoints:
    """The checkpoints of one attempt at a run. Every process has this object and makes the same calls at the same step.

    A full or unwritable disk is reported and does not end the run.
    """

    def __init__(self, trainer: Trainer, guard: Guard, pace: Pace):
        self._trainer, self._guard, self._journal, self._pace = trainer, guard, guard.journal, pace
        self._config, self._world = trainer.config.checkpoint, trainer.world
        background = self._config.background
        background = trainer.context.is_cuda if background is None else background
        self._saver = Saver(
            lambda: checkpoint_folder(guard), self._world, trainer.context.device, background=background
        )
        self.newest_step = self._tried_step = trainer.steps_done
        self._began_at = time.monotonic()
        self._stood_seconds = 0.0

    @property
    def time_is_up(self) -> bool:
        """Tell whether the time between two checkpoints has passed, by the main process's clock."""
        every = self._config.every_seconds
        return self._world.is_main and every is not None and time.monotonic() - self._began_at >= every

    @property
    def written(self) -> bool:
        """Tell whether this process has nothing left to write."""
        return self._saver.written

    @property
    def something_is_due(self) -> bool:
        """Tell whether to begin a checkpoint, or to finish the current one. The answer is the same on all processes."""
        return self._is_due or self._is_written

    def do_what_is_due(self, extra: dict[str, Any]) -> None:
        if self._is_written:
            self.finish()
        if self._is_due:
            self.begin(extra)

    def begin(self, extra: dict[str, Any]) -> None:
        """Start writing a checkpoint, unless this step has one already."""
        self.finish()
        step = self._trainer.steps_done
        if step == self.newest_step:
            return
        self._guard.dead_man.doing(f"the checkpoint of step {step}", self._pace.usual_checkpoint)
        began = time.perf_counter()
        self._began_at, self._tried_step = time.monotonic(), step  # after a failure, too: it is tried again when due
        try:
            self._saver.begin(self._trainer.snapshot(extra))
        except CheckpointError as error:
            self._journal.message("warning", str(error))
            return
        self._stood_seconds = time.perf_counter() - began
        if not self._saver.background:
            self.finish()
        self._trainer.restart_clock()

    def finish(self) -> None:
        """Publish the checkpoint in progress, if there is one, after waiting for it."""
        if not self._saver.under_way:
            return
        self._guard.dead_man.doing("the checkpoint under way", self._pace.usual_checkpoint)
        began = time.perf_counter()
        try:
            saved = self._saver.finish()
        except CheckpointError as error:
            self._journal.message("warning", str(error))
            return
        self.newest_step = saved.step
        self._prune()
        seconds = self._stood_seconds + time.perf_counter() - began
        self._pace.add_checkpoint(max(seconds, saved.write_seconds))  # a run that is stopped waits for the whole time
        what = {"step": saved.step, "path": saved.path, "bytes": saved.bytes}
        self._journal.write("checkpoint", **what, seconds=seconds, write_seconds=saved.write_seconds)
        self._journal.say(f"step {saved.step}  checkpoint {saved.path}, {saved.bytes} bytes in {seconds:.2f} s")
        self._trainer.restart_clock()

    @property
    def _is_due(self) -> bool:
        every, step = self._config.every_steps, self._trainer.steps_done
        if step == self._tried_step:
            return False
        if every is not None and step % every == 0:
            return True
        return self.time_is_up if self._world.size == 1 else self._trainer.agreed.save

    @property
    def _is_written(self) -> bool:
        agreed = self._saver.written if self._world.size == 1 else self._trainer.agreed.written
        return self._saver.under_way and agreed

    def _prune(self) -> None:
        if not self._world.is_main:
            return
        try:
            prune(checkpoint_folder(self._guard), self._config.keep)
        except CheckpointError as error:
            self._journal.message("warning", str(error))
