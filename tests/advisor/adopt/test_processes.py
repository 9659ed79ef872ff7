"""Several processes: found in a launcher's words, tested, fitted, planned with the same global batch, run for real."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from advisor.adopt.command import LAUNCHER, launcher_knob, set_argument
from advisor.adopt.fit import Batch, Seen, fit_time, seen_memory
from advisor.adopt.plan import batch_options, make_plan
from advisor.adopt.self_test import verdicts
from advisor.adopt.session import tries
from advisor.errors import AdvisorError
from advisor.options import AdoptedGoal
from advisor.records import Basis
from advisor.store.adopted import Adopted, AdoptedBurst, Knob, KnobVerdict, Recipe
from advisor.workflows.adopt import name_of, recipe_of_command
from tests.advisor.adopt.test_adopt_story import advisor, document, told
from tests.engines.adopted_runs import adopted_of, burst_of

SCRIPT = Path(__file__).parent / "two_processes.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")


@pytest.mark.parametrize(
    ("command", "key", "value", "with_four"),
    [
        ("torchrun --nproc-per-node 2 t.py --n 1", "--nproc-per-node", 2, "torchrun --nproc-per-node 4 t.py --n 1"),
        ("/v/bin/torchrun --nproc_per_node=2 t.py", "--nproc_per_node", 2, "/v/bin/torchrun --nproc_per_node=4 t.py"),
        ("torchrun t.py", "--nproc-per-node", None, "torchrun --nproc-per-node 4 t.py"),
        ("torchrun --nproc-per-node gpu -m m.sft", "--nproc-per-node", None, "torchrun --nproc-per-node 4 -m m.sft"),
        ("python -m torch.distributed.run t.py", "--nproc-per-node", None,
         "python -m torch.distributed.run --nproc-per-node 4 t.py"),
        ("accelerate launch --num_processes 8 t.py", "--num_processes", 8, "accelerate launch --num_processes 4 t.py"),
        ("deepspeed --num_gpus 2 t.py --deepspeed z.json", "--num_gpus", 2,
         "deepspeed --num_gpus 4 t.py --deepspeed z.json"),
        ("env A=1 composer -n 2 train.py c.yaml", "-n", 2, "env A=1 composer -n 4 train.py c.yaml"),
    ],
)  # fmt: skip
def test_the_number_stands_between_launcher_and_program(command, key, value, with_four):
    knob = launcher_knob(command.split())
    assert (knob.name, knob.key, knob.value, knob.how) == ("gpus", key, value, LAUNCHER)
    assert set_argument(command.split(), knob, "4") == with_four.split()


@pytest.mark.parametrize("command", ["python t.py --nproc-per-node 2", "torchrun --nnodes 2 --nproc-per-node 2 t.py"])
def test_what_is_no_launcher_of_this_machine_alone_has_no_such_knob(command):
    assert launcher_knob(command.split()) is None


def test_a_launcher_is_not_taken_for_the_program():
    command = (*TORCHRUN, "--nproc-per-node", "1", str(SCRIPT))
    assert name_of(command) == "two_processes"
    recipe = recipe_of_command(command)
    assert {knob.name for knob in recipe.knobs} == {"micro_batch", "grad_accum", "seq_len", "steps", "gpus"}
    assert recipe.knob("gpus").value == 1
    assert recipe_of_command(("torchrun", "-m", "trl.scripts.sft")).knob("gpus").key == "--nproc-per-node"


def seconds_of(b: Batch) -> float:
    """Of a program whose gradients take 30 ms in a ring, and whose processes slow each other by up to a tenth."""
    alone, others = 0.01 + b.calls * 1e-3 * b.tokens, 1 - 1 / b.processes
    return alone + others * (0.03 + 1e-4 * b.calls * b.tokens)


GRID = [Batch(rows=r, calls=c, length=64, processes=p)
        for r, c, p in ((4, 1, 1), (8, 1, 1), (4, 2, 1), (2, 1, 1), (4, 1, 2), (2, 1, 2))]  # fmt: skip


def test_processes_that_were_measured_are_predicted_and_others_have_a_wide_band():
    seen = [Seen(batch=b, value=seconds_of(b)) for b in GRID]
    known, far = Batch(rows=8, calls=1, length=64, processes=2), Batch(rows=4, calls=1, length=64, processes=8)
    fitted = fit_time(seen)
    assert fitted.estimate(known).value == pytest.approx(seconds_of(known), rel=0.05)
    near, wide = fitted.estimate(GRID[4]), fitted.estimate(far)
    assert near.basis is Basis.MEASURED and wide.basis is Basis.EXTRAPOLATED and wide.contains(seconds_of(far))
    assert wide.high / wide.low > 2 * near.high / near.low
    # with single processes alone it is wider still, and of these it says what it said before
    single = fit_time([one for one in seen if one.batch.processes == 1])
    two = Batch(rows=4, calls=1, length=64, processes=2)
    assert single.estimate(two).high / single.estimate(two).low > 2.5 and single.estimate(two).contains(seconds_of(two))
    assert single.estimate(GRID[0]).value == pytest.approx(seconds_of(GRID[0]), rel=0.03)


KNOBS = (Knob(name="micro_batch", key="--b", value=4), Knob(name="grad_accum", key="--a", value=2),
         Knob(name="steps", key="--n"), Knob(name="gpus", key="--nproc-per-node", how=LAUNCHER, value=1))  # fmt: skip
RECIPE = Recipe(name="toy", knobs=KNOBS)


def burst(rows: float, calls: int, processes: int = 1, **values: float) -> AdoptedBurst:
    seconds = seconds_of(Batch(rows=rows, calls=calls, length=64, processes=processes))
    return burst_of(rows, calls, 64, seconds, processes, **values)


BASE = burst(4, 2)
ALONE = (burst(8, 2, micro_batch=8), burst(4, 4, grad_accum=4), burst(2, 2, micro_batch=2))


def adopted(*bursts: AdoptedBurst, works=("micro_batch", "grad_accum", "steps", "gpus"), recipe=RECIPE) -> Adopted:
    return adopted_of(recipe, *bursts, works=works, command=("torchrun", "--nproc-per-node", "1", "toy.py"))


def plan(subject: Adopted, **goal):
    return make_plan(subject, AdoptedGoal(steps=10, **goal), plan_id="p", created="2026-11-23T00:00:00+00:00")


@pytest.mark.parametrize(
    ("other", "verdict", "said"),
    [
        (burst(4, 2, 2, gpus=2), "works", "8 rows of a step become 16"),
        (burst(4, 1, 2, gpus=2), "works", "the global batch stays"),
        (burst(4, 2, 1, gpus=2), "dead", "1 trained together as before"),
        (burst(4, 2, 2, gpus=4), "capped", "4 was asked for, 2 trained together"),
    ],
)
def test_a_number_of_processes_is_believed_when_so_many_train(other, verdict, said):
    [found] = [v for v in verdicts(RECIPE, BASE, [other]) if v.name == "gpus"]
    assert found.verdict == verdict and said in found.words
    # what a step of another number of processes holds says nothing of the other knobs
    assert next(v for v in verdicts(RECIPE, BASE, [other]) if v.name == "grad_accum").verdict == "untested"


def test_the_global_batch_stays_whichever_way_the_program_counts():
    of_each = plan(adopted(BASE, *ALONE, burst(4, 2, 2, gpus=2)), gpus=2)
    values = {s.name: s.value for s in of_each.values}
    assert (of_each.offer.gpus, of_each.rows_per_step, of_each.tokens_per_step) == (2, 8, 512)
    assert of_each.shape.rows * of_each.shape.calls * 2 == 8 and values["gpus"] == 2
    assert values.get("grad_accum", 2) * values.get("micro_batch", 4) * 2 == 8  # its options are of one process
    assert of_each.shape.tokens == 256
    shared = plan(adopted(BASE, *ALONE, burst(4, 1, 2, gpus=2)), gpus=2)  # nanoGPT's: accumulation is of all
    values = {s.name: s.value for s in shared.values}
    assert shared.shape.rows * shared.shape.calls * 2 == 8
    assert values.get("grad_accum", 2) * values.get("micro_batch", 4) == 8
    without = replace(RECIPE, knobs=(KNOBS[0], *KNOBS[2:]))  # LitGPT's: it follows from the global batch
    follows = adopted(BASE, burst(8, 1, micro_batch=8), burst(2, 4, micro_batch=2), burst(4, 1, 2, gpus=2),
                      works=("micro_batch", "steps", "gpus"), recipe=without)  # fmt: skip
    found = plan(follows, gpus=2)
    assert {s.name for s in found.values} <= {"gpus", "micro_batch", "steps"} and found.rows_per_step == 8
    assert found.shape.rows * found.shape.calls * 2 == 8


def test_memory_of_the_host_is_that_of_all_processes():
    subject = adopted(BASE, *ALONE, burst(4, 2, 2, gpus=2))
    assert {round(seen.value / 1e6) for seen in seen_memory(subject.bursts)} == {326, 351, 313}
    two = plan(subject, gpus=2)
    assert two.memory_bytes.contains(2 * (3e8 + 1e5 * two.shape.rows * 64))


def test_what_cannot_be_set_is_refused_with_a_way_out():
    without = replace(RECIPE, knobs=KNOBS[:3])
    for subject, gpus, said in (
        (adopted(BASE, *ALONE, recipe=without), 2, "no known option starts it with 2 processes"),
        (adopted(BASE, *ALONE), 3, "cannot stay with 3 processes"),
        (adopted(BASE, *ALONE, works=("gpus",)), 2, "no working option sets the rows"),
    ):
        with pytest.raises(AdvisorError, match=said) as caught:
            batch_options(subject, gpus)
        assert caught.value.hint
    lied = replace(adopted(BASE), verdicts=(KnobVerdict(name="gpus", verdict="dead", words="as before"),))
    with pytest.raises(AdvisorError, match="does not do what it says: as before"):
        batch_options(lied, 2)
    never = plan(adopted(BASE, *ALONE, works=("micro_batch", "grad_accum", "steps")), gpus=2)
    assert any("2 processes were never measured" in words for words in never.warnings)


def test_no_more_processes_are_tried_than_there_are_cards():
    def asked(most: int) -> list[float]:
        found = [{s.name: s.value for s in settings} for settings, _ in tries(RECIPE, None, most)]
        return [values["gpus"] for values in found if set(values) == {"gpus"}]

    assert (asked(1), asked(2), asked(8)) == ([], [2], [2, 4])


@pytest.mark.long
def test_two_processes_by_gloo_from_adoption_to_score(tmp_path):
    """Adopted with one process of torchrun, planned and launched with two."""
    home = tmp_path / "home"
    command = (*TORCHRUN, "--nproc-per-node", "1", str(SCRIPT))
    done = advisor(home, "adopt", "--json", "--budget-seconds", "240", "--steps", "40", "--", *command)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert told(found)["gpus"] == told(found)["micro_batch"] == told(found)["steps"] == "works"
    assert 2 in {b["processes"] for b in found["adopted"]["bursts"]}
    planned = advisor(home, "adopt", "--name", "two_processes", "--gpus", "2", "--steps", "40", "--json")
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)["plan"]
    assert plan["offer"]["gpus"] == 2 and plan["rows_per_step"] == 4
    assert {v["name"]: v["value"] for v in plan["values"]} == {"gpus": 2, "micro_batch": 2, "steps": 40}
    # two rows of 32 tokens in each process, 0.2 ms a token: half of what one process takes, and less than that beside
    # other work
    assert plan["step_seconds"]["high"] > 2 * 32 * 2e-4 and plan["step_seconds"]["low"] < 4 * 32 * 2e-4
    launched = advisor(home, "launch", str(home.parent / "two_processes-plan.yaml"))
    assert launched.returncode == 0 and "completed" in launched.stdout, launched.stderr
    compared = document(home, "compare", "latest")
    assert compared["outcome"] == "completed" and compared["steps"] == 40
    assert compared["step_seconds"]["actual"] >= 2 * 32 * 2e-4
    [run] = (home / "runs").iterdir()
    assert len(list((run / "probe" / "001").glob("probe-*.jsonl"))) >= 2  # both ranks were seen
    assert math.isfinite(compared["step_seconds"]["error"])
