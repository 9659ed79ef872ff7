"""A trainer that writes a recorded log line by line: everything around it is real."""

import os
import signal
import socket
import sys
import time
from pathlib import Path

from advisor.engines.process import python_command
from advisor.trainers.own import OwnTrainer
from trainer.runlog import RunLogWriter, read_records

RECORDING = Path(__file__).parents[1] / "recorded" / "small.jsonl"


class ReplayTrainer(OwnTrainer):
    """Our own trainer's files and log; `speed` 10 plays ten times faster than it happened, `inf` at once."""

    def __init__(self, speed):
        self.speed = speed

    def command(self, folder, gpus):
        return python_command("-m", "tests.advisor.replay", str(folder), str(self.speed))


def replay(folder, speed):
    """SIGTERM ends it with a final record, outcome `stopped`, as it would the trainer."""
    stopped = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    records, _ = read_records(RECORDING)
    began, step = time.time(), 0
    with RunLogWriter(folder / "log.jsonl") as log:
        for record in records:
            due = began + (record["time"] - records[0]["time"]) / speed
            while not stopped and (left := due - time.time()) > 0:
                time.sleep(min(left, 0.05))
            if stopped:
                log.write("final", outcome="stopped", reason="SIGTERM", step=step, seconds=time.time() - began)
                return
            step = record.get("step", step)
            here = {"pid": os.getpid(), "host": socket.gethostname()} if record["kind"] == "header" else {}
            log.write(record["kind"], **{k: v for k, v in record.items() if k not in ("kind", "time")} | here)


if __name__ == "__main__":
    replay(Path(sys.argv[1]), float(sys.argv[2]))
