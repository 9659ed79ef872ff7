"""The bill of a run and the interval between checkpoints (sources §6.1, §8 item 7)."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.laws.flops import parameters
from advisor.prediction.intervals import columns, known, product, reciprocal, sum_independent, sum_shared
from advisor.prediction.profile import RunCosts
from advisor.prediction.wallclock import (
    Checkpoints,
    RunTerms,
    between_failures,
    checkpoint_bytes,
    checkpoint_interval_seconds,
    daly_interval_seconds,
    disk_bytes,
    expected_seconds,
    lost_share,
    planned_checkpoints,
    planned_evals,
    rented_setup,
    run_seconds,
    state_bytes,
    wall_clocks,
)
from advisor.records import Basis, Estimate
from trainer.schema import CheckpointConfig, EvalConfig, OptimizerConfig, RunConfig, make_shape

MINUTE = 60.0
SHAPE = make_shape("nanochat", depth=12, vocab_size=65536, seq_len=1024)


def measured(value, relative):
    return Estimate(value=value, low=value * (1 - relative), high=value * (1 + relative), basis=Basis.MEASURED)


COSTS = RunCosts(
    startup_seconds=measured(10.0, 0.3),
    build_seconds_per_parameter=0.0,
    compile_seconds=measured(40.0, 0.5),
    checkpoint_bytes_per_second=measured(1e9, 0.2),
    forward_fraction=0.3,
)


def wall_clock(
    run, step_seconds, costs, *, gpus=1, interruption_seconds=None, taken=True, setup=None, write=None, stall=None
):
    """The bill of one configured run: a table of one row. Checkpoints are written by the costs' rate, and waited for,
    unless told.
    """
    nothing = known(0.0)
    forward = costs.forward_fraction / run.grad_accum
    build = known(costs.build_seconds_per_parameter * parameters(run.model))
    written = known(write) if write else reciprocal(costs.checkpoint_bytes_per_second, checkpoint_bytes(run))
    terms = RunTerms(
        step=columns([step_seconds]),
        forward=columns([step_seconds.scaled(forward)]),
        startup=columns([sum_shared(costs.startup_seconds, build)]),
        compile=columns([costs.compile_seconds if run.compile else nothing]),
        write=columns([written]),
        stall=columns([known(stall) if stall else written]),
        provisioning=columns([setup.provisioning_seconds if setup else nothing]),
        download=columns([setup.download_seconds if setup else nothing]),
        between_interruptions=columns([interruption_seconds or known(1e18)]),
        taken=np.array([[taken]]),
        checkpoints=Checkpoints(
            every_steps=run.checkpoint.every_steps,
            every_seconds=run.checkpoint.every_seconds,
            final=run.checkpoint.final,
        ),
    )
    batches = math.ceil(math.ceil(run.eval.tokens / (run.micro_batch * run.model.seq_len)) / gpus)
    steps, eval_batches = np.array([[run.steps]]), np.array([[planned_evals(run) * batches]])
    clocks = wall_clocks(terms, steps, eval_batches)
    total = clocks.total_seconds.value.item()
    assert expected_seconds(terms, steps, eval_batches).item() == pytest.approx(total, rel=1e-12)
    return clocks.at(0)


def run_of(**changes):
    plain = RunConfig(
        model=SHAPE,
        steps=1000,
        micro_batch=8,
        eval=EvalConfig(tokens=0),
        checkpoint=CheckpointConfig(every_seconds=None, final=False),
    )
    return replace(plain, **changes)


@pytest.mark.parametrize(("between", "daly"), [(24 * 60, 116.69), (6 * 60, 56.71), (15, 9.141)])
def test_checkpoint_interval(between, daly):
    """Writes of five minutes; the captions of Daly's figures give 117, 57 and 9.1 minutes."""
    assert daly_interval_seconds(5 * MINUTE, between * MINUTE) / MINUTE == pytest.approx(daly, abs=0.006)


def test_checkpoint_interval_when_writing_never_ends():
    assert daly_interval_seconds(100.0, 20.0) == 20.0


@pytest.mark.parametrize(("hours", "interval", "factor"), [(2, 10.5, 1.144), (8, 21, 1.058), (24, 37, 1.030)])
def test_time_with_interruptions(hours, interval, factor):
    mean = hours * 3600.0
    best = daly_interval_seconds(30.0, mean)
    assert best / MINUTE == pytest.approx(interval, abs=1.0)
    written = 1 + 30.0 / best  # the share is of work and checkpoints together
    share = lost_share(best, np.array(30.0), np.array(300.0), np.array(mean))
    assert written * (1 + share) == pytest.approx(factor, abs=0.001)


def test_interval_of_the_bill_is_neither_the_sum_of_ends_nor_that_of_independent_steps():
    clock = wall_clock(run_of(compile=True), measured(0.5, 0.1), COSTS)
    above = clock.total_seconds.high - clock.total_seconds.value
    assert above == pytest.approx(math.hypot(50.0, 3.0, 20.0))


