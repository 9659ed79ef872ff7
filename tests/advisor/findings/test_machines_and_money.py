"""What detectors find in speeds, devices, clocks and endings: each row is a run with one thing wrong, or hardly so."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from advisor.findings.case import Case
from advisor.findings.detectors import out_of_memory, speed
from advisor.findings.registry import judge
from advisor.readers.clock import BAR
from advisor.readers.run_table import RunPart, Status
from advisor.records import Workload
from tests.advisor.findings import build
from tests.advisor.findings.build import event, found, silent, unjudged, verify
from trainer.schema import make_shape

GIB = 2**30
READING = np.arange(400)
STEP = np.arange(1, 1001)
NOISE = 1 + 0.01 * np.random.default_rng(5).standard_normal(1000)


def approx(value, rel=0.01):
    return pytest.approx(value, rel=rel)


def run(w=None, known=None, **columns):
    """A case when it is called: GPT-2 124M on an A100 at $2 an hour, unless it is another workload."""
    return lambda: dataclasses.replace(build.case(build.run(**columns), w), **(known or {}))


def healthy(w=None, known=None, **columns):
    return lambda: dataclasses.replace(build.case(build.healthy(w, **columns), w), **(known or {}))


def watched(readings=400, gpus=1, w=None, facts=None, **columns):
    """Telemetry of busy GPUs; each keyword is a column per GPU or per reading and GPU."""
    wide = {
        name: values
        if values is None
        else np.broadcast_to(np.asarray(values, float).reshape(-1, gpus) if np.ndim(values) else values,
                             (readings, gpus)).ravel()
        for name, values in columns.items()
    }  # fmt: skip
    return healthy(w, telemetry=build.telemetry(readings, gpus=gpus, **wide), facts=facts or {})


def timed(seconds=NOISE, **other):
    return run(steps=1000, seconds=seconds, **other)


# nanochat d16 on two H100: 524,288 tokens per step, 430,600 tokens/s are 43.83 % of 989 TFLOP/s (sources §8.3)
D16 = Workload(
    shape=make_shape("nanochat", depth=16, vocab_size=65536, seq_len=2048),
    micro_batch=8, grad_accum=16, gpu="h100-80gb-sxm", gpus=2, compile=True,
)  # fmt: skip


def d16(**columns):
    return run(D16, seconds=524_288 / 430_600, facts={"step_tokens": 524_288}, **columns)


FLOOR = 28 * 124_439_808 / 2.039e12  # GPT-2 124M on an A100 80 GB: 28 bytes a parameter at 2,039 GB/s are 1.709 ms
SPEED = {
    # 365,152 tok/s x 854,438,400 FLOPs per token (6·123,532,032 + 12·12·768·1024) = 312e12: all of an A100
    "all of the peak": (run(seconds=524_288 / 365_152, facts={"step_tokens": 524_288}),
                        found("impossible_mfu", "error", starts="The log's speed would be 100 %")),
    "44 % of the peak": (d16(), silent("impossible_mfu")),
    "an unknown shape": (run(known={"workload": None}), unjudged("impossible_mfu")),
    # nanoGPT divides by 312 TFLOP/s whatever the card: 989/312 x 43.8 % = 139 %
    "MFU over an A100's peak": (d16(mfu=0.4383 * 989 / 312),
                                found("logged_mfu", "error", "139 %", "43.8 %",
                                    says="divides by an A100's 312 TFLOP/s")),
    "MFU as it is": (d16(mfu=0.436), silent("logged_mfu")),
    "MFU over the sparse peak": (d16(mfu=0.4383 / 2),
                                 found("logged_mfu", "warning", says="divides by the peak with 2:4 sparsity")),
    "MFU not collected": (d16(mfu=0.0), unjudged("logged_mfu")),
    "MFU of -1": (d16(mfu=-1.0), unjudged("logged_mfu")),
    "a tiny MFU": (lambda: Case(run=build.run(mfu=0.0006)), found("logged_mfu", "note", "0.06 %")),
    "an MFU that nothing recomputes": (lambda: Case(run=build.run(mfu=0.35)), unjudged("logged_mfu")),
    "an optimizer below its traffic": (  # not even 16-bit states could
        healthy(optimizer_seconds=0.6e-3),
        found("optimizer_floor", "error", "is timed at 600 µs, where physics needs 1.71 ms or more",
            says="confidence: high"),
    ),
    "an optimizer near its traffic": (healthy(optimizer_seconds=0.9 * FLOOR),
        found("optimizer_floor", says="confidence: medium")),
    "an optimizer above its traffic": (healthy(optimizer_seconds=1.05 * FLOOR), silent("optimizer_floor")),
    "another optimizer": (healthy(optimizer_seconds=0.6e-3, facts={"optimizer": "Lion"}), silent("optimizer_floor")),
    "an optimizer not timed": (healthy(), unjudged("optimizer_floor")),
    "perhaps a quarter of the parameters each": (healthy(build.workload(gpus=4), optimizer_seconds=0.6e-3),
                                                 silent("optimizer_floor")),
    "an optimizer on an unknown card": (healthy(known={"profile": None}, optimizer_seconds=0.6e-3),
                                        unjudged("optimizer_floor")),
    "as fast as predicted": (healthy(), silent("software_bound")),
    "a guessed workload at four times": (
        healthy(known={"unsure": ("the number of GPUs is not printed: one was assumed",)}, seconds=10.0),
        found("software_bound", "note"),
    ),
    "no prediction": (healthy(known={"expected": None}), unjudged("software_bound")),
}  # fmt: skip

BUSY = np.where(READING % 4 == 0, 0.9, 0.0)  # a kernel in a quarter of the readings
# one reading a second beside one step a second, so that step 101 belongs to reading 100
CLOCKED = {"unix_seconds": np.arange(400.0), "seconds": np.where(READING < 100, 1.0, 1.25)}
HOT = {"throttle_reasons": np.where(READING < 100, 0.0, 0x40), "temperature_celsius": 93.0}
CAPPED = {"throttle_reasons": np.where(READING < 200, 0.0, 0x4)}
LATER = np.where(np.arange(600) < 240, 0.95, 0.0)  # ten minutes, the last six of them idle
HOUR = np.arange(3600)
TWO = build.workload(gpus=2)
PAIR = np.full((600, 2), 0.9)
PAIR[100:401, 1] = 0.0
FOUR = {"utilization": [0.97, 0.95, 0.02, 0.97], "power_watts": [340, 350, 62, 345]}


def ranked(slow, ranks=4, steps=100):
    """Interleaved rows of four ranks; rank 2 needs `slow` times as long for forward and backward."""
    rank = np.tile(np.arange(ranks, dtype=float), steps)
    own = np.where(rank == 2, slow, 1.0) * (1 + 0.005 * np.random.default_rng(3).standard_normal(ranks * steps))
    return run(build.workload(gpus=ranks), steps=ranks * steps, step=np.repeat(np.arange(1, steps + 1), ranks),
        rank=rank,
               seconds=1.3, forward_seconds=own / 3, backward_seconds=own * 2 / 3)  # fmt: skip


DEVICES = {
    # 124M parameters: 498 MB of 16-bit weights and gradients, 15 MB on the card of 400 W; 524,288 / 5000 x 854,438,400
    "training on the CPU": (
        run(build.workload(compile=False), seconds=5000.0, facts={"step_tokens": 524_288},
            telemetry=build.telemetry(memory_used_bytes=15e6, power_watts=60.0, utilization=0.0)),
        found("cpu_fallback", "error", "5 of 5 signs", says=("15 % of its limit", "89.6 GFLOP/s"),
              starts="It does not run on the GPU, "),
    ),
    "a working card": (watched(), silent("cpu_fallback", "utilization", "gpu_waits", "throttling")),
    "a CPU that was meant": (run(build.workload(gpu="cpu", precision="fp32")), silent("cpu_fallback")),
    "too few signs": (lambda: dataclasses.replace(build.case(build.without(build.run(), "seconds")), workload=None,
                                                  profile=None), unjudged("cpu_fallback")),
    "utilisation is not use": (
        watched(power_watts=120.0, utilization=0.97),
        found("utilization_misleads", "", "97 % utilisation is not 97 % use: power 30 % of the limit"),
    ),
    # 1 - 0.9/4
    "a waiting card": (watched(utilization=BUSY, power_watts=100.0), found("gpu_waits", "", "77.5 % of the time")),
    "low readings at full power": (watched(utilization=BUSY, power_watts=380.0), silent("gpu_waits", "utilization")),
    "power alone": (watched(utilization=None, power_watts=22.0),
                    found("gpu_idle", starts="The GPU draws 22 W: it computes nothing")),
    "power alone, at work": (watched(utilization=None), unjudged("utilization")),
    "no telemetry": (run(),
        unjudged("utilization", "throttling", "idle_device", "memory_nearly_full", "memory_growth")),
    # 300 of 400 steps take 0.25 s too long: 0.75 x (1 - 1/1.25) = 15 % of the time
    "a hot card, by step time": (
        run(**CLOCKED, telemetry=build.telemetry(400, **HOT)),
        found("throttling", "error", hours=approx(0.15 * 399 / 3600, 1e-3), usd=approx(0.3 * 399 / 3600, 1e-3),
            says="93 °C",
              starts="Throttled (hardware thermal slowdown) in 75 % of the readings, 1.25x slower by step time"),
    ),
    "a hot card, by its clock": (
        watched(throttle_reasons=np.where(READING % 2 == 0, 0x8, 0), sm_clock_mhz=np.where(READING % 2 == 0, 700.0,
            1400.0)),
        found("throttling", "", "2x slower by SM clock"),
    ),
    "a power cap": (watched(**CAPPED), silent("throttling")),
    "a power cap that lowers clocks": (watched(**CAPPED, sm_clock_mhz=np.where(READING < 200, 1410.0, 1100.0)),
                                       found("throttling", "", "power cap")),
    "the second of two is hot": (watched(gpus=2, throttle_reasons=[0.0, 0x40]),
                                 found("throttling", says="by GPU: GPU 0 in 0 %, GPU 1 in 100 %")),
    "a slow rank": (ranked(1.12), found("straggler", starts="Rank 2 is 12")),
    "ranks alike": (ranked(1.02), silent("straggler")),
    "a slow clock of two": (watched(gpus=2, w=TWO, sm_clock_mhz=[1410.0, 1200.0]), found("straggler", starts="GPU 1")),
    "two that nobody watched": (healthy(TWO), unjudged("straggler")),
    "one card waits for nobody": (run(), silent("straggler")),
    "idle minutes": (  # is one finding and not two
        watched(600, utilization=LATER, power_watts=np.where(LATER > 0.5, 350.0, 60.0)),
        found("idle_device"), silent("gpu_waits", "utilization"),
    ),
    "waiting in between": (
        watched(600, utilization=np.where(np.arange(600) % 4 == 0, 0.95, 0.0), power_watts=100.0),
        found("gpu_waits"), silent("idle_device"),
    ),
    "twenty minutes of an hour": (  # a third of $2
        watched(3600, utilization=np.where(HOUR < 1200, 0.0, 0.95)),
        found("idle_device", "", "33.3 % of the time watched", "20 min, $0.67"),
    ),
    # evaluations
    "a minute in five": (watched(3600, utilization=np.where(HOUR % 300 < 60, 0.0, 0.95)), silent("idle_device")),
    "memory held while nothing runs": (watched(600, utilization=np.where(np.arange(600) > 100, 0.0, 0.9)),
                                       found("idle_device", "warning", says="stay allocated")),
    "cards alike": (watched(600, 4, power_watts=350 + 25 * np.random.default_rng(3).standard_normal((600, 4))),
                    silent("card_idle")),
    "a card alone": (watched(600), unjudged("card_idle")),
    "one of four is idle": (
        watched(600, 4, facts={"world_size": 4}, **FOUR),
        found("card_idle", "warning", says="62 W", starts="GPU 2 of 4: 2 % utilisation, where the others have 97 %"),
    ),
    "one of four is idle, as was asked for": (watched(600, 4, facts={"world_size": 3}, **FOUR),
        found("card_idle", "note")),
    "a snapshot": (watched(1, 8, utilization=[0.05, 0.33, 0.06, 0.33, 0.19, 0.21, 0.24, 0.43]),
                   found("card_idle", "note", "(a snapshot)", starts="GPUs 0, 2 of 8")),
    "a stretch without work": (
        watched(600, 2, utilization=PAIR),
        found("card_idle", says="from 100 s to 6.67 min", starts="GPU 1 of 2 had nothing to do for 5 min"),
    ),
    "a stretch seen in every fifth reading": (  # our own telemetry reads power more often than use
        watched(600, 2, utilization=np.where(np.arange(600)[:, None] % 5, np.nan, PAIR)),
        found("card_idle", starts="GPU 1 of 2 had nothing to do for 5 min"),
    ),
    "a pause of both": (watched(600, 2, utilization=PAIR[:, 1:].repeat(2, 1)), silent("card_idle")),
    "one of two never used": (watched(1200, 2, utilization=[0.95, 0.0]),
                              found("card_idle", starts="GPU 1 of 2"), silent("idle_device")),
    "one never, the other not at first": (  # 400 of the 1,200 seconds
        watched(1200, 2, utilization=np.where(np.arange(1200)[:, None] < 400, 0.0, [0.95, 0.0])),
        found("idle_device", starts="Nothing ran on the GPU for 6.65 min"),
    ),
    "nearly full": (watched(memory_used_bytes=20137.0, memory_total_bytes=20148.0),
        found("memory_nearly_full", "", "99.9 % full")),
    "not full": (watched(), silent("memory_nearly_full")),
    # 10 GB in 1,000 steps
    "growing memory": (healthy(memory_bytes=10e9 * (1 + READING / 1000)), found("memory_growth", says="9.31")),
    "memory that fills": (healthy(memory_bytes=np.minimum(10e9, 1e8 * np.arange(1, 401))), silent("memory_growth")),
}  # fmt: skip


def epochs(seconds, **columns):
    values = {"epoch": np.arange(1.0, len(seconds) + 1), "epoch_seconds": np.array(seconds, dtype=float), **columns}
    return run(steps=len(seconds), seconds=None, **values)


def went_on(seconds):
    """A last epoch whose bar went on: seven epochs of 270 s, and a clock of so many."""
    part = RunPart(
        name="training", status=Status.INCOMPLETE, status_reason="", phase=0, clock=BAR, clock_seconds=seconds
    )
    return epochs([270.0] * 7, status=Status.INCOMPLETE, runs=(part,))


ALTERNATING = np.where(STEP % 2 == 0, 3.0, 0.02)  # every other step waits three times as long as it works
UNEVEN = np.where(STEP % 5 > 2, 2.0, 0.5)
HUNDREDTH = STEP % 100 == 0
SAVES = [event("checkpoint", step=float(s)) for s in range(50, 1001, 50)]
FIFTIETH = np.where(STEP % 50 == 0, 6.0, 1.0) * NOISE
PRINTED = np.arange(0, 5001, 10)
AGAIN = event("restart", "steps go back from 300 to 201", 300, first_step=201.0, last_step=300.0)
CLOCKS = {
    "waiting for data": (timed(data_seconds=0.2),
        found("data_stall", "warning", starts="20 %", usd=approx(2 * 200 / 3600))),
    "hardly waiting": (timed(data_seconds=0.02), silent("data_stall")),
    "waiting most of the time": (timed(data_seconds=0.6), found("data_stall", "error")),
    # what waits longer than a step lies beside it: 1,000 steps of 1 s and 1.51 s of waiting
    "waiting beside the step": (
        timed(data_seconds=ALTERNATING),
        found("data_stall", "error", starts="60.2 % of the time is spent waiting for data", hours=approx(1510 / 3600),
              says="beside the seconds of the step"),
    ),
    "waiting within the step": (timed(NOISE + 0.5, data_seconds=0.5), found("data_stall", starts="33.3 %")),
    # the clock tells which it is; one of whole seconds sees it as well
    "a clock of the steps": (timed(data_seconds=0.4, unix_seconds=np.cumsum(NOISE)),
        found("data_stall", starts="40 %")),
    "a clock of more": (timed(data_seconds=0.4, unix_seconds=np.cumsum(NOISE + 0.4)),
        found("data_stall", starts="28.6 %")),
    "a clock of whole seconds": (timed(NOISE * 4, data_seconds=3.0, unix_seconds=np.round(np.cumsum(NOISE * 4 + 3.0))),
                                 found("data_stall", starts="42.9 %")),
    "waiting is not said twice": (timed(data_seconds=ALTERNATING, unix_seconds=np.cumsum(NOISE + ALTERNATING)),
        silent("goodput")),
    "nobody knows what it waits for": (timed(unix_seconds=np.cumsum(NOISE + ALTERNATING)), found("goodput")),
    "evaluations every 100 steps": (  # ten pauses of 30 s beside 1,000 s
        timed(NOISE + 30 * HUNDREDTH, eval_loss=np.where(HUNDREDTH, 3.0, np.nan)),
        found("periodic_pauses", "warning", says="evaluate every 200 steps",
              starts="Every 100 steps one takes 30 s longer: 23.1 % of the time (evaluation)"),
    ),
    "every tenth step printed": (  # each 250th evaluates for 8 s: 8 / (250·0.0625 + 8)
        run(steps=501, step=PRINTED, seconds=np.where((PRINTED % 250 == 0) & (PRINTED > 0), 8.0625, 0.0625)
            * (1 + 0.01 * np.random.default_rng(0).standard_normal(501))),
        found("periodic_pauses", "", "33.9 % of the time", starts="Every 250 steps",
              hours=pytest.approx(80 / 3600, rel=0.01)),
    ),
    "saves by their events": (timed(FIFTIETH, events=SAVES), found("periodic_pauses", "", "(checkpoint)")),
    "saves by the configuration": (timed(FIFTIETH, facts={"checkpoint_every_steps": 50}),
                                   found("periodic_pauses", "", "(checkpoint)")),
    "garbage collection": (timed(np.where(STEP % 20 == 0, 0.6, 0.1) * NOISE),
        found("periodic_pauses", "", "garbage collection")),
    "even steps": (timed(), silent("periodic_pauses")),
    "noisy steps": (timed(np.exp(0.15 * np.random.default_rng(1).standard_normal(1000))), silent("periodic_pauses")),
    "steps without a time": (run(seconds=None), unjudged("periodic_pauses", "cost")),
    "a price": (run(), silent("cost")),
    "no price": (run(known={"usd_per_hour": None}), unjudged("cost")),
    "half of the wall clock": (  # 400 steps of a second in 798 s
        run(seconds=1.0, elapsed_seconds=2.0 * READING + 1),
        found("goodput", starts="49.9 % of the wall clock is not training", says="log eval_seconds")),
    "uneven steps fill the wall clock": (  # 1,100 s in 1,150 s; the median step is 0.5 s
        timed(UNEVEN, elapsed_seconds=np.cumsum(UNEVEN + 0.05)), silent("goodput")),
    "quick evaluations are not why": (
        timed(seconds=1.0, elapsed_seconds=1.5 * STEP, eval_seconds=np.where(HUNDREDTH, 0.3, np.nan),
              checkpoint_seconds=np.where(HUNDREDTH, 0.1, np.nan)),
        found("goodput", "warning",
              says="10 checkpoints took 1 s / start-up and compilation / waiting for data between steps / time what")),
    "nearly all of the wall clock": (run(seconds=1.0, elapsed_seconds=1.05 * READING), silent("goodput")),
    "no wall clock": (run(), unjudged("goodput")),
    "work done twice": (  # 100 s of $2 an hour
        run(seconds=1.0, events=[AGAIN]),
        found("work_done_twice", starts="100 steps were done twice in 1 restart (100 s, $0.06)"),
    ),
    "resumed where it was": (run(events=[event("restart", "Resuming from step 300", 300)]), silent("work_done_twice")),
    # 7,600 s where 400 s are usual
    "one epoch of hours": (epochs([400.0] * 10 + [7600.0] + [400.0] * 9),
                           found("long_epochs", "warning", hours=approx(2.0), starts="Epoch 11 took")),
    "epochs alike": (epochs([400.0] * 20), silent("long_epochs")),
    "a first epoch that fills caches": (epochs([3000.0] + [400.0] * 19), silent("long_epochs")),
    "an epoch not twice as long": (epochs([400.0] * 10 + [700.0] + [400.0] * 9), silent("long_epochs")),
    "a schedule that makes them longer": (epochs(np.linspace(300, 900, 20)), silent("long_epochs")),
    "a minute is not worth a word": (epochs([2.0] * 10 + [60.0] + [2.0] * 9), silent("long_epochs")),
    "epochs by time stamps": (
        run(steps=20, seconds=None, epoch=np.arange(1.0, 21),
            unix_seconds=1.6e9 + np.cumsum([0.0] + [400.0] * 9 + [7600.0] + [400.0] * 9)),
        found("long_epochs", starts="Epoch 11 took"),
    ),
    # 9,000 s less seven epochs and an eighth: 6,840 s
    "a last epoch of hours": (went_on(9000.0), found("long_epochs", "note", hours=approx(1.9))),
    "a last epoch that ends": (went_on(8 * 270.0), silent("long_epochs")),
    "epochs without a time": (epochs([1.0] * 9, epoch_seconds=np.full(9, np.nan)), unjudged("long_epochs")),
}  # fmt: skip


def ended(status, *events, **other):
    """400 steps of a second at $2 per hour, of 800 planned."""
    return run(**{"seconds": 1.0, "status": status, "events": events, "facts": {"planned_steps": 800}, **other})


WORKER = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed."
KEY = event("exception", "KeyError: 'reward'", 400)
PARTS = (RunPart(name="run 1", status=Status.COMPLETED, status_reason="", phase=0),
         RunPart(name="run 2", status=Status.CRASHED, status_reason=""))  # fmt: skip
ENDINGS = ("nccl_timeout", "time_limit", "crashed", "killed")


def oom(w=None, status=Status.OUT_OF_MEMORY, known=None, **numbers):
    return run(
        w, known, steps=1, status=status, events=[event("out_of_memory", "CUDA out of memory.", step=1.0, **numbers)]
    )


def ran_out(memory):
    out = event("out_of_memory", "CUDA out of memory.", step=200.0, requested_bytes=GIB, free_bytes=GIB / 5)
    return run(steps=200, events=[out], status=Status.OUT_OF_MEMORY, memory_bytes=memory)


ENDS = {
    "a time limit": (  # 400 s of $2 an hour are left, 880 s to ask for; the signal is its consequence
        ended(Status.TIME_LIMIT, event("time_limit", "JOB 1 CANCELLED DUE TO TIME LIMIT", 400),
              event("signal", "SignalException: 15", 400, signal=15)),
        found("time_limit", "error", "at step 400 of 800 (50 %)", says="ask for 14.7 min"),
        silent("killed", "crashed"),
    ),
    "a collective's timeout": (
        ended(Status.CRASHED, event("nccl_timeout", "Watchdog caught collective operation timeout", 400)),
        found("nccl_timeout", "error"), silent("crashed"),
    ),
    "a timeout survived": (ended(Status.COMPLETED, event("nccl_timeout", "retrying", 10)),
        found("nccl_timeout", "warning")),
    "an exception": (ended(Status.CRASHED, event("exception", "ValueError: no length (train.py:10)", 400)),
                     found("crashed", says="ValueError: no length (train.py:10)")),
    "a full disk": (ended(Status.CRASHED, event("disk_full", "No space left on device", 400)),
                    found("crashed", starts="The disk was full")),
    "killed for the host's memory": (ended(Status.KILLED, event("killed", "oom-kill: Killed process 123 (python)",
        400)),
                                     found("killed", says="the host ran out of memory")),
    "preempted": (ended(Status.KILLED, event("killed", "JOB 7 CANCELLED AT … DUE TO PREEMPTION", 400)),
                  found("killed", says="preemption or a cancelled job")),
    **{f"ended {status}": (ended(status), silent(*ENDINGS))
       for status in (Status.COMPLETED, Status.NO_END, Status.STOPPED, Status.OUT_OF_MEMORY)},
    "a crash before the first step": (run(steps=0, status=Status.CRASHED, events=[event("exception", "KeyError: 'x'")]),
                                      found("crashed", starts="The run crashed, no step read")),
    "a loader's worker": (ended(Status.CRASHED, event("data_worker", WORKER, 30)),
                          found("crashed", says="memory", starts="A worker of the data loader was killed")),
    "a stage behind the training": (ended(Status.CRASHED, KEY, runs=PARTS), found("crashed", "error", "complete")),
    "a crash": (ended(Status.CRASHED, KEY), found("crashed", says="resume")),
    "caught": (oom(status=Status.COMPLETED), found("out_of_memory", "warning")),
    "memory enough": (run(), silent("out_of_memory")),
    "nothing known of its memory": (oom(known={"workload": None, "profile": None, "expected": None}),
        found("out_of_memory")),
    "a model too large": (  # 39 B parameters
        oom(build.workload(
            shape=make_shape("gpt2", depth=48, width=8192, heads=64, vocab_size=50257, seq_len=1024), micro_batch=2)),
        found("out_of_memory", says="not even a micro-batch of one"),
    ),
    "another process": (
        oom(requested_bytes=960 * 2**20, free_bytes=824.5 * 2**20, total_bytes=10.75 * GIB, process_bytes=5.84 * GIB,
            other_bytes=4.10 * GIB),
        found("out_of_memory", says="other processes hold 4.1 GiB of the GPU"),
    ),
    "another process that is not named": (
        oom(requested_bytes=1.53 * GIB, free_bytes=0.9 * GIB, total_bytes=31.75 * GIB, reserved_bytes=10.86 * GIB),
        found("out_of_memory", says=("20 GiB of the GPU is not this process's", "nvidia-smi: end what else runs")),
    ),
    "a limit of the program": (
        oom(requested_bytes=0.5 * GIB, free_bytes=1.2 * GIB, total_bytes=63.4 * GIB, process_bytes=62.2 * GIB,
            allowed_bytes=60.25 * GIB),
        found("out_of_memory", says="the program's own limit of 60.2 GiB (set_per_process_memory_fraction)"),
    ),
    # llm.c asks for all activations at once, about twice what is predicted for the advisor's own trainer
    "a larger appetite": (
        oom(build.workload(micro_batch=64, grad_accum=8, gpu="a100-40gb-pcie"), requested_bytes=39_612 * 2**20),
        found("out_of_memory", says="x the predicted activations"),
    ),
    # 32 x 1,024 tokens x 50,257 entries x 4 bytes = 6.135 GiB of fp32 logits
    "fragmentation, and the logits": (
        oom(requested_bytes=32 * 1024 * 50257 * 4, total_bytes=80 * GIB, unallocated_bytes=10 * GIB),
        found("out_of_memory", says=("fragmentation: 10 GiB reserved but not in use",
                                     "the logits of a micro-batch (tokens x vocabulary), fp32")),
    ),
    "memory that grew until it ran out": (
        ran_out(np.linspace(13e9, 22e9, 200)),
        found("out_of_memory", says=("keep numbers, not tensors", "never freed", "GPU memory grew from")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPEED | DEVICES | CLOCKS | ENDS)
def test_what_is_found(name):
    made, *checks = (SPEED | DEVICES | CLOCKS | ENDS)[name]
    verify(made(), *checks)


def test_out_of_memory_says_the_largest_batch_that_would_have_fitted():
    """GPT-2 124M, 1,024 sequences on 80 GB: 36 bytes x 12 layers x 768 x 1 Mi tokens alone are 324 GiB."""
    w = build.workload(micro_batch=1024, grad_accum=2)
    case = build.case(w=w)
    fits = out_of_memory.largest_micro_batch(case, w).workload
    assert fits.micro_batch * fits.grad_accum == 2048 and 64 <= fits.micro_batch < 512
    bigger = dataclasses.replace(fits, micro_batch=fits.micro_batch * 2, grad_accum=fits.grad_accum // 2)
    assert build.expected(fits, case.profile).fits and not build.expected(bigger, case.profile).fits
    says = f"lower micro_batch from 1024 to {fits.micro_batch} and raise grad_accum from 2 to {fits.grad_accum}: same"
    starts = "Out of memory after step 1: 3 GiB asked for, 1.5 GiB free"
    verify(
        oom(w, requested_bytes=3 * GIB, free_bytes=1.5 * GIB)(),
        found("out_of_memory", "error", says=says, starts=starts),
    )


@pytest.mark.parametrize(("format", "is_pytorch"), [("llmc_stdout", False), ("nanogpt", True)])
def test_pytorch_s_allocator_is_no_advice_where_the_trainer_has_no_pytorch(format, is_pytorch):
    for case, code in ((oom()(), "out_of_memory"), (DEVICES["nearly full"][0](), "memory_nearly_full")):
        own = dataclasses.replace(case, run=dataclasses.replace(case.run, format=format))
        [one] = [one for one in judge(own)[0] if one.code == code]
        assert any("expandable_segments" in action for action in one.actions) is is_pytorch


def test_what_others_hold_and_a_larger_appetite_leave_room_for_a_smaller_batch():
    w = build.workload(micro_batch=64, grad_accum=8, gpu="a100-40gb-pcie")
    case = build.case(w=w)
    plain = out_of_memory.largest_micro_batch(case, w).workload.micro_batch
    hungry = out_of_memory.largest_micro_batch(case, w, {"requested_bytes": 3 * 39_612 * 2**20}).workload.micro_batch
    assert plain == 32 and hungry < 32
    crowded = out_of_memory.largest_micro_batch(case, w, {"other_bytes": 36 * GIB})
    assert crowded is None or crowded.workload.micro_batch < 16


SMALL_ON_L4 = Workload(
    shape=make_shape("gpt2", depth=8, width=384, heads=8, vocab_size=4000, seq_len=512), micro_batch=20, gpu="l4",
    precision="bf16", compile=True,
)  # fmt: skip


def test_software_bound():
    """10,240 tokens in 2.184 s on an L4: N_mm 15,691,776, 113,025,024 FLOPs per token, 0.438 % of 121 TFLOP/s."""
    table = build.run(seconds=2.184, facts={"step_tokens": 10_240, "planned_steps": 50_000}, status=Status.INCOMPLETE)
    case = build.case(table, SMALL_ON_L4, usd_per_hour=0.70)
    factor = case.expected.tokens_per_second.value / (10_240 / 2.184)
    assert factor > 20
    # 50,000 steps of 2.184 s are 30.33 h and $21.23; all but 1/factor of it is lost
    lost, says = 1 - 1 / factor, "neither a bigger batch nor a faster GPU will mend it"
    hours, usd = approx(30.33 * lost, 1e-3), approx(21.23 * lost, 1e-3)
    verify(case, found("software_bound", "error", "0.438 % of peak", says=says, hours=hours, usd=usd),
           silent("bigger_batch"))  # fmt: skip


def test_bigger_batch_where_the_curve_says_so_and_the_run_is_not_faster_than_it():
    case = build.case(w=build.workload(micro_batch=1, grad_accum=512))
    chosen = speed.best_batch(case)
    assert chosen.same_global_batch and chosen.micro_batch * chosen.grad_accum == 512
    bigger = dataclasses.replace(case.workload, micro_batch=chosen.micro_batch, grad_accum=chosen.grad_accum)
    rates = [build.expected(w, case.profile).tokens_per_second.value for w in (case.workload, bigger)]
    assert chosen.gain == pytest.approx(rates[1] / rates[0] - 1)
    verify(case, found("bigger_batch", "warning", says=f"micro_batch: {chosen.micro_batch}"))
    promised = case.expected
    fast = promised.step_seconds.value * promised.tokens_per_second.value / promised.tokens_per_second.high
    quick = dataclasses.replace(case, run=build.healthy(case.workload, seconds=0.9 * fast))
    verify(quick, silent("bigger_batch"))
    w = build.workload()  # 1.3 times as long as predicted: a matter of taste and versions
    verify(
        build.case(build.healthy(w, seconds=1.3 * build.expected(w).step_seconds.value), w), silent("software_bound")
    )


def test_a_steady_memory_that_ran_out_was_not_leaked():
    steady = 22e9 * (1 + 0.002 * np.random.default_rng(1).standard_normal(200))
    said = out_of_memory.detect_out_of_memory(ran_out(steady)())
    assert not any("tensors;" in action for action in said.actions) and "freed" not in said.causes[0]


def test_a_slow_rank_may_cost_nothing_and_what_is_known_of_no_memory_has_two_actions():
    slow = next(one for one in judge(ranked(1.12)())[0] if one.code == "straggler")
    assert slow.saved_usd.low == 0
    bare = oom(known={"workload": None, "profile": None, "expected": None})
    assert len(out_of_memory.detect_out_of_memory(bare()).actions) == 2
