"""Page Analyze: what is uploaded or pasted is judged as `advisor analyze` judges it, and nothing of it stays behind."""

import io
import json
import pickle
import shlex
import tempfile
import zipfile
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("streamlit", reason="the app's packages are not installed")

from streamlit.testing.v1 import AppTest

from advisor.errors import AdvisorError
from advisor.findings.case import Confidence, Evidence, Finding, Severity
from advisor.records import Basis, Estimate
from advisor.store.folders import example_run
from advisor.store.store import Store
from advisor.ui.analyze import dearest_first
from advisor.ui.controls import escaped
from advisor.ui.uploads import Given, Upload, judge_uploads, safe_name
from tests import terminal
from tests.advisor.build_snapshot import ONE_STEP, snapshot
from tests.advisor.build_trace import training_step
from tests.ui import driver

RECORDED = Path(__file__).parents[1] / "recorded"
LINES = "\n".join(
    f"step {step:05d}/01000 ({step / 10:.2f}%) | loss: {3 + 300 / (step + 50):.6f} | lrm: 1.00 | dt: 250.00ms "
    "| tok/sec: 65,536 | mfu: 20.00"
    for step in range(300)
)


app = partial(driver.app, "analyze")


def words(at: AppTest) -> str:
    kinds = (at.markdown, at.caption, at.info, at.warning, at.error, at.text, at.header, at.success)
    said = "\n".join(str(element.value) for kind in kinds for element in kind)
    said += "\n".join(box.label for box in at.expander)  # each finding is one
    return said + "\n".join(frame.value.to_csv() for frame in at.table)


def packed(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def test_without_a_log_it_says_what_to_do_and_offers_an_example():
    at = app().run()
    assert not at.exception and not at.error
    assert "Drop a log above" in words(at)
    said = words(at.button(key="analyze-show-example").click().run())
    assert not at.exception
    assert "501" in said and "recorded example" in said and "Tokens per second against step" in said
    for chosen, types in (["y axis"], ("linear", "log")), (["x axis"], ("log", None)):
        at.button_group(key="logarithmic").set_value(chosen).run()
        chart = json.loads((at.get("arrow_vega_lite_chart") or at.get("vega_lite_chart"))[0].proto.spec)["layer"][0]
        assert tuple(chart["encoding"][axis]["scale"].get("type") for axis in "xy") == types


def test_an_uploaded_log_says_what_the_command_line_says(advisor_home, tmp_path):
    at = app().run()
    at.file_uploader[0].upload("train.log", LINES.encode()).run()
    assert not at.exception and not at.error
    path = tmp_path / "train.log"
    path.write_text(LINES)
    document = terminal.document("analyze", "train.log", folder=tmp_path)
    said = words(at)
    assert document["throughput"] == pytest.approx(65536)  # as written in every line
    for line in document["verdict"]:
        label, _, text = line.partition(": ")
        assert f"**{label}:** {escaped(text)}" in said
    for finding in document["findings"]:
        assert escaped(finding["title"]) in said
    assert "65.5 k tok/s" in said
    assert len(at.get("download_button")) == 3


def test_pasted_text_with_a_card_and_a_price_is_costed():
    at = app().run()
    at.text_area[0].set_value(LINES).run()
    assert "price unknown" in words(at)
    at.selectbox[0].set_value("l4").run()
    at.number_input[1].set_value(36.0).run()
    assert not at.exception
    # 300 steps of 0.25 s at $36 an hour
    assert "$0.75" in words(at).replace("\\", "")
    assert "price unknown" not in words(at)


def test_a_zip_of_a_log_is_that_log_and_the_files_of_a_run_are_one_run():
    at = app().run()
    at.file_uploader[0].upload("run.zip", packed({"run/log.jsonl": (example_run() / "log.jsonl").read_bytes()})).run()
    assert not at.exception and not at.error
    assert "501" in words(at)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "notes.txt",
            b"Dear diary, today nothing was trained at all.\n" * 20,
            "nothing that looks like a training log",
        ),
        ("empty.log", b"", "empty.log is empty"),
        ("weights.log", bytes(range(256)) * 40, "weights.log is a binary file of no known kind"),
        ("two.zip", packed({"a.log": LINES.encode(), "b.log": LINES.encode()}), "holds 2 files"),
        ("cut.zip", packed({"run.log": LINES.encode()})[:-40], "damaged zip"),
    ],
)
def test_what_cannot_be_read_is_one_sentence_without_our_folders(name, content, expected):
    at = app().run()
    at.file_uploader[0].upload(name, content).run()
    assert not at.exception
    said = words(at)
    assert expected in said
    assert tempfile.gettempdir() not in said and "Traceback" not in said and "--format" not in said


