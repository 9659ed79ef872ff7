"""From a log on disk to a verdict: what `advisor analyze` prints, writes and promises."""

import csv
import json
import re
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest

from advisor.errors import AdvisorError
from advisor.findings.overlap import savings
from advisor.history.comparison import compare_runs
from advisor.readers.run_table import Status
from advisor.report import words
from advisor.report.files import markdown, write_reports
from advisor.store.folders import example_run
from advisor.store.store import Store
from advisor.workflows.analysis import Given, to_document
from advisor.workflows.analyze import analyze, judge_all
from tests.terminal import advisor


def write_log(path, *, steps=400, seed=0, gain=0.0, seconds=0.5, nan_from=None, planned=400):
    """A run of GPT-2 small's size as nanoGPT prints it: loss falls as a power of the step, with a little noise."""
    noise = np.random.default_rng(seed).normal(0, 0.02, steps)
    lines = ["number of parameters: 123.59M"]
    for step in range(steps):
        loss = 3.0 - gain + 7.8 * (step + 1) ** -0.4 + noise[step]
        words = "nan" if nan_from is not None and step >= nan_from else f"{loss:.4f}"
        lines.append(f"iter {step}: loss {words}, time {1000 * seconds:.2f}ms, mfu 30.00%")
    path.write_text("\n".join(lines) + "\n")
    return path


def cases(analyses):
    return [one.case for one in analyses]


def test_a_run_folder_is_read_with_its_plan_its_price_and_its_outcome(store):
    found = analyze(example_run(), Given(), store)
    assert found.case.plan is not None and found.case.usd_per_hour == 0.0
    assert found.run.status == "completed" and found.run.rows == 501
    assert "run completed its 501 steps; its loss fell from" in found.verdict.happened
    # by hand from log.jsonl: median step 0.1636 s, 4,608 tokens each
    assert found.tokens_per_second == pytest.approx(4608 / 0.1636, rel=5e-3)
    assert not [finding for finding in found.findings if finding.severity == "error"]  # a healthy run


def test_what_is_given_wins_over_the_log_and_prices_the_loss_of_a_broken_run(store, tmp_path):
    log = write_log(tmp_path / "broken.log", nan_from=100)
    found = analyze(log, Given(gpu="a100-80gb-sxm", gpus=2, usd_per_gpu_hour=1.5), store)
    assert found.case.usd_per_hour == 3.0
    worst = found.findings[0]
    assert worst.code == "loss_not_finite" and worst.severity == "error"
    assert worst.saved_hours is not None and worst.saved_usd is not None
    # 300 of 400 steps of half a second were paid for nothing: 150 s at $3 an hour
    assert worst.saved_hours.value * 3600 == pytest.approx(150, rel=0.05)
    assert worst.saved_usd.value == pytest.approx(150 / 3600 * 3, rel=0.05)
    assert ", then NaN" in found.verdict.happened


@pytest.mark.parametrize(
    ("validation", "title"),
    [
        (["nan"] * 20, "Validation loss is NaN in any of 20 evaluations"),
        (["3.5"] * 17 + ["nan"] * 3, "Validation loss is NaN in the last 3 of 20 evaluations"),
        (["3.5"] * 9 + ["nan"] + ["3.5"] * 10, None),  # one batch without a target is no trend
        (["nan"] + ["3.5"] * 19, None),
    ],
)
def test_validation_losses_that_are_no_numbers_are_named_while_training_goes_well(store, tmp_path, validation, title):
    lines = [f"epoch {n}/20 train_loss {3.9 - n * 0.05:.4f} val_loss {v}" for n, v in enumerate(validation, 1)]
    (tmp_path / "run.log").write_text("\n".join(lines) + "\n")
    found = [f for f in analyze(tmp_path / "run.log", Given(), store).findings if f.code == "loss_not_finite"]
    assert [(f.title, f.severity) for f in found] == ([(title, "warning")] if title else [])


def test_the_document_holds_what_is_promised_and_is_json(tmp_path):
    log = write_log(tmp_path / "run.log", nan_from=300)
    told = json.loads(advisor("analyze", log, "--json", expect=0).stdout)
    asked = "format framework rows phases first_step last_step first_loss last_loss status throughput mfu cost findings"
    assert set(asked.split()) <= set(told)
    assert (told["format"], told["rows"], told["first_step"], told["last_step"]) == ("nanogpt", 400, 0, 399)
    assert told["last_loss"] == "nan" and told["first_loss"] == pytest.approx(10.8, abs=0.1)
    for finding in told["findings"]:
        assert finding["severity"] in ("error", "warning", "note") and finding["evidence"] and finding["threshold"]