def test_eager_runs_do_not_pay_for_compilation_and_nothing_costs_nothing():
    clock = wall_clock(run_of(), measured(0.5, 0.1), COSTS)
    assert clock.compile_seconds == clock.evals_seconds == clock.checkpoints_seconds == known(0.0)
    assert clock.total_seconds.basis == Basis.MEASURED


def test_building_the_model_is_part_of_start_up():
    costs = replace(COSTS, build_seconds_per_parameter=1e-8)
    assert wall_clock(run_of(), measured(0.5, 0.1), costs).startup_seconds.value == pytest.approx(11.85597952)


@pytest.mark.parametrize(("every", "count"), [(None, 1), (100, 10), (300, 4), (1000, 1), (2000, 1)])
def test_evaluations_include_the_final_one_once(every, count):
    assert planned_evals(run_of(eval=EvalConfig(every_steps=every, tokens=1024))) == count


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        (CheckpointConfig(every_seconds=None, final=True), 1),
        (CheckpointConfig(every_seconds=100.0, final=False), 9),
        (CheckpointConfig(every_seconds=100.0, final=True), 10),
        (CheckpointConfig(every_steps=250, every_seconds=None, final=True), 4),
        (CheckpointConfig(every_steps=300, every_seconds=None, final=True), 4),
        (CheckpointConfig(every_steps=250, every_seconds=900.0, final=True), 4),
        (CheckpointConfig(every_steps=500, every_seconds=200.0, final=True), 2 + 4),
    ],
)
def test_checkpoints_by_steps_by_time_and_at_the_end(settings, count):
    assert planned_checkpoints(run_of(checkpoint=settings), 1000.0) == count


def test_muon_keeps_one_moment_for_block_matrices():
    assert checkpoint_bytes(run_of()) == 12 * 185_597_952
    assert checkpoint_bytes(run_of(optimizer=OptimizerConfig(name="muon"))) == 12 * 185_597_952 - 4 * 84_934_656


POSITIVE = st.floats(1e-3, 1e6)


@given(st.lists(st.tuples(POSITIVE, st.floats(0.01, 0.9)), min_size=1, max_size=6))
def test_independent_sums_are_narrower_than_shared_ones(parts):
    estimates = [measured(value, relative) for value, relative in parts]
    shared, independent = sum_shared(*estimates), sum_independent(*estimates)
    assert independent.value == pytest.approx(shared.value)
    assert independent.high <= shared.high * (1 + 1e-9) and independent.low >= shared.low * (1 - 1e-9)


def test_a_sum_of_absurd_times_has_open_ends():
    with np.errstate(over="ignore"):
        total = sum_independent(measured(1e200, 0.5), measured(1.0, 0.5))
    assert total.value == 1e200 and total.low == -np.inf and total.high == np.inf


@given(POSITIVE, st.floats(0.01, 0.9), POSITIVE, st.floats(0.01, 0.9))
def test_a_product_lies_inside_the_product_of_its_ends(first, first_width, second, second_width):
    a, b = measured(first, first_width), measured(second, second_width)
    c = product(a, b)
    assert a.low * b.low <= c.low * (1 + 1e-9) <= c.value * (1 + 2e-9)
    assert c.value <= c.high * (1 + 1e-9) <= a.high * b.high * (1 + 2e-9)
    assert reciprocal(reciprocal(a)).high == pytest.approx(a.high)


def test_the_weakest_part_gives_the_basis_but_nothing_at_all_has_no_say():
    prior = Estimate(value=1.0, low=0.5, high=2.0, basis=Basis.PRIOR)
    assert sum_shared(measured(1.0, 0.1), prior).basis == Basis.PRIOR
    assert sum_shared(measured(1.0, 0.1), known(0.0, Basis.PRIOR)).basis == Basis.MEASURED


def test_a_rented_machine_is_ordered_and_filled_first():
    clock = wall_clock(run_of(), measured(0.5, 0.1), COSTS, setup=rented_setup(6e9))
    here = wall_clock(run_of(), measured(0.5, 0.1), COSTS)
    assert here.provisioning_seconds is here.download_seconds is None
    assert clock.provisioning_seconds.value == 240.0
    assert clock.download_seconds.value == pytest.approx(100.0)  # 4 GB of software and 6 GB of tokens at 100 MB/s
    assert clock.total_seconds.value - here.total_seconds.value == pytest.approx(340.0)
    above = clock.total_seconds.high - clock.total_seconds.value
    assert above == pytest.approx(math.hypot(50.0, 3.0, 900 - 240, 400 - 100))
    shown = run_seconds(clock)  # what a run folder can be compared with
    for end in ("value", "low", "high"):
        assert getattr(shown, end) == pytest.approx(getattr(here.total_seconds, end))
    assert run_seconds(here) == here.total_seconds