def test_several_logs_are_several_runs_over_each_other():
    at = app().run()
    slower = LINES.replace("dt: 250.00ms", "dt: 500.00ms").replace("65,536", "32,768")
    at.file_uploader[0].upload("fast.log", LINES.encode()).upload("slow.log", slower.encode()).run()
    assert not at.exception and not at.error
    runs = at.table[0].value
    assert list(runs["Run"]) == ["fast.log", "slow.log"]
    # 300 steps of 0.25 and of 0.5 s
    assert list(runs["Takes"]) == ["75 s", "2.5 min"]
    assert "Compared with each other" in words(at) and "FOLDER" not in words(at)
    at.selectbox(key="analyze-run").select("slow.log").run()
    assert "32.8 k tok/s" in words(at)


def test_the_command_of_a_report_gives_it_again(advisor_home, tmp_path):
    at = app().run()
    at.file_uploader[0].upload("my log.txt", LINES.encode()).run()
    at.selectbox(key="log_gpu").set_value("l4").run()
    at.number_input(key="log_price").set_value(36.0).run()
    (tmp_path / "my log.txt").write_text(LINES)
    program, *words_of_it = shlex.split(at.code[-1].value)
    assert program == "advisor"
    assert (
        "$0.75" in terminal.advisor(*words_of_it, expect=0, folder=tmp_path).stdout
    )  # 300 steps of 0.25 s at $36 an hour


def test_a_report_is_still_there_on_another_visit_until_its_log_is_taken_away():
    at = app().run()
    at.file_uploader[0].upload("train.log", LINES.encode()).run()
    name = at.query_params["report"]
    again = app()
    again.query_params["report"] = name
    again.run()  # the page loaded anew: nothing in its form
    assert "Report on train.log" in words(again).replace("\\", "") and "65.5 k tok/s" in words(again)
    assert len(again.file_uploader) == 1  # which takes another log
    stale = app()
    stale.query_params["report"] = "0123456789ab"
    stale.run()
    assert "no longer in the server's memory" in words(stale) and not stale.exception


def test_another_log_replaces_the_first_in_one_step():
    at = app().run()
    at.file_uploader[0].upload("train.log", LINES.encode())
    at.text_area(key="analyze-text").input("step 1 loss 3").run()
    other = next(one for one in at.file_uploader if one.label == "Another log")
    other.upload("other.log", LINES.encode()).run()
    assert not at.exception and at.text_area(key="analyze-text").value == ""
    assert escaped("Report on other.log") in words(at) and "train.log" not in words(at)
    assert len(at.file_uploader) == 1


def test_two_lines_are_too_little_to_judge_by():
    at = app().run()
    at.text_area[0].set_value(at.text_area[0].placeholder).run()
    assert not at.exception
    said = words(at)
    assert "none found in" in said and "othing wrong" not in said
    assert "Save the pasted text" in said


def test_a_run_that_ends_before_its_first_step_has_a_whole_report():
    at = app().run()
    at.text_area[0].set_value("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB.").run()
    assert not at.exception and not at.error
    assert "Out of memory" in words(at) and "Save the pasted text" in words(at)