def test_the_terminal_opens_with_labelled_lines(tmp_path):
    shown = advisor("analyze", write_log(tmp_path / "run.log"), expect=0).stdout
    lines = shown.splitlines()
    assert lines[0].endswith("run.log") and "its loss fell from 10.8 to" in lines[1]
    assert "checks need more than this log has (--all lists them)" in shown and "insufficient telemetry" not in shown


def test_reports_are_written_whole(store, tmp_path):
    found = analyze(write_log(tmp_path / "run.log"), Given(gpu="l4"), store)
    html, md, table = (tmp_path / f"report.{suffix}" for suffix in ("html", "md", "csv"))
    assert write_reports([found], {"html": html, "md": md, "table": table}) == [html, md, table]
    page = html.read_text()
    # nothing is fetched: no script, style, image or link from elsewhere
    assert not re.search(r"(src|href)\s*=\s*[\"']?https?:", page) and "<script src" not in page
    assert page.count("vegaEmbed('#chart") >= 3
    text = md.read_text()
    for section in ("## Some of its steps", "## Speed", "## Money and time", "## Findings", "## How to reproduce"):
        assert section in text
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 400 and float(rows[7]["loss"]) == found.run.column("loss")[7]


def test_no_heading_of_the_page_comes_twice(store, tmp_path):
    write_reports([analyze(example_run(), Given(), store)], {"html": tmp_path / "r.html"})
    headings = re.findall(r"<h[23]>(.*?)</h[23]>", (tmp_path / "r.html").read_text().split("<script>")[0])
    assert len(headings) > 8 and len(set(headings)) == len(headings)


def test_a_hostile_log_cannot_put_code_into_the_page(store, tmp_path):
    log = write_log(tmp_path / "run.log")
    log.write_text(log.read_text() + "RuntimeError: </script><script>alert(1)</script><img src=x onerror=alert(2)>\n")
    found = analyze(log, Given(), store)
    write_reports([found], {"html": tmp_path / "r.html"})
    page = (tmp_path / "r.html").read_text()
    assert "alert(1)" not in page.replace("&lt;script&gt;alert(1)", "") and "<img src=x" not in page


def test_markdown_tables_survive_pipes(store, tmp_path):
    folder = tmp_path / "a|b"
    folder.mkdir()
    text = markdown([analyze(write_log(folder / "run.log"), Given(), store)], None, ())
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block


def test_two_runs_are_compared_with_the_noise_in_mind(store, tmp_path):
    logs = [write_log(tmp_path / f"{name}.log", seed=seed, gain=gain)
            for name, seed, gain in (("a", 0, 0.0), ("same", 1, 0.0), ("better", 2, 0.1))]  # fmt: skip
    runs = [analyze(log, Given(), store) for log in logs]
    same = compare_runs(cases([runs[0], runs[1]]))
    last = [one for one in same.differences if one.axis == "step"][-1]
    assert last.difference.low < 0.005 and last.difference.high > -0.005  # nothing but noise of 0.02 / sqrt(8 rows)
    found = compare_runs(cases([runs[0], runs[2]]))
    last = [one for one in found.differences if one.axis == "step"][-1]
    assert last.difference.value == pytest.approx(-0.1, abs=0.03) and last.verdict == "better"


def test_slower_steps_are_a_regression_and_noise_is_none(store, tmp_path):
    fast, again, slow = (
        analyze(write_log(tmp_path / f"{name}.log", seed=seed, seconds=seconds), Given(config=tokens(tmp_path)), store)
        for name, seed, seconds in (("fast", 0, 0.5), ("again", 1, 0.5), ("slow", 2, 0.55))
    )
    # the third differs in nothing declared, so it would be a seed of the same group: declare another optimizer
    slow = replace(slow, case=replace(slow.case, run=replace(slow.run, facts={**slow.run.facts, "optimizer": "lion"})))
    found = compare_runs(cases([fast, again, slow]))
    assert [group.runs for group in found.groups] == [(fast.run.source, again.run.source), (slow.run.source,)]
    (speed,) = found.speeds
    assert speed.ratio.value == pytest.approx(0.5 / 0.55, rel=1e-3) and speed.verdict == "regression: slower"


