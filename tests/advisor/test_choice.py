"""What a plan chooses and says beside its choice, asked as a person asks: through `advisor plan`."""

from __future__ import annotations

import json
import re

import pytest

from tests.advisor.plans import plan_of

H100, A100 = "h100-80gb-sxm", "a100-80gb-sxm"
pytestmark = pytest.mark.usefixtures("asked_once")
DEMAND, NAMED = ["--params", "1.1B", "--tokens", "60B"], ["--gpu", f"{H100},{A100}", "--gpus", "8,16"]


def brief(call, *words: str) -> str:
    """What is printed, its lines joined."""
    code, printed, error = call("plan", *words, "--synthetic")
    assert code == 0, error
    return " ".join(printed.split())


def document(call, *words: str) -> dict:
    code, printed, error = call("plan", *words, "--json")
    assert code == 0, error
    return json.loads(printed)


def test_each_machine_that_was_named_has_a_row(call):
    """Time, dollars, memory and why not, in the brief, by --all and as JSON: two cards at two counts are four rows."""
    plan = plan_of(document(call, *NAMED, *DEMAND))
    own = (plan.offer.gpu, plan.offer.gpus)
    rows = {(run.offer.gpu, run.offer.gpus): run for run in (plan.chosen, *plan.search.machines)}
    assert set(rows) == {(gpu, gpus) for gpu in (H100, A100) for gpus in (8, 16)}
    for machine, run in rows.items():
        assert run.total_seconds.value > 0 and run.cost_usd.value > 0 and run.prediction.device_bytes.value > 0
        assert machine == own or re.search(r"dearer|times as long", run.standing.why)
    short, whole = brief(call, *NAMED, *DEMAND), brief(call, *NAMED, *DEMAND, "--all")
    assert "The best run on each machine asked for" in whole
    assert all(f"not {gpus} x {gpu}: " in short for gpu, gpus in rows if (gpu, gpus) != own)


def test_a_machine_that_nothing_fits_on_says_so_in_its_row(call):
    plan = plan_of(document(call, "--gpu", f"rtx-4090,{H100}", "--gpus", "1,8", "--params", "7B", "--tokens", "1B"))
    [single] = [run for run in plan.search.machines if (run.offer.gpu, run.offer.gpus) == ("rtx-4090", 1)]
    assert single.standing.why.startswith(("does not fit memory: up to", "may not fit ("))


def test_a_machine_of_ones_own_and_one_that_is_rented_have_their_rows_too(call):
    plan = plan_of(document(call, "--own", "rtx-4090:1", "--gpu", "l4", "--gpus", "1", "--depth", "12"))
    [other] = plan.search.machines
    assert plan.offer.gpu == "rtx-4090" and other.offer.gpu == "l4" and other.standing.why.startswith("costs money")


def test_days_on_one_node_are_looked_for_on_several(call):
    """64 cards of eight machines end in a ninth of the days for a tenth more; a short run stays on one node."""
    words = ("--gpu", f"{H100},{A100}", "--tokens", "500B", "--params", "3B")
    long = document(call, *words)
    offer = long["chosen"]["offer"]
    assert offer["gpus"] == 64 and offer["machines"] == 8 and "(8 machines)" in long["sentence"]
    node = document(call, *words, "--gpus", "1,2,4,8")  # typed means typed
    assert node["chosen"]["offer"]["gpus"] == 8 and node["chosen"]["offer"]["machines"] == 1
    seconds = [plan["chosen"]["bill"]["wall_clock"]["total_seconds"]["value"] for plan in (long, node)]
    assert seconds[1] > 6 * seconds[0]
    short = document(call, "--gpu", f"{H100},{A100}", "--budget", "15")
    assert {run["offer"]["gpus"] for run in short["search"]["machines"]} <= {1, 2, 4, 8}


def test_a_deadline_that_leaves_the_money_unspent_is_met_by_more_machines(call):
    words = ("--gpu", f"{H100},{A100}", "--budget", "3000", "--deadline", "20h")
    plan = document(call, *words)
    assert plan["chosen"]["offer"]["gpus"] > 8 and plan["chosen"]["bill"]["cost_usd"]["value"] > 0.8 * 3000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--budget", "4000"], "even odds of going over $4,000; --sure plans for 90 %: depth "),
        (["--deadline", "30h"], "even odds of taking longer than 30 h; --sure plans for 90 %: depth "),
    ],
)
def test_even_odds_of_breaking_a_limit_stand_in_the_brief_with_what_sure_would_do(call, words, said):
    asked = ("--gpu", H100, "--gpus", "8", *words)
    assert said in brief(call, *asked)
    assert "odds of" not in brief(call, *asked, "--sure")
    sure, plan = document(call, *asked, "--sure")["chosen"], document(call, *asked)["search"]["sure"]
    assert (plan["prediction"]["workload"], plan["steps"]) == (sure["prediction"]["workload"], sure["steps"])


@pytest.mark.parametrize(
    "words",
    [
        ["--gpu", "any", "--budget", "15"],
        ["--gpu", H100, "--gpus", "8", "--budget", "4000", "--deadline", "12d"],
        [*NAMED, *DEMAND],
    ],
)
def test_the_most_serious_warning_always_shows(call, words):
    assert "estimate only: there is no calibration of" in brief(call, *words)
    assert "no data given: this run would train on random tokens" in " ".join(call("plan", *words)[1].split())


