"""The doors to an assistant: a command, a server, a pasted answer; and what is asked of it."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from advisor.assistant import KEY, json_in, of_command, of_server
from advisor.auditing.card import SETUP_FIELDS
from advisor.auditing.kinds import forms, kinds
from advisor.auditing.schema import card_schema, prompt
from advisor.errors import AdvisorError
from tests.terminal import advisor

TEXT = "# Notes\n\nA step is 24 x 2,048 = 39,152 tokens.\n"
CLAIM = {"id": "a", "kind": "expression", "text": "tokens of a step", "value": "39,152", "readings": ["[24] * [2,048]"],
         "quote": "24 x 2,048 = 39,152 tokens"}  # fmt: skip
ANSWER = json.dumps({"title": "Notes", "run": {}, "claims": [CLAIM]})


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "notes.md"
    path.write_text(TEXT)
    return path


@pytest.fixture
def server():
    """A server on this machine that speaks chat completions; what it was asked is in `asked`."""
    asked: list[tuple[dict, dict]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((body, dict(self.headers)))
            if body["model"] == "broken":
                reply = b"no"
            else:
                reply = json.dumps({"choices": [{"message": {"content": ANSWER}}]}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *words):
            """Nothing is said on stderr."""

    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}/v1", asked
        listening.shutdown()


def test_a_command_reads_the_prompt_and_answers(report, tmp_path):
    script = tmp_path / "reader.py"
    script.write_text(f"import sys; sys.stdin.read().index('24 x 2,048'); print('Sure: ' + {ANSWER!r})")
    done = advisor("audit", str(report), "--reader", f"{sys.executable} {script}", "--json", expect=0)
    [claim] = json.loads(done.stdout)["claims"]
    assert claim["verdict"] == "wrong" and claim["line"] == 3 and "49152" in claim["arithmetic"].replace(",", "")


def test_a_server_is_given_the_schema_and_the_key(report, server, monkeypatch):
    base, asked = server
    monkeypatch.setenv(KEY, "secret")
    done = advisor("audit", str(report), "--reader-url", base, "--reader-model", "some", "--json", expect=0)
    assert json.loads(done.stdout)["counts"]["wrong"] == 1
    [(body, headers)] = asked
    assert body["response_format"]["json_schema"]["schema"]["title"] == "run card" and body["model"] == "some"
    assert headers["Authorization"] == "Bearer secret" and "24 x 2,048" in body["messages"][0]["content"]


def test_an_answer_from_a_file_or_stdin_needs_no_assistant_here(report, tmp_path, monkeypatch):
    answer = tmp_path / "answer.json"
    answer.write_text(ANSWER)
    card = tmp_path / "card.yaml"
    done = advisor("audit", str(report), "--answer", str(answer), "--card", str(card), "--json", expect=0)
    assert json.loads(done.stdout)["counts"]["wrong"] == 1 and "39,152" in card.read_text()
    again = advisor("audit", str(card), "--json", expect=0)
    assert json.loads(again.stdout)["claims"] == json.loads(done.stdout)["claims"]


def test_the_prompt_asks_for_the_text_with_its_lines(report):
    said = advisor("audit", "--schema", str(report), expect=0).stdout
    assert "3: A step is 24 x 2,048 = 39,152 tokens." in said and "verbatim" in said
    document = json.loads(advisor("audit", "--schema", "--json", expect=0).stdout)
    assert document["schema"] == card_schema() and document["prompt"].endswith("The text follows.\n")


def test_the_schema_has_every_field_and_kind():
    schema = card_schema()["properties"]
    assert set(SETUP_FIELDS) <= set(schema["run"]["properties"])
    claims = {one["properties"]["kind"]["const"]: one for one in schema["claims"]["items"]["oneOf"]}
    assert set(claims) == set(kinds())
    assert claims["arithmetic"]["properties"]["way"] == {"enum": ["less", "more", "slower", "faster"]}
    assert (
        all(form in prompt() for form, one in forms().items() if one.says and form != "not_judged")
        and len(prompt()) < 60_000
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--reader", "no-such-command-anywhere"), "there is no command no-such-command-anywhere"),
        (("--reader", f"{sys.executable} -c 'import sys; sys.exit(3)'"), "exit code 3"),
        (("--reader", f"{sys.executable} -c pass"), "there is no { in it"),
        (("--reader", "cat", "--reader-url", "http://127.0.0.1:1"), "both say who reads"),
        (("--reader-url", "http://127.0.0.1:1"), "belong together"),
        (("--reader-url", "http://127.0.0.1:1", "--reader-model", "m"), "does not answer"),
        (("--reader-url", "http://example.org/v1", "--reader-model", "m"), "unencrypted"),
        (("--reader-url", "127.0.0.1", "--reader-model", "m"), "not an http address"),
        (("--answer", "nowhere.json"), "nowhere.json"),
    ],
)
def test_a_door_that_is_shut_says_so_in_a_sentence(report, arguments, said):
    done = advisor("audit", str(report), *arguments)
    assert done.returncode in (1, 2) and said in done.stderr and "Traceback" not in done.stderr


def test_a_server_that_speaks_something_else_is_an_error(server):
    with pytest.raises(AdvisorError, match="did not answer with a chat completion"):
        of_server(server[0], "broken", {})("x")


@pytest.mark.parametrize("answer", ["", "nothing", "{broken", "[1, 2]", '{"a": 1', "NaN"])
def test_what_is_no_object_is_refused(answer):
    with pytest.raises(AdvisorError, match="reader's answer"):
        json_in(answer)


def test_a_command_may_say_something_before_its_answer():
    assert json_in(of_command(f'{sys.executable} -c "print(\'ok {{\\"a\\": 1}} done\')"')("")) == {"a": 1}
