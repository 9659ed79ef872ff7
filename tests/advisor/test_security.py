"""What SECURITY.md promises: no code in input, no word that ends a line, no secret written, nothing out of a folder."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from advisor.auditing.schema import prompt
from advisor.errors import AdvisorError
from advisor.options import ExportOptions
from advisor.readers.run_table import Event
from advisor.redact import MASK, for_sending, hide_secrets
from advisor.store.plan_files import dump_plan
from advisor.workflows.export import export, place_there
from tests.advisor.plans import small_plan
from tests.terminal import advisor
from trainer.schema import dump_config

ROOT = Path(__file__).resolve().parents[2]
SECRETS = {
    "HF_TOKEN": "hf_" + "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zA",
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "AWS_ACCESS_KEY_ID": "AKIA" + "ABCDEFGHIJKLMNOP",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIabcK7MDENGbPxRfiCYEXAMPLEKEY",
}


def _sources():
    for room in ("advisor", "trainer"):
        for path in sorted((ROOT / room).rglob("*.py")):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def test_no_input_is_run_as_code():
    """No pickle, no eval, no shell: a file that somebody sent stays data."""
    forbidden = {"eval", "exec", "os.system", "os.popen", "pickle.load", "pickle.loads", "torch.load",
                 "yaml.unsafe_load"}  # fmt: skip
    ends = {name.rpartition(".")[2] for name in forbidden}
    for path, tree in _sources():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            assert not any(k.arg == "shell" and ast.unparse(k.value) != "False" for k in node.keywords), path
            if getattr(node.func, "attr", getattr(node.func, "id", None)) in ends:
                assert ast.unparse(node.func) not in forbidden, f"{path}:{node.lineno}"
                if ast.unparse(node.func) == "yaml.load":
                    assert any("Safe" in ast.unparse(k.value) or "_LOADER" in ast.unparse(k.value)
                               for k in node.keywords), f"{path}:{node.lineno}"  # fmt: skip


def test_a_plan_that_names_python_objects_is_refused(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(small_plan()) + f"extra: !!python/object/apply:os.mknod ['{tmp_path / 'made'}']\n")
    with pytest.raises(AdvisorError):
        from advisor.store.plan_files import load_plan

        load_plan(path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("word", ["x\n#SBATCH --wrap=id", "x y", "$(id)", "`id`", "x;id", "x\\", '"', "x\n"])
def test_a_word_for_an_engine_cannot_leave_its_place(word):
    for field in ("account", "partition", "qos", "constraint", "image", "volume_claim", "infra"):
        with pytest.raises(AdvisorError) as error:
            place_there("slurm", ExportOptions(**{field: word}))
        assert error.value.exit_code == 2
    fine = ExportOptions(account="proj-42", partition="gpu,debug", constraint="h100&(nvlink|sxm)",
                         image="me.io/x:1.2@sha256-ab")  # fmt: skip
    assert place_there("slurm", fine).name == "gpu,debug"


def test_a_name_in_a_plan_cannot_leave_its_folder(tmp_path):
    from dataclasses import replace

    plan = small_plan()
    plan = replace(plan, run=replace(plan.run, name="../../x; rm -rf ~ $(id)"))
    for text in export(plan, "slurm").files.values():
        assert "--job-name=../" not in text
    (tmp_path / "plan.yaml").write_text(dump_plan(plan))
    home = tmp_path / "home"
    advisor("launch", tmp_path / "plan.yaml", "--no-calibrate", "--detach", expect=0, ADVISOR_HOME=home)
    assert {p.name for p in tmp_path.iterdir()} == {"home", "plan.yaml"}
    assert len(list((tmp_path / "home" / "runs").iterdir())) == 1


def test_what_the_environment_hides_is_in_no_file_of_a_run(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(dump_config(small_plan().run))
    variables = {**SECRETS, "ADVISOR_HOME": tmp_path / "home"}
    advisor("launch", config, expect=0, **variables)
    (tmp_path / "plan.yaml").write_text(dump_plan(small_plan()))
    for to in ("script", "slurm"):
        advisor("export", tmp_path / "plan.yaml", "--to", to, "--out", tmp_path / to, expect=0, **variables)
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert any(p.name == "log.jsonl" for p in files) and any(p.name == "job.sbatch" for p in files)
    for path in files:
        content = path.read_bytes()
        assert not any(secret.encode() in content for secret in SECRETS.values()), path


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (f"using token {SECRETS['HF_TOKEN']} of the hub", f"using token {MASK} of the hub"),
        (f"WANDB_API_KEY={SECRETS['WANDB_API_KEY']}", f"WANDB_API_KEY={MASK}"),
        (f'{{"wandb_api_key": "{SECRETS["WANDB_API_KEY"]}"}}', f'{{"wandb_api_key": "{MASK}"}}'),
        (f"aws {SECRETS['AWS_ACCESS_KEY_ID']}", f"aws {MASK}"),
        ("Authorization: Bearer abcdefghijklmnop1234", f"Authorization: Bearer {MASK}"),
        ("pad_token: <|endoftext|>", "pad_token: <|endoftext|>"),
        ("tokens 65536 | loss 8.2341 | tok/s 123456", "tokens 65536 | loss 8.2341 | tok/s 123456"),
        ("key_value_heads=8, max_tokens=1234567890123456789", "key_value_heads=8, max_tokens=1234567890123456789"),
    ],
)
def test_credentials_are_hidden_and_words_are_not(text, hidden):
    assert hide_secrets(text) == hidden and Event(kind="exception", text=text).text == hidden


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("mail to ada.l+x@lab.example.org, done", f"mail to {MASK}, done"),
        ("clone https://ada:geheim7@git.example/x", f"clone https://{MASK}@git.example/x"),
        ("password: geheim", f"password: {MASK}"),
        ("(base) ada@gpu-01:~$ torchrun", f"(base) {MASK}:~$ torchrun"),
        ("saved to /home/ada/out and /Users/ada", f"saved to /home/{MASK}/out and /Users/{MASK}"),
        ("Hostname: node7.lab, step: 3", f"Hostname: {MASK}, step: 3"),
        ("images @ 3.1 it/s, 45@80: 2", "images @ 3.1 it/s, 45@80: 2"),
        ("run --hub-token abcd1234efgh now", f"run --hub-token {MASK} now"),
        (f"WANDB_API_KEY={SECRETS['WANDB_API_KEY']}", f"WANDB_API_KEY={MASK}"),
        (
            "eos_token: <|end|> eos_token_id: 50256 step 10 @ 3.1 it/s",
            "eos_token: <|end|> eos_token_id: 50256 step 10 @ 3.1 it/s",
        ),
        (prompt(), prompt()),  # what is asked of a report has nothing to mask
    ],
)
def test_what_is_sent_to_an_assistant_has_neither_credentials_nor_addresses(text, sent):
    assert for_sending(text) == sent == for_sending(sent)


def test_a_report_does_not_hand_on_what_a_log_gave_away(tmp_path):
    lines = [f"step {i} loss {5 - i / 50:.3f}" for i in range(1, 60)]
    lines += ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>',
              f"ValueError: could not log in with api_key={SECRETS['WANDB_API_KEY']}"]  # fmt: skip
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n")
    for form in (["--json"], ["--md", str(tmp_path / "r.md"), "--html", str(tmp_path / "r.html")]):
        done = advisor("analyze", path, *form)
        assert SECRETS["WANDB_API_KEY"] not in done.stdout + done.stderr, form
    for report in ("r.md", "r.html"):
        text = (tmp_path / report).read_text()
        assert MASK in text and SECRETS["WANDB_API_KEY"] not in text
