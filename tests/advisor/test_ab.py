"""`advisor ab`: differences in pairs, the seeds they need, and whole experiments in child processes."""

import json
import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from advisor.history.paired import contrasts, seeds_needed
from advisor.report.comparison import verdict
from advisor.workflows.ab import other_text
from trainer.schema import config_from_dict

CONFIG = {
    "model": {"family": "nanochat", "depth": 1, "width": 32, "heads": 1, "kv_heads": 1, "ffn_width": 64,
              "vocab_size": 64, "seq_len": 32},
    "steps": 40, "micro_batch": 4, "device": "cpu", "eval": {"tokens": 512}, "data": {"synthetic": True},
    "optimizer": {"learning_rate": 0.003},
}  # fmt: skip


def arms(*losses):
    names = [f"arm{n}" for n in range(len(losses))]
    return {n: {seed: {"loss": loss} for seed, loss in enumerate(of)} for n, of in zip(names, losses, strict=True)}


def test_a_difference_in_pairs_by_hand():
    """1, 2 and 3 nats: mean 2, deviation 1; Student's t of two degrees of freedom at 97.5 % is 4.3027."""
    (found,) = contrasts(arms([1.0, 5.0, 3.0], [2.0, 7.0, 6.0]))
    reach = 4.302653 / math.sqrt(3)
    assert (found.base, found.other, found.pairs) == (3.0, 5.0, 3)
    assert (found.difference.low, found.difference.high) == pytest.approx((2 - reach, 2 + reach), rel=1e-6)
    assert not found.clear and verdict(found) == "no difference beyond the noise; one of this size takes about 5 seeds"


def test_several_arms_widen_each_others_intervals():
    """Bonferroni: of two contrasts each has 97.5 %: Student's t of two degrees at 98.75 % is 6.2053."""
    first, second = contrasts(arms([1.0, 5.0, 3.0], [2.0, 7.0, 6.0], [1.1, 5.1, 3.1]))
    assert first.difference.high - 2 == pytest.approx(6.205347 / math.sqrt(3), rel=1e-6)
    assert second.clear and verdict(second) == "higher"


def test_seeds_of_the_textbook():
    """An effect of one standard deviation takes ten pairs at 95 % and 80 %; of three, four."""
    assert seeds_needed(1.0, 1.0) == 10 and seeds_needed(3.0, 1.0) == 4 and seeds_needed(1e-6, 1.0) is None
    assert seeds_needed(1.0, 1.0, comparisons=6) > 10  # a table of six asks more of each


def test_what_is_certain_and_tiny_is_called_so():
    (found,) = contrasts(arms([1.0, 2.0, 3.0], [1.0010, 2.0011, 3.0012]))
    assert not found.clear and verdict(found) == "certain, and too small to act on"


def test_step_times_are_ratios_and_one_seed_says_nothing():
    times = {n: {0: {"step_seconds": s}} for n, s in (("a", 0.2), ("b", 0.1))}
    (found,) = contrasts(times)
    assert found.is_ratio and found.difference is None and "one seed" in verdict(found)


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=6))
def test_an_arm_against_itself_never_wins(losses):
    (found,) = contrasts(arms(losses, losses))
    assert not found.clear and found.difference.value == 0


def test_a_run_that_failed_is_left_out_of_the_pairs():
    measured = arms([1.0, 2.0, 3.0], [1.5, 2.5, 3.5])
    del measured["arm1"][2]
    (found,) = contrasts(measured)
    assert found.pairs == 2 and found.base == 1.5


def written(path, **changes):
    path.write_text(yaml.safe_dump(CONFIG | changes))
    return str(path)


def test_arms_need_names_of_their_own_and_a_folder_of_their_own(call, tmp_path):
    (tmp_path / "other").mkdir()
    base, twin = written(tmp_path / "a.yaml"), written(tmp_path / "other" / "a.yaml")
    code, _, err = call("ab", base, twin)
    assert code == 2 and "two arms are called a" in err
    out = tmp_path / "runs" / "a-seed1337"
    out.mkdir(parents=True)
    (out / "run.yaml").write_text(yaml.safe_dump(CONFIG | {"steps": 7}))
    code, _, err = call("ab", base, written(tmp_path / "b.yaml"), "--out", str(tmp_path / "runs"))
    assert code == 1 and "holds a run of another configuration" in err


def test_losses_of_other_tokens_do_not_compare():
    base, longer, other = (
        config_from_dict(CONFIG | changes)
        for changes in ({}, {"steps": 50}, {"model": {**CONFIG["model"], "vocab_size": 128}})
    )
    assert not other_text(base, longer) and other_text(base, other)


@pytest.mark.long
def test_an_experiment_from_two_files_to_its_verdicts(call, tmp_path):
    base, slow = written(tmp_path / "base.yaml"), written(tmp_path / "slow.yaml", optimizer={"learning_rate": 1e-5})
    words = ("ab", base, slow, "--seeds", "2", "--out", str(tmp_path / "runs"), "--json")
    code, out, err = call(*words)
    assert code == 0, err
    found = json.loads(out)
    loss = next(c for c in found["contrasts"] if c["quantity"] == "loss")
    assert loss["difference"]["value"] > 0.2 and loss["base"] < math.log(64)  # it hardly learns
    code, again, err = call(*words)  # nothing is run twice
    assert code == 0 and "completed before" in err and json.loads(again)["measured"] == found["measured"]