def test_nothing_of_an_upload_stays_on_disk(advisor_home, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = Store(advisor_home)
    judge_uploads([Upload(name="../../train.log", content=LINES.encode)], Given(), store)
    with pytest.raises(AdvisorError):
        judge_uploads([Upload(name="x.txt", content=lambda: b"nothing")], Given(), store)
    assert list(tmp_path.iterdir()) == []


def test_names_from_the_browser_cannot_lead_anywhere():
    assert safe_name("../../etc/passwd") == "passwd"
    assert safe_name("C:\\logs\\run.txt") == "run.txt"
    assert safe_name("..") == "log.txt" and safe_name("a\0b\n.csv") == "ab.csv"
    assert len(safe_name("x" * 5000 + ".jsonl")) == 120 and safe_name("x" * 5000 + ".jsonl").endswith(".jsonl")


def test_a_log_cannot_put_markup_on_the_page():
    assert escaped("![x](http://a/b.png)") == "\\!\\[x\\](http\\://a/b.png)"
    assert escaped("$5 <b>*bold*</b> :red[x]") == "\\$5 \\<b\\>\\*bold\\*\\</b\\> \\:red\\[x\\]"
    assert escaped("- 3") == "\\- 3" and escaped("-2.5 %") == "-2.5 %"


def test_cards_come_by_money_then_hours_then_as_judged():
    def finding(code: str, usd: float | None = None, hours: float | None = None) -> Finding:
        def about(value: float | None) -> Estimate | None:
            return None if value is None else Estimate(value=value, low=value, high=value, basis=Basis.PRIOR)

        return Finding(
            code=code,
            severity=Severity.NOTE,
            title=code,
            evidence=(Evidence(text="seen"),),
            confidence=Confidence.HIGH,
            saved_usd=about(usd),
            saved_hours=about(hours),
        )

    judged = (finding("died"), finding("slow", 3.0, 1.0), finding("hours", None, 2.0), finding("dear", 12.0, 0.1))
    assert [one.code for one in dearest_first(judged)] == ["dear", "slow", "hours", "died"]


HF_ROWS = "\n".join(
    f"{{'loss': {2.5 - 0.01 * n:.4f}, 'grad_norm': 0.5, 'learning_rate': 2e-05, 'epoch': {n / 100:.2f}}}"
    for n in range(1, 61)
)
KILLED = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 22.00 GiB in all\n"


def test_logs_of_two_programs_are_two_reports_and_a_file_that_says_nothing_is_named(advisor_home):
    uploads = [
        Upload(name=name, content=partial(bytes, text.encode()))
        for name, text in (("hf.log", HF_ROWS), ("nano.log", LINES), ("empty.log", ""), ("loss.png", "PNG"))
    ]
    judged = judge_uploads(uploads, Given(), Store(advisor_home))
    assert [analysis.run.source for analysis in judged.analyses] == ["hf.log", "nano.log"]
    assert judged.left_out[0] == "2 files were not read as part of this: loss.png, empty.log"
    at = app().run()
    done = LINES.replace("/01000 ", "/00300 ")
    at.file_uploader[0].upload("nano.log", done.encode())
    at.file_uploader[0].upload("other.err", KILLED.encode()).run()
    assert not at.exception
    # the log says that it was complete: the error is of another run, and has a report of its own
    assert f"**What happened:** {escaped('The run ran out of memory, and no step was read')}" in words(at)
    assert "same training, less memory" in words(at)
    at = app().run()
    at.file_uploader[0].upload("nano.log", LINES.encode())
    at.file_uploader[0].upload("other.err", KILLED.encode()).run()
    assert not at.exception
    told = [note.value for note in at.warning if "not read as part" in note.value]
    assert told == [] and "how the run ended is in other.err" in words(at)  # a log without an end, and its errors


def test_an_assistants_description_is_pasted_on_the_page(advisor_home):
    rows = [f"<< {i} | err {4 - i / 50:.2f} | {3 * i} >>" for i in range(1, 51)]
    odd = "\n".join(["training starts on cuda", "password=geheim7", *rows, "the oven was too cold"]) + "\n"
    said = {"format": {"name": "odd", "rows": [r"<< (?P<step>\d+) \| err (?P<loss><<LOSS>>)"]},
            "outcome": {"status": "crashed", "cause": "it was cold", "lines": [53], "first_loss": "3.98",
                        "last_loss": "3.00", "last_step": "50"}}  # fmt: skip
    at = app().run()
    at.text_area(key="analyze-text").input(odd).run()
    assert not at.exception and any("3: << 1 | err 3.98" in one.value for one in at.code)
    assert not any("geheim7" in one.value for one in at.code)
    [field] = [one for one in at.text_area if str(one.key).startswith("analyze-answer")]
    field.input(json.dumps(said)).run()
    assert not at.exception and not at.error
    assert "crashed after 50 steps" in words(at) and "an assistant read: it was cold" in words(at).replace("\\", "")


def test_a_trace_is_one_bar_of_the_step_with_its_findings():
    content = training_step().text(distributedInfo={"rank": 0, "world_size": 2}).encode()
    at = app(log_price="3").run()
    at.file_uploader[0].upload("rank0.json", content).run()
    assert not at.exception and not at.error
    said = words(at)
    assert "30.3 % of each step is communication that nothing hides" in said and "2 x h100" in said
    assert "copies from memory that is not pinned" in said
    chart = json.loads((at.get("arrow_vega_lite_chart") or at.get("vega_lite_chart"))[0].proto.spec)
    assert chart["encoding"]["x"]["stack"] == "normalize" and "assistant" not in said


def test_a_snapshot_is_one_bar_of_the_memory_with_its_largest_blocks():
    at = app().run()
    at.file_uploader[0].upload(
        "snapshot.pickle", pickle.dumps(snapshot(ONE_STEP, {1: 400, 4: 400, 2: 800}, 2700))
    ).run()
    assert not at.exception and not at.error
    said = words(at)
    assert "2.05 GiB, in the backward pass" in said and "300 MiB of 2.34 GiB reserved bytes are unused" in said
    assert "project/model.py:12 forward" in said.replace("\\", "") and "alice" not in said


def test_a_log_and_its_trace_draw_the_parts_beside_the_predicted_ones():
    header, *rest = (RECORDED / "small.jsonl").read_text(encoding="utf-8").splitlines()
    first = json.loads(header)
    first["device"] |= {"type": "cuda", "name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85_520_809_984}
    first["config"] |= {"device": "cuda", "precision": "bf16"}
    log = "\n".join([json.dumps(first | {"precision": "bf16"}, separators=(",", ":")), *rest])
    trace = training_step()
    trace.events = [event for event in trace.events if event["cat"] != "cpu_op"]  # its product is of a smaller model
    content = trace.text(distributedInfo={"rank": 0, "world_size": 1}).encode()
    at = app(log_price="3").run()
    at.file_uploader[0].upload("log.jsonl", log.encode())
    at.file_uploader[0].upload("rank0.json", content).run()
    assert not at.exception and not at.error
    said = words(at)
    assert "all steps are done" in said and "30.3 % of each step is communication that nothing hides" in said
    charts = [json.loads(one.proto.spec) for one in at.get("arrow_vega_lite_chart") or at.get("vega_lite_chart")]
    assert "the parts of a step" in json.dumps(charts) and "in the trace" in said