def test_spot_pays_setup_again_after_every_interruption():
    """Sources §6.1's first order: lost share = delta/tau + (tau/2 + R)/M, a little less than the complete model."""
    mean = Estimate(value=8 * 3600.0, low=4 * 3600.0, high=48 * 3600.0, basis=Basis.PRIOR)
    run = run_of(steps=200_000, checkpoint=CheckpointConfig(every_seconds=1200.0, final=False))
    setup = rented_setup(0.0)
    clock = wall_clock(run, measured(0.5, 0.1), COSTS, interruption_seconds=mean, setup=setup)
    restart, write = 10.0 + setup.seconds, 12 * 185_597_952 / 1e9
    lost = clock.interruptions_seconds.value / (clock.steps_seconds.value + clock.checkpoints_seconds.value)
    assert lost == pytest.approx((1200.0 / 2 + write + restart) / mean.value, rel=0.1)
    assert clock.interruptions_seconds.low < clock.interruptions_seconds.value < clock.interruptions_seconds.high


def test_checkpoints_follow_the_interruption_rate():
    """Sources §6.1, worked: writes of 30 s, M = 2, 8 and 24 h give 10.5, 21 and 37 minutes."""
    minutes = [checkpoint_interval_seconds(30.0, hours * 3600.0) / MINUTE for hours in (2, 8, 24)]
    assert minutes == pytest.approx([10.5, 21.3, 37.5], rel=0.02)
    assert checkpoint_interval_seconds(0.001, 3600.0) == 60.0  # not every few seconds


@given(st.floats(0.01, 1e4), st.floats(300.0, 1e7))
def test_checkpoints_are_never_rarer_than_failures(stall, mean):
    every = checkpoint_interval_seconds(stall, mean)
    assert every <= max(math.ceil(daly_interval_seconds(stall, mean)), 60.0) and every <= math.ceil(mean)


def test_jobs_of_many_gpus_fail_as_measured():
    """Llama 3: 419 failures in 54 days on 16,384 GPUs; at the short end 1,024 GPUs every 7.9 hours (Kokolis et al.)."""
    assert [between_failures(gpus).value / 86400 for gpus in (1, 8)] == [5.0, 5.0]
    assert between_failures(16_384).value == pytest.approx(54 * 86400 / 419, rel=0.05)
    assert between_failures(1024).low / 3600 == pytest.approx(7.9, rel=0.05)
    assert between_failures(1024).low < between_failures(1024).value < between_failures(1024).high


def test_writing_beside_the_run_costs_the_copy_and_at_a_failure_the_work_done_while_it_was_written():
    """Stalls of 2 s where writing takes 60: ten of them and one whole write; a failure loses 58 s more."""
    run = run_of(steps=10_000, checkpoint=CheckpointConfig(every_seconds=500.0, final=True))
    failures = between_failures(64)
    waiting, asynchronous = (
        wall_clock(run, measured(0.5, 0.1), COSTS, interruption_seconds=failures, taken=False, write=60.0, stall=stall)
        for stall in (60.0, 2.0)
    )
    assert waiting.checkpoints_seconds.value == pytest.approx(10 * 60.0)
    assert asynchronous.checkpoints_seconds.value == pytest.approx(9 * 2.0 + 60.0)
    shares = [
        c.interruptions_seconds.value / (c.steps_seconds.value + c.checkpoints_seconds.value)
        for c in (waiting, asynchronous)
    ]
    assert shares[1] - shares[0] == pytest.approx((58.0 - 58.0 / 2) / failures.value, rel=0.05)


def test_a_run_that_is_not_taken_back_starts_again_where_it_stood():
    """First order: (tau/2 + R)/M, R ten minutes and the start-up; a run shorter than its checkpoints loses half."""
    failures, minutes = between_failures(8), 60.0
    every = replace(run_of(steps=100_000), checkpoint=CheckpointConfig(every_seconds=20 * minutes, final=False))
    clock = wall_clock(every, measured(0.5, 0.1), COSTS, interruption_seconds=failures, taken=False)
    startup = clock.startup_seconds.value + clock.compile_seconds.value
    share = clock.interruptions_seconds.value / (clock.steps_seconds.value + clock.checkpoints_seconds.value)
    assert share == pytest.approx((10 * minutes + 10 * minutes + startup) / failures.value, rel=0.03)
    never = run_of(steps=40_000)
    lost = wall_clock(never, measured(0.5, 0.1), COSTS, interruption_seconds=failures, taken=False)
    half = lost.steps_seconds.value / 2 + 10 * minutes + startup
    assert lost.interruptions_seconds.value == pytest.approx(half / failures.value * lost.steps_seconds.value, rel=0.03)


def test_disk_holds_what_is_kept_and_what_is_written():
    """Sources §2.4: 12 bytes per parameter, 209 MB for 17.4 M parameters."""
    run = run_of(checkpoint=CheckpointConfig(keep=2))
    assert state_bytes(SHAPE, "adamw") == 12 * 185_597_952
    assert disk_bytes(run) == 3 * checkpoint_bytes(run)
