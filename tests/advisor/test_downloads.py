"""Data and models that are elsewhere: prepared there, downloaded, waited for."""

from __future__ import annotations

import json
import math
import os
import shlex
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from advisor.errors import AdvisorError
from advisor.hardware.catalog import require_gpu
from advisor.laws.text import compressed_bytes_per_token
from advisor.planning.answer import answer, bare_plan
from advisor.planning.command import plan_command
from advisor.prediction.uncalibrated import prior_profile
from advisor.prediction.wallclock import DOWNLOAD_BYTES_PER_SECOND, SOFTWARE_BYTES
from advisor.records import Plan
from advisor.store.store import Store
from advisor.workflows.data import DamagedData, check, files_of, read_urls, refetch
from advisor.workflows.launch import dry_run, with_synthetic
from tests.advisor.devices import small_cpu, token_meta
from tests.advisor.plans import goal_of
from tests.trainer.test_damage import parquet

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
H100 = prior_profile(require_gpu("h100-80gb-sxm"))


def plan_of(words: str, profile=H100, data_meta=None) -> Plan:
    return bare_plan(goal_of(shlex.split(words)), profile, now=NOW, data_meta=data_meta)


def rented(words: str, **wishes) -> Plan:
    return plan_of(f"--gpu h100-80gb-sxm --price 2.5 {words}", **wishes)


def download(plan: Plan) -> float:
    assert plan.bill.wall_clock.download_seconds is not None
    return plan.bill.wall_clock.download_seconds.value


def seconds_of(size: float) -> float:
    return size / DOWNLOAD_BYTES_PER_SECOND.value


def test_data_elsewhere_repeat_as_data_in_a_folder_do(tmp_path):
    """The same search: only the download and the evaluations' tokens differ."""
    meta = token_meta(tokens=2 * 10**8, vocab_size=32768, validation_tokens=10**8)
    here = rented(f"--budget 60 --data {tmp_path}", data_meta=meta)
    away = rented("--budget 60 --data-tokens 200M")
    assert away.run.model == here.run.model
    assert away.chosen.standing.epochs == pytest.approx(here.chosen.standing.epochs, rel=0.02)
    assert 4 < away.chosen.standing.epochs <= 16
    assert any("data to bring: 200 M of 200 M tokens" in reason for reason in away.reasons)


def test_only_what_is_trained_on_is_downloaded_and_billed():
    fresh = rented("--budget 60")
    away = rented("--budget 60 --data-tokens 3T")
    size = SOFTWARE_BYTES + away.chosen.tokens * compressed_bytes_per_token(32768)
    assert download(away) == pytest.approx(seconds_of(size))
    assert download(fresh) == pytest.approx(seconds_of(SOFTWARE_BYTES))
    assert away.chosen.tokens < fresh.chosen.tokens
    assert away.bill.cost_usd.value <= 60
    assert away.bill.cost_usd.value == pytest.approx(60, rel=0.01)


@pytest.mark.parametrize("words", ["--budget 40", "--budget 40 --sure", "--deadline 5h --sure"])
def test_limits_are_kept_and_used_up_with_the_download_in_them(words):
    plan = rented(f"{words} --data-tokens 1T --kwh-price 0.3")
    bill = plan.bill.cost_usd if "budget" in words else plan.bill.wall_clock.total_seconds
    counted = bill.high if "sure" in words else bill.value
    limit = 40 if "budget" in words else 5 * 3600
    assert 0.97 * limit < counted <= limit * 1.0001


def test_repeated_data_are_downloaded_once_and_said_in_words():
    plan = rented("--depth 12 --data-tokens 300M --epochs 4")
    assert plan.chosen.tokens == pytest.approx(1.2e9, rel=1e-3)
    assert plan.chosen.standing.epochs == pytest.approx(4, rel=1e-3)
    size = 3e8 * compressed_bytes_per_token(32768)
    assert download(plan) == pytest.approx(seconds_of(SOFTWARE_BYTES + size), rel=1e-3)
    [said] = [reason for reason in plan.reasons if reason.startswith("data to bring")]
    assert f"in {math.ceil(size / 1e8)} shards" in said and "seen 4 times, worth 1.12 B fresh tokens" in said
    assert plan.reasons[0].startswith("1.2 B tokens, the data 4 times over as asked")
    assert any("advisor data prepare" in text and "of one core, not in the bill" in text for text in plan.warnings)