def tokens(folder):
    """A configuration that says how many tokens a step has."""
    path = folder / "config.json"
    path.write_text(json.dumps({"n_layer": 12, "n_embd": 768, "n_head": 12, "block_size": 1024, "batch_size": 12,
                                "vocab_size": 50304, "gradient_accumulation_steps": 1}))  # fmt: skip
    return path


def test_one_log_is_not_compared(store, tmp_path):
    found = analyze(write_log(tmp_path / "run.log"), Given(), store)
    with pytest.raises(AdvisorError, match="cannot compare"):
        compare_runs(cases([found]))


def test_two_logs_of_which_one_broke_off_are_judged_each(store, tmp_path):
    """It was an error, and in the app a warning that nobody needs."""
    (tmp_path / "runs").mkdir()
    whole = write_log(tmp_path / "runs" / "whole.log")
    (tmp_path / "broken.log").write_text(
        'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n    main()\nRuntimeError: no card\n'
    )
    done = advisor("analyze", whole, tmp_path / "broken.log", expect=0)
    assert "cannot compare" not in done.stdout and "RuntimeError" in done.stdout
    write_log(tmp_path / "runs" / "short.log", steps=8)
    of_a_folder = judge_all([tmp_path / "runs"], store, lambda path: analyze(path, Given(), store))
    assert len(of_a_folder.analyses) == 2 and of_a_folder.comparison is None
    assert of_a_folder.left_out == (
        "short.log: not compared, it went to 7 where the longest went to 399",
        "no other run came as far as whole.log: nothing is compared",
    )


def test_bad_input_is_one_sentence(tmp_path):
    empty = tmp_path / "empty.log"
    empty.write_text("")
    assert "is empty" in advisor("analyze", empty, expect=1).stderr
    assert "there is no file" in advisor("analyze", tmp_path / "nowhere.log", expect=2).stderr
    log = write_log(tmp_path / "run.log")
    assert "unknown GPU 'l5'" in advisor("analyze", log, "--gpu", "l5", expect=2).stderr
    assert "does not exist" in advisor("analyze", log, "--plan", tmp_path / "no.yaml", expect=2).stderr
    binary = tmp_path / "weights.bin"
    binary.write_bytes(bytes(range(256)) * 100)
    assert "Traceback" not in advisor("analyze", binary, expect=1).stderr


def test_the_document_of_a_hopeless_log_is_still_whole(store, tmp_path):
    log = tmp_path / "words.log"
    log.write_text("epoch=1 loss=2.5\nepoch=2 loss=2.4\n")
    told = to_document(analyze(log, Given(), store))
    assert told["rows"] == 2 and told["cost"]["usd"] is None


def test_the_money_table_counts_no_second_twice_and_says_nothing_of_cents(store, tmp_path):
    found = analyze(write_log(tmp_path / "run.log", nan_from=100), Given(gpu="l4"), store)
    worst = found.findings[0]
    twice = replace(found, findings=(worst, replace(worst, code="overfitting", title="It overfits")))
    twice = replace(twice, savings=savings(found.case, twice.findings))
    rows = {name: (hours, usd) for name, hours, usd in words.money(twice)}
    assert rows["avoidable (overfitting)"] == rows["avoidable (loss not finite)"]
    assert twice.savings.hours.value == pytest.approx(worst.saved_hours.value)  # the same steps
    assert "avoidable in total (overlaps counted once)" in rows
    tiny = replace(worst, saved_hours=worst.saved_hours.scaled(1e-3), saved_usd=worst.saved_usd.scaled(1e-3))
    rows = [name for name, _, _ in words.money(replace(found, findings=(tiny, tiny)))]
    assert not any(name.startswith("avoidable") for name in rows) and words.saving(tiny) == ""


def test_a_machine_that_costs_nothing_saves_hours_and_no_dollars(store, tmp_path):
    found = analyze(write_log(tmp_path / "run.log", nan_from=100), Given(usd_per_gpu_hour=0.0), store)
    rows = {name: (hours, usd) for name, hours, usd in words.money(found)}
    assert rows["avoidable (loss not finite)"][1] == "$0.00"
    assert "$" not in words.saving(found.findings[0]) and "$" not in found.verdict.cost.partition("of which")[2]


