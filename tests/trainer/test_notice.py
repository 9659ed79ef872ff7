"""Whoever takes the machine away says so a moment before: the run saves within it, and is started again elsewhere."""

from __future__ import annotations

import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.trainer.small import config, start, wait_for_step
from trainer.ended import AGAIN, status
from trainer.runlog import load_run_log
from trainer.schema import ConfigError, StopConfig, config_from_dict, to_dict
from trainer.stop_requests import Notice


def check_stopped(folder, process, where: str) -> None:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    log = load_run_log(folder / "log.jsonl")
    assert log.final["reason"] == f"received the notice of {where}"
    assert log.checkpoints[-1]["step"] == log.final["step"] < 1_000_000
    [measured] = [message["text"] for message in log.messages if "asked to stop" in message["text"]]
    assert float(measured.split()[1]) < 10.0 and "take up to" in measured
    assert status(folder)[0] == AGAIN


def test_a_notice_file_saves_and_one_of_the_last_machine_does_not_stop_the_next(tmp_path):
    notice = tmp_path / "taken"
    settings = config(steps=1_000_000, stop=StopConfig(notice=str(notice)))
    first = start(tmp_path, settings)
    wait_for_step(tmp_path, 5, first)
    notice.touch()
    check_stopped(tmp_path, first, str(notice))
    done = load_run_log(tmp_path / "log.jsonl").final["step"]
    second = start(tmp_path, replace(settings, steps=done + 20))  # the file still lies there
    output, _ = second.communicate(timeout=300)
    assert second.returncode == 0 and load_run_log(tmp_path / "log.jsonl").final["outcome"] == "completed", output


@pytest.fixture
def metadata():
    """A loopback service that answers what `says` holds: nothing found, or a text."""

    class Handler(BaseHTTPRequestHandler):
        says: str | None = None

        def do_GET(self):
            self.send_response(404 if Handler.says is None else 200)
            self.end_headers()
            self.wfile.write((Handler.says or "").encode())

        def log_message(self, *_):
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Handler, f"http://127.0.0.1:{server.server_port}/instance-action"
    server.shutdown()
    server.server_close()


def test_a_loopback_address_that_answers_saves(tmp_path, metadata):
    service, address = metadata
    process = start(tmp_path, config(steps=1_000_000, stop=StopConfig(notice=address)))
    wait_for_step(tmp_path, 5, process)
    service.says = "FALSE"  # not yet
    wait_for_step(tmp_path, 50, process)
    service.says = '{"action": "terminate"}'
    check_stopped(tmp_path, process, address)


def test_what_is_no_notice(tmp_path, metadata):
    service, address = metadata
    for says in (None, "", "FALSE", "none"):
        service.says = says
        watched = Notice(address)
        assert not watched.given()
    assert not Notice("http://127.0.0.1:9/nobody-listens").given()
    assert not Notice(str(tmp_path / "nothing")).given()


@pytest.mark.parametrize("where", [
    "http://169.254.169.254/latest", "https://localhost/x", "http://example.com/x", "ftp://127.0.0.1/x",
    "file:///etc/passwd", "http://127.0.0.1@example.com/x",
])  # fmt: skip
def test_only_files_and_this_machine_are_asked(where):
    with pytest.raises(ConfigError, match="stop.notice"):
        config_from_dict(to_dict(config(stop=StopConfig(notice=where))))
    config_from_dict(to_dict(config(stop=StopConfig(notice="http://localhost:80/x"))))