def test_data_elsewhere_reach_a_machine_that_is_at_hand():
    cpu = plan_of("--gpu cpu --deadline 1h --data-tokens 20M", small_cpu())
    assert cpu.bill.wall_clock.provisioning_seconds is None
    fresh = min(cpu.chosen.tokens, 20 * 10**6)
    assert download(cpu) == pytest.approx(seconds_of(fresh * compressed_bytes_per_token(4096)), rel=0.01)


def test_epochs_of_a_folder_settle_the_tokens(tmp_path):
    meta = token_meta(tokens=10**7, vocab_size=4096, validation_tokens=10**5)
    plan = plan_of(f"--gpu cpu --epochs 2.5 --depth 3 --data {tmp_path}", small_cpu(), meta)
    assert plan.chosen.tokens == pytest.approx(2.5e7, rel=1e-3)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("--epochs 2", "--data-tokens 3B"),
        ("--epochs 2 --tokens 1B --data-tokens 1B", "--epochs works the tokens out"),
        ("--data-tokens 1B --data .", "leave --data-tokens out"),
    ],
)
def test_data_that_are_said_twice_are_refused(words, hint):
    with pytest.raises(AdvisorError) as refused:
        goal_of(words.split())
    assert refused.value.exit_code == 2 and hint in (refused.value.hint or "")


def test_the_command_gives_the_same_goal():
    goal = goal_of(["--gpu", "l4", "--data-tokens", "3000000000", "--epochs", "1.5", "--depth", "12"])
    assert goal_of(shlex.split(plan_command(goal))[2:]) == goal
    settled = answer(goal, [prior_profile(require_gpu("l4"))], now=NOW).goal
    assert goal_of(shlex.split(plan_command(settled))[2:]) == goal


def test_a_plan_for_data_elsewhere_is_not_launched_on_synthetic_tokens(tmp_path):
    plan = plan_of("--gpu cpu --deadline 1h --data-tokens 20M", small_cpu())
    with pytest.raises(AdvisorError, match="no data given: this run would train on random tokens") as refused:
        dry_run(Store(tmp_path), plan)
    assert "advisor data prepare" in (refused.value.hint or "")
    assert dry_run(Store(tmp_path), with_synthetic(plan, True))


def test_what_is_named_as_a_download_is_in_the_bill_or_says_why_not(call, tmp_path, monkeypatch):
    """100 B tokens at 100 MB/s are half an hour of eight GPUs, billed where they are to be brought."""
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    words = ("plan", "--gpu", "h100-80gb-sxm", "--gpus", "8", "--depth", "24", "--tokens", "100B", "--all")
    bare = " ".join(call(*words)[1].split())
    assert "not in the bill, because no data are given (--data-tokens" in bare
    brought = (*words, "--data-tokens", "200B")
    assert "not in the bill, because no data" not in " ".join(call(*brought)[1].split())
    billed = [json.loads(call(*brought, *rate, "--json")[1]) for rate in ((), ("--download-rate", "10MB"))]
    times = [plan["chosen"]["bill"]["wall_clock"]["download_seconds"]["value"] for plan in billed]
    named = [plan["data_to_fetch"]["seconds"]["value"] for plan in billed]
    software = seconds_of(SOFTWARE_BYTES)
    assert times == pytest.approx([seconds + software for seconds in named], rel=1e-3)
    assert named[1] == pytest.approx(billed[1]["data_to_fetch"]["download_bytes"] / 1e7) and named[1] > 5 * named[0]


PAGE = b"<html><head><title>403 Forbidden</title></head></html>"


@pytest.fixture
def server(tmp_path):
    """Serves good/NAME; what is named `shut` answers with a page, `half` promises more than it gives."""
    good = parquet(tmp_path / "good.parquet").read_bytes()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            content = PAGE if "shut" in self.path else good
            self.send_response(404 if "gone" in self.path else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if "half" in self.path else content)

        def log_message(self, *words):
            pass

    served = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{served.server_port}", good
    served.shutdown()
    thread.join()
    served.server_close()