def test_notes_alone_are_no_alarm(store):
    found = analyze(example_run(), Given(), store)
    assert all(finding.severity == "note" for finding in found.findings)
    assert found.verdict.problem.startswith("none found in ")


def test_runs_that_declare_the_same_are_held_against_the_first(store, tmp_path):
    given = Given(config=tokens(tmp_path))
    runs = [analyze(write_log(tmp_path / f"{seconds}.log", seconds=seconds), given, store) for seconds in (0.5, 0.6)]
    found = compare_runs(cases(runs))
    assert [len(group.runs) for group in found.groups] == [1, 1] and found.differences
    assert found.speeds[0].verdict == "regression: slower"
    assert any("the same configuration" in note for note in found.notes)


def test_a_log_too_short_to_compare_is_named_with_what_would_help(store, tmp_path):
    long, short = (write_log(tmp_path / f"{name}.log", steps=steps) for name, steps in (("long", 50), ("short", 1)))
    runs = [analyze(log, Given(), store) for log in (long, short)]
    with pytest.raises(AdvisorError) as caught:
        compare_runs(cases(runs))
    assert f"{short} has 1 row with a training loss, fewer than 5" in caught.value.message
    assert str(long) not in caught.value.message and "longer runs" in caught.value.hint
    again = analyze(write_log(tmp_path / "again.log", steps=50, seed=1), Given(), store)
    notes = compare_runs(cases([runs[0], again, runs[1]])).notes
    assert any(str(short) in note and "left out" in note for note in notes)


def test_a_comparison_says_where_learning_rates_are_not_known(store, tmp_path):
    silent = [analyze(write_log(tmp_path / f"{seed}.log", seed=seed), Given(), store) for seed in (0, 1)]
    assert any("no log states the learning rate" in note for note in compare_runs(cases(silent)).notes)
    rates = replace(
        silent[1].run, columns={**silent[1].run.columns, "learning_rate": np.full(len(silent[1].run), 1e-3)}
    )
    told = replace(silent[1], case=replace(silent[1].case, run=rates))
    notes = compare_runs(cases([silent[0], told])).notes
    assert any(note.startswith(f"{silent[0].run.source} does not state the learning rate") for note in notes)
    assert not any("learning rate of its steps" in note for note in compare_runs(cases([told, told])).notes)
    bare = replace(
        rates, columns={name: rates.columns[name] for name in ("step", "loss")}, facts={"total_seconds": 9.0}
    )
    notes = compare_runs(cases([silent[0], replace(told, case=replace(told.case, run=bare))])).notes
    # its whole time is known, and stood in the table above "not every log tells them"
    assert f"not compared at equal time: {bare.source} does not state when each step was done" in notes


def told(tmp_path, store, text, name="run.log"):
    path = tmp_path / name
    path.write_text(text)
    return analyze(path, Given(), store)


def test_what_happened_is_said_in_what_the_log_counts(store, tmp_path):
    def first(text, name="run.log"):
        return told(tmp_path, store, text, name).verdict.happened

    epochs = "epoch,loss,val_loss\n" + "".join(f"{i},{3 - i / 10},{3.1 - i / 10}\n" for i in range(12))
    assert first(epochs, "log.csv") == (
        "The keras run did 12 epochs; its loss fell from 3 to 1.9. A table of numbers does not say how its run ended, "
        "nor how many steps it was to do."
    )
    # records of a Trainer, five per epoch: no step is printed, so none is counted
    rows = [f"{{'loss': {3 - i / 10:.2f}, 'learning_rate': 1e-05, 'epoch': {i / 5}}}" for i in range(1, 11)]
    ended = "{'train_runtime': 60.0, 'train_samples_per_second': 2.0, 'train_loss': 2.5, 'epoch': 2.0}"
    assert first("\n".join([*rows, ended])) == (
        "The Hugging Face Trainer run completed 2 epochs; its loss fell from 2.9 to 2. The log sums the training up."
    )
    banner = "***** Running training *****\n  Num Epochs = 4\n  Total optimization steps = 400\n"
    assert first(banner + "\n".join(rows)) == (
        "The Hugging Face Trainer run did 200 of 400 steps (50 %); its loss fell from 2.9 to 2. "
        "The log ends there, without an end message."
    )
    assert first("step 0/50 (0.00%) | loss: 6.930000 | lrm: 1.00 | dt: 10.00ms | tok/sec: 5") == (
        "The nanochat run did 1 of 50 steps (2 %); its loss was 6.93. The log ends there, without an end message."
    )


