"""The trainer of this repository, `python -m trainer`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.errors import AdvisorError
from advisor.store.run_folder import CONFIG, LOG
from trainer.runlog import RunLogError, load_run_log
from trainer.schema import RunConfig, dump_config

if TYPE_CHECKING:
    from advisor.readers.run_table import RunTable


class OwnTrainer:
    """Reads `run.yaml`, writes `log.jsonl` beside its checkpoints."""

    name = "own"
    log_name = LOG

    def files(self, config: RunConfig) -> Mapping[str, str]:
        """One file, `run.yaml`."""
        return {CONFIG: dump_config(config)}

    def command(self, folder: Path, gpus: int) -> tuple[str, ...]:
        """This very interpreter; under torchrun when there is more than one device."""
        trainer = ("-m", "trainer", str(folder / CONFIG), "--out", str(folder))
        if gpus == 1:
            return (sys.executable, *trainer)
        torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}")
        return (sys.executable, *torchrun, *trainer)

    def read_log(self, folder: Path) -> RunTable:
        """The table of `log.jsonl`."""
        from advisor.readers import own_log  # numpy: launching and listing start without it

        return own_log.read(folder / self.log_name)

    def used_seconds(self, folder: Path) -> float:
        """Seconds of every attempt that ended with a word; the trainer adds them up in the same way."""
        path = folder / self.log_name
        if not path.exists():
            return 0.0
        try:
            finals = load_run_log(path).finals
        except RunLogError as error:
            raise AdvisorError(f"the log is damaged: {error}", "mend or remove that line") from error
        return sum(final.get("seconds") or 0.0 for final in finals)

    def burst_worker(self, device: str) -> tuple[str, ...]:
        """`python -m trainer.worker`."""
        return (sys.executable, "-m", "trainer.worker", "--device", device)


OWN = OwnTrainer()