def shards(folder):
    folder.mkdir()
    parquet(folder / "shard_0.parquet")
    (folder / "shard_1.parquet").write_bytes(PAGE)
    (folder / "notes.html").write_bytes(PAGE)  # no data
    (folder / ".hidden.parquet").write_bytes(PAGE)
    return folder


def test_a_page_among_shards_is_found_and_fetched_again(server, tmp_path, call):
    address, good = server
    folder = shards(tmp_path / "shards")
    code, out, _ = call("data", "check", str(folder), "--refetch")
    assert code == 1 and "its address is not known: curl --fail" in out
    assert (folder / "shard_1.parquet").read_bytes() == PAGE
    (folder / "urls.txt").write_text(
        f"# all of them\n{address}/shard_0.parquet\n{address}/v1/shard_1.parquet?download=1\n"
    )
    code, out, err = call("data", "check", str(folder))
    out = " ".join(out.split())  # lines end where a long path lets them
    assert code == 1 and "an HTML page that says “403 Forbidden”" in out and "1 of 2 files are damaged" in out
    assert f"{address}/v1/shard_1.parquet" in out and "--refetch" in err
    code, out, _ = call("data", "check", str(folder), "--refetch", "--json")
    document = json.loads(out)
    assert (code, document["files"], document["left"]) == (0, 2, 0)
    assert document["damaged"][0]["again"] == "fetched again, and complete"
    assert (folder / "shard_1.parquet").read_bytes() == good
    code, out, _ = call("data", "check", str(folder))
    assert code == 0 and "2 files: nothing is wrong" in out
    assert sorted(os.listdir(folder)) == [
        ".hidden.parquet",
        "notes.html",
        "shard_0.parquet",
        "shard_1.parquet",
        "urls.txt",
    ]


@pytest.mark.parametrize(
    "where, words",
    [("shut", "an HTML page"), ("half", "bytes came"), ("gone", "the server answers 404")],
)
def test_what_comes_damaged_again_replaces_nothing(server, tmp_path, where, words):
    file = tmp_path / "shard.parquet"
    file.write_bytes(b"")
    one = DamagedData(path=file, what="it is empty", url=f"{server[0]}/{where}/shard.parquet", fetch="")
    assert words in refetch(one)
    assert file.read_bytes() == b"" and [path.name for path in tmp_path.glob(".*")] == []


def test_each_damage_has_the_command_that_mends_it(tmp_path):
    pointer = tmp_path / "a b.parquet"
    pointer.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 9\n")
    hub = tmp_path / "hub" / "datasets--own--set" / "snapshots" / "abc123" / "data" / "x.parquet"
    hub.parent.mkdir(parents=True)
    hub.write_bytes(PAGE)
    first, second = check([pointer, hub], {})
    assert first.fetch == f"git -C {tmp_path} lfs pull --include 'a b.parquet'"
    assert second.fetch == "hf download own/set data/x.parquet --repo-type dataset --revision abc123 --force-download"


def test_an_address_that_the_file_itself_carries_is_known(tmp_path):
    file = tmp_path / "x.bin"
    file.write_bytes(b"")
    try:
        os.setxattr(file, "user.xdg.origin.url", b"https://example.org/x.bin")
    except OSError:
        pytest.skip("this file system keeps no attributes")
    (found,) = check([file], {})
    assert found.url == "https://example.org/x.bin" and found.fetch.endswith("https://example.org/x.bin")


def test_lists_of_addresses(tmp_path):
    urls = tmp_path / "list"
    urls.write_text("https://a/x.bin\nhttps://b/x.bin\n\nhttps://a/my%20file.bin?sig=1\n")
    assert read_urls(urls, []) == {"my file.bin": "https://a/my%20file.bin?sig=1"}  # x.bin may be either
    urls.write_text("file:///etc/passwd\n")
    with pytest.raises(AdvisorError, match="line 1: 'file:///etc/passwd' is not an address"):
        read_urls(urls, [])
    with pytest.raises(AdvisorError, match="no data file"):
        files_of([Path(tmp_path)])