def test_records_placed_by_their_epoch_are_priced_and_foretold(store, tmp_path):
    rows = [f"{{'loss': {3 - i / 10:.2f}, 'learning_rate': 1e-05, 'epoch': {i / 5}}}" for i in range(1, 11)]
    banner = "***** Running training *****\n  Num Epochs = 4\n  Total optimization steps = 400\n"
    found = told(tmp_path, store, banner + "\n".join(rows))
    assert found.run.column("step").tolist() == [20.0 * i for i in range(1, 11)]  # 100 steps an epoch
    missing = next(one for one in found.findings if one.code == "steps_missing")
    assert missing.title.startswith("The log ends after 200 of 400 steps (50 %)")


def test_an_untrained_model_evaluated_first_is_no_step(store, tmp_path):
    history = [{"step": 0, "eval_loss": 3.9, "epoch": 0.0}]
    history += [{"step": 10 * i, "loss": 3 - i / 10, "learning_rate": 1e-5, "epoch": i / 5} for i in range(1, 6)]
    state = {"log_history": history, "global_step": 50, "max_steps": 50, "num_train_epochs": 1}
    found = told(tmp_path, store, json.dumps(state), "trainer_state.json")
    assert "completed its 50 steps; its loss fell from 2.9 to 2.5" in found.verdict.happened


def test_readings_of_a_device_tell_how_long_it_was_watched(store, tmp_path):
    lines = [f"2026/03/01 10:{i // 60:02d}:{i % 60:02d}.000, 95 %, 300.0 W" for i in range(121)]
    found = told(tmp_path, store, "timestamp, utilization.gpu [%], power.draw [W]\n" + "\n".join(lines), "gpu.csv")
    assert found.spent_hours == pytest.approx(120 / 3600)


def test_a_list_of_records_on_one_line_is_all_its_steps(store, tmp_path):
    rows = json.dumps([{"step": 10 * i, "loss": 3 - i / 10} for i in range(1, 9)])
    found = told(tmp_path, store, rows, "history.json")
    assert (found.run.rows, found.run.last_step, found.run.last_loss) == (8, 80, pytest.approx(2.2))


def test_a_run_that_prints_no_step_is_not_called_well(store, tmp_path):
    found = told(tmp_path, store, "***** Running training *****\n  Num Epochs = 4\n  Total optimization steps = 400\n")
    assert found.verdict.happened.startswith("The Hugging Face Trainer run printed no step.")
    assert found.verdict.problem.startswith("The log ends before the first of 400 steps")


def test_where_little_could_be_checked_silence_is_no_praise(tmp_path):
    log = tmp_path / "metrics.csv"
    log.write_text("step,loss\n" + "".join(f"{n},{3 / n**0.2:.4f}\n" for n in range(1, 40)))
    analysis = analyze(log, Given(), Store(tmp_path / "store"))
    assert not analysis.findings
    assert "checks; 55 more need step times and the GPU's name" in analysis.verdict.problem
    assert "nothing wrong" not in analysis.verdict.problem


def test_a_log_that_somebody_writes_is_running(store, tmp_path):
    path = tmp_path / "train.log"
    with path.open("w") as file:
        file.write("".join(f"step {i}/100 | loss {4 - i / 50:.4f}\n" for i in range(1, 41)))
        file.flush()
        live = analyze(path, Given(), store)
        assert (
            live.run.status is Status.RUNNING
            and "is running and has done 40 of 100 steps (40 %)" in live.verdict.happened
        )
        assert not any(finding.code == "steps_missing" for finding in live.findings)
    assert analyze(path, Given(), store).run.status is Status.INCOMPLETE