@pytest.mark.parametrize(("gpu", "has"), [("v100-32gb-sxm2", 8), ("gb200", 4)])
def test_gpus_that_are_paid_for_and_stand_idle_are_named_first(call, gpu, has):
    text = brief(call, "--gpu", gpu, "--budget", "30")
    assert f"the machine has {has} and all are paid for, {has - 1} of them are idle: --gpus {has} uses them" in text
    assert "stand idle" not in brief(call, "--gpu", gpu, "--gpus", str(has), "--budget", "30")


def test_a_cheaper_marketplace_is_said_to_be_left_out(call):
    text = brief(call, "--gpu", "rtx-4090", "--budget", "5")
    assert re.search(r"cheaper on a marketplace: ([\w.]+) \$0\.\d\d \(choose --provider \w+\)", text)
    assert "marketplace," not in brief(call, "--gpu", "rtx-4090", "--budget", "5", "--provider", "vast")


def test_how_often_the_data_are_seen_stands_in_the_sentence(call):
    plan = document(call, "--gpu", "rtx-4090", "--data-tokens", "80M", "--deadline", "2h")
    epochs = plan["chosen"]["standing"]["epochs"]
    times = f"{epochs:.3g} passes over your 80 M"
    assert epochs > 1 and times in plan["sentence"]
    assert (
        "times over" not in document(call, "--gpu", "rtx-4090", "--data-tokens", "80B", "--deadline", "2h")["sentence"]
    )


def test_money_that_stays_unspent_has_a_reason(call):
    """Tokens per parameter are fixed by what is to be served, and the next depth costs too much."""
    words = ("--gpu", H100, "--gpus", "8", "--inference-tokens", "1T", "--budget", "5000")
    [said] = [text for text in document(call, *words)["warnings"] if "stay unspent" in text]
    assert re.search(
        r"of the \$5,000 stay unspent: tokens per parameter are settled, and depth \d+ is over budget", said
    )
    late = document(call, "--gpu", "l4", "--budget", "500", "--deadline", "10h")["warnings"]
    assert any(text.endswith("stay unspent: the deadline ends the run first") for text in late)
    assert not any("unspent" in text for text in document(call, "--gpu", "l4", "--budget", "5")["warnings"])


@pytest.mark.parametrize(
    "words",
    [
        ["--gpu", "any", "--budget", "15"],
        ["--gpu", H100, "--gpus", "8", "--budget", "4000", "--deadline", "12d"],
        ["--gpu", H100, "--gpus", "8", "--budget", "4000", "--deadline", "12d", "--sure"],
        ["--gpu", "l4,a100-80gb-sxm", *DEMAND],
        ["--gpu", "l4", "--depth", "12"],
    ],
)
def test_an_option_has_something_that_the_plan_lacks_and_says_what(call, words):
    options = {run.standing.name: run for run in plan_of(document(call, *words)).options}
    plan = options.pop("balanced")
    for name, option in options.items():
        gains = option.standing.why.partition(";")[0]
        better = {
            "a better model": 1.001 * option.score < plan.score,
            "cheaper": option.cost_usd.value < 0.98 * plan.cost_usd.value,
            "times as fast": option.total_seconds.value < 0.98 * plan.total_seconds.value,
            "of the memory stays free (balanced": option.headroom_bytes > plan.headroom_bytes,
            "stays within the limits 9 times out of 10": "--sure" not in words,
        }
        assert gains and any(words in gains for words in better)
        assert all(true for words, true in better.items() if words in gains)
        if name == "aggressive":
            assert option.offer.spot and option.score <= 1.001 * plan.score
        else:
            assert option.parameters <= plan.parameters


def refused(call, *words: str) -> str:
    code, _, error = call("plan", *words)
    assert code == 3
    return " ".join(error.split())


def test_a_model_whose_state_alone_does_not_fit_is_told_how_large_that_is_and_what_helps(call):
    """16 bytes for each of 7 B parameters are 104 GiB; eight 4090 share them out."""
    text = refused(call, "--gpu", "rtx-4090", "--params", "7B")
    assert "16 bytes of weights, gradients and optimizer state for each of 7 B parameters alone are 104 GiB" in text
    assert "--gpus 8" in text and "--seq-len" not in text
    assert (
        document(call, "--gpu", "rtx-4090", "--params", "7B", "--gpus", "8", "--tokens", "1B")["chosen"]["offer"][
            "gpus"
        ]
        == 8
    )


def test_activations_that_do_not_fit_are_told_to_shrink(call):
    text = refused(call, "--gpu", "l4", "--depth", "12", "--micro-batch", "512")
    assert "(--micro-batch " in text and "(--seq-len " in text and "16 bytes" not in text and "more GPUs" not in text


def test_no_loss_is_promised_on_random_tokens(call):
    code, out, err = call("plan", "--gpu", "l4", "--budget", "5", "--synthetic", "--json")
    plan = json.loads(out)
    assert code == 0 and plan["chosen"]["standing"]["loss"] is None, err
    assert "no loss is predicted: random tokens teach nothing" in plan["warnings"]