def test_several_runs_are_a_table_everywhere(store, tmp_path):
    banner = "Using device: cuda\nParameters in the model: 9\nLoading the data from disk\n"
    rows = [f"step {i}/100 | loss {4 - i / 50:.4f}\n" for i in range(1, 101)]
    text = f"{banner}{''.join(rows[:40])}Killed\n{banner}{''.join(rows)}Training complete in 50 s\n"
    analysis = told(tmp_path, store, text)
    assert (
        "holds 2 runs: 1 killed, 1 completed. The longest, run 2, completed 100 steps; its loss"
        in analysis.verdict.happened
    )
    assert [row[1:3] for row in words.runs(analysis)] == [("killed", "1 to 40"), ("completed", "1 to 100")]
    assert "## Runs in this log" in markdown([analysis], None, ())
    assert [run["status"] for run in to_document(analysis)["runs"]] == ["killed", "completed"]


def test_a_run_that_stopped_early_by_its_own_rule_did_not_do_all_that_was_planned(tmp_path, store):
    """24 of 100 epochs: neither "completed after 100 epochs" nor a rest that is still to come."""
    rows = [f"Epoch {n}/100 train loss {2 / n:.4f} val loss {2 / n + 0.1:.4f} time 60.0s" for n in range(1, 25)]
    path = tmp_path / "train.log"
    path.write_text("\n".join([*rows, "Early stopping triggered"]) + "\n")
    analysis = analyze(path, Given(), store)
    assert analysis.run.status is Status.COMPLETED
    assert "ended early by its own rule after 24 of 100 epochs" in analysis.verdict.happened
    assert not analysis.forecast.rest_hours or analysis.forecast.rest_hours.value == 0
    assert analysis.forecast.loss.reason == "the run is over"


def test_one_stall_does_not_change_what_a_step_takes(tmp_path):
    rows = [f"step {n}/1000 loss {9 - n / 200:.3f} step_time {600 if n == 300 else 0.2}s" for n in range(10, 700, 10)]
    log = tmp_path / "stall.log"
    log.write_text("\n".join(rows) + "\n")
    done = advisor("analyze", log, expect=0).stdout
    [line] = [line for line in done.splitlines() if line.strip().startswith("step time")]
    assert line.split()[2:4] == ["200", "ms"], line
    measured = json.loads(advisor("analyze", log, "--json", expect=0).stdout)["measured"]["step_seconds"]
    assert measured["median"] == pytest.approx(0.2) and measured["mean"] > 8


@pytest.mark.parametrize(
    "row", ["epoch 1 step {n}/1563 loss {l} step_time 0.2s", "Epoch: [0][{n}/1563] time 0.2 Loss {l}"]
)
def test_the_steps_of_one_epoch_are_no_planned_end(store, tmp_path, row):
    rows = [row.format(n=n, l=f"{9 - n / 200:.3f}") for n in range(10, 700, 10)]
    found = told(tmp_path, store, "\n".join(rows) + "\n")
    assert found.run.status is Status.NO_END and "does not say how many steps were planned" in found.verdict.happened
    assert found.forecast.steps_planned is None and found.forecast.rest_hours is None
    assert dict(words.outlook(found))["planned end"].startswith("unknown")
    config = tmp_path / "config.yaml"
    config.write_text("num_train_epochs: 10\n")
    known = analyze(tmp_path / "run.log", Given(config=config), store).forecast
    assert known.steps_planned == 15630
    # a counter that stands before the epoch is of the whole run
    whole = told(
        tmp_path, store, "\n".join(f"step {n}/1563 epoch 1 loss {9 - n / 200:.3f}" for n in range(10, 700, 10))
    )
    assert whole.forecast.steps_planned == 1563


@pytest.mark.parametrize("ago, expected", [(5, "running"), (7200, "incomplete")])
def test_a_log_that_ends_a_moment_ago_may_go_on(tmp_path, store, ago, expected):
    """Stamps of this machine's own time, one row a second; the file's own date is now in both cases."""
    end = datetime.now() - timedelta(seconds=ago)
    rows = [
        f"{end - timedelta(seconds=300 - n):%Y-%m-%d %H:%M:%S} step {n}/20000 loss {9 - n / 100:.3f}"
        for n in range(301)
    ]
    path = tmp_path / "live.log"
    path.write_text("\n".join(rows) + "\n")
    analysis = analyze(path, Given(), store)
    assert analysis.run.status.value == expected
    assert ("is running and has done" in analysis.verdict.happened) == (expected == "running")
