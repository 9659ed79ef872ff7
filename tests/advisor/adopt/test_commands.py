"""Knobs found in help texts, and commands with other values of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.adopt.command import for_burst, set_argument, value_of, with_values
from advisor.adopt.help_text import by_command, by_help, draft_recipe, read_options, shipped_recipes
from advisor.errors import AdvisorError
from advisor.store.adopted import Knob, Recipe, Setting

ARGPARSE = """usage: train.py [-h] [-b N] [--grad-accum-steps N] [--ctx CONTEXT_LENGTH]

options:
  -h, --help            show this help message and exit
  -b N, --batch-size N  sequences of a
                        micro-batch (default: 16)
  --grad-accum-steps N
  --ctx CONTEXT_LENGTH  tokens of a sequence (default: 1_024)
  --max-iters N, --iterations N
                        (default: 600000)
  --compile             torch.compile
  --save-interval N     (default: 500)
"""
CLICK = """Usage: train.py [OPTIONS]

Options:
  --micro-batch-size INTEGER  rows  [default: 8]
  --max-steps INTEGER
  --help                      Show this message and exit.
"""
TYRO = """usage: train.py [-h] [--optim.lr FLOAT] [--data.seq-len INT]
╭─ options ─────────────────────────────────────────╮
│ -h, --help              show this help message    │
│ --data.seq-len INT      (default: 2048)           │
│ --data.local-batch-size INT                       │
│                         per device (default: 4)   │
╰───────────────────────────────────────────────────╯
"""
JSONARGPARSE = """usage: main.py [options] fit [-h] [--trainer.max_steps MAX_STEPS]
  --trainer.accumulate_grad_batches ACCUMULATE_GRAD_BATCHES
                        Accumulates gradients over k batches (type: int, default: 1)
  --trainer.max_steps MAX_STEPS
                        Stop training after this number of steps. (type: int, default: -1)
  --data.batch_size BATCH_SIZE
                        (type: int, default: 32)
"""


def knobs(text: str, *command: str) -> dict[str, tuple[str, float | None]]:
    return {knob.name: (knob.key, knob.value) for knob in draft_recipe("x", text, command).knobs}


def test_knobs_of_argparse():
    found = knobs(ARGPARSE, "python", "train.py", "--iterations=50")
    assert found == {
        "micro_batch": ("--batch-size", 16),
        "grad_accum": ("--grad-accum-steps", None),
        "seq_len": ("--ctx", 1024),
        "steps": ("--iterations", 50),
        "save_every": ("--save-interval", None),
    }


def test_knobs_of_click_tyro_and_jsonargparse():
    assert knobs(CLICK) == {"micro_batch": ("--micro-batch-size", 8), "steps": ("--max-steps", None)}
    assert knobs(TYRO) == {"micro_batch": ("--data.local-batch-size", 4), "seq_len": ("--data.seq-len", 2048)}
    found = knobs(JSONARGPARSE)
    assert found["grad_accum"][0] == "--trainer.accumulate_grad_batches"
    assert found["micro_batch"] == ("--data.batch_size", None) or found["micro_batch"] == ("--data.batch_size", 32)
    assert found["steps"][0] == "--trainer.max_steps"


def test_options_are_known_by_the_names_that_settings_of_configurations_have():
    """As LLaMA-Factory and Megatron-LM call them; a share of an epoch is not set to a number of steps."""
    found = knobs("", "python", "x.py", "--cutoff_len=512", "--train-iters", "50", "--val_check_interval", "0.5")
    assert found == {"seq_len": ("--cutoff_len", 512), "steps": ("--train-iters", 50)}


def test_a_program_without_help_is_known_by_what_it_is_given():
    assert knobs("", "python", "x.py", "--batch_size=4", "--lr", "0.1") == {"micro_batch": ("--batch_size", 4)}
    assert draft_recipe("x", "", ("python", "x.py", "--batch_size=4")).knobs[0].how == "equals"


@given(st.text(max_size=300))
def test_any_help_is_read(text):
    for option in read_options(text):
        assert all(name.startswith("--") for name in option.names)


OPTION, EQUALS = Knob(name="micro_batch", key="--b"), Knob(name="micro_batch", key="--b", how="equals")
WORD = Knob(name="micro_batch", key="b", how="word")


@pytest.mark.parametrize(
    ("knob", "before", "after"),
    [
        (OPTION, ["x", "--b", "1", "--c", "2"], ["x", "--b", "8", "--c", "2"]),
        (OPTION, ["x", "--b=1"], ["x", "--b=8"]),
        (OPTION, ["x", "--bb", "1"], ["x", "--bb", "1", "--b", "8"]),
        (EQUALS, ["x"], ["x", "--b=8"]),
        (WORD, ["x", "b=1", "y"], ["x", "b=8", "y"]),
    ],
)
def test_options_are_replaced_where_they_stand(knob, before, after):
    assert set_argument(before, knob, "8") == after


@given(st.lists(st.sampled_from(["--b", "--b=3", "5", "--other", "y"]), max_size=6), st.integers(1, 10**6))
def test_what_is_set_is_what_is_read(words, number):
    arguments = set_argument(["x", *words, "z"], OPTION, str(number))
    assert value_of(arguments, OPTION) == str(number)


def test_a_variable_and_what_bursts_switch_off():
    knobs = (Knob(name="micro_batch", key="BSZ", how="env"), Knob(name="save_every", key="--save", in_bursts="never"))
    recipe = Recipe(name="x", knobs=knobs, burst_args=("--quiet",))
    ready = for_burst(("run", "--save", "10"), recipe, [Setting(name="micro_batch", value=8)])
    assert ready.arguments == ("run", "--save", "never", "--quiet") and ready.variables == {"BSZ": "8"}
    with pytest.raises(AdvisorError, match="no known knob for seq_len"):
        with_values(("run",), recipe, [Setting(name="seq_len", value=8)])


def test_shipped_recipes_are_found_by_their_commands():
    assert by_command(("/v/bin/trl", "sft", "--per_device_train_batch_size", "2")).knob("micro_batch").value == 2
    assert by_command(("python", "-m", "trl.scripts.sft")).name == "trl-sft"
    assert by_command(("litgpt", "pretrain", "pythia-14m")).name == "litgpt-pretrain"
    assert by_command(("litgpt", "pretrain", "pythia-14m")).knob("steps") is None  # litgpt#2193
    assert by_command(("python", "train.py", "--block_size=64")).knob("seq_len").value == 64
    assert by_command(("python", "my_script.py")) is None
    help_of_trainer = "  --per_device_train_batch_size X\n  --save_strategy {no,steps}\n"
    assert by_help(help_of_trainer, ("python", "run_clm.py")).name == "hf-trainer"
    assert by_help(ARGPARSE, ("python", "train.py")) is None
    for recipe in shipped_recipes():
        assert recipe.detect or recipe.detect_help
        assert len({knob.name for knob in recipe.knobs}) == len(recipe.knobs)


FOUNDRY = "max_seq_len: 1024\nmodel: {name: mpt_causal_lm, n_layers: 12}\ndevice_train_microbatch_size: 4\n"
TITAN = "[training]\nlocal_batch_size = 16\nseq_len = 4096\nsteps = 500\n"
KNOWN = [
    (
        ("torchrun", "--nproc-per-node=1", "-m", "scripts.base_train", "--depth=12", "--device-batch-size=8"),
        "nanochat-base",
        {"depth": 12, "micro_batch": 8, "seq_len": 2048},
    ),
    (
        ("torchrun", "-m", "torchtitan.train", "--job.config_file", "c.toml", "--training.steps", "40"),
        "torchtitan",
        {"steps": 40, "micro_batch": 16, "seq_len": 4096},
    ),
    (("axolotl", "train", "c.yml", "--max-steps", "7"), "axolotl", {"steps": 7, "micro_batch": 3, "grad_accum": 1}),
    (
        ("composer", "train.py", "c.yaml", "max_seq_len=256"),
        "llm-foundry",
        {"seq_len": 256, "micro_batch": 4, "depth": 12},
    ),
    (
        ("python", "main.py", "fit", "--config", "c.yaml", "--trainer.max_steps=9"),
        "lightning-cli",
        {"steps": 9, "micro_batch": 32, "grad_accum": 1},
    ),
]
CONFIGS = {
    "torchtitan": ("c.toml", TITAN),
    "axolotl": ("c.yml", "micro_batch_size: 3\nsequence_len: 512\n"),
    "llm-foundry": ("c.yaml", FOUNDRY),
    "lightning-cli": ("c.yaml", "trainer: {max_epochs: 1}\ndata: {batch_size: 32}\n"),
}


@pytest.mark.parametrize(("command", "name", "values"), KNOWN, ids=[name for _, name, _ in KNOWN])
def test_known_trainers_say_their_values_in_arguments_or_a_file(tmp_path, monkeypatch, command, name, values):
    monkeypatch.chdir(tmp_path)
    if name in CONFIGS:
        file, text = CONFIGS[name]
        (tmp_path / file).write_text(text)
    recipe = by_command(command)
    assert recipe.name == name
    assert {knob.name: knob.value for knob in recipe.knobs if knob.name in values} == values


def test_what_a_plan_sets_goes_behind_a_known_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(FOUNDRY)
    command = ("composer", "train.py", "c.yaml")
    ready = for_burst(command, by_command(command), [Setting(name="micro_batch", value=2)])
    assert ready.arguments[:4] == (*command, "device_train_microbatch_size=2")
    assert {"eval_interval=0", "save_folder=null", "console_log_interval=1ba"} <= set(ready.arguments)
    assert (tmp_path / "c.yaml").read_text() == FOUNDRY


def test_example_scripts_around_accelerate_are_told_apart_by_their_help():
    of_transformers = (
        "--per_device_train_batch_size X\n --num_train_epochs\n --max_train_steps X\n --checkpointing_steps\n"
    )
    of_diffusers = "--train_batch_size X\n --max_train_steps X\n --checkpointing_steps X\n"
    command = ("accelerate", "launch", "run_clm_no_trainer.py")
    assert by_help(of_transformers, command).name == "accelerate-transformers"
    assert by_help(of_diffusers, ("accelerate", "launch", "train_unconditional.py")).name == "accelerate-diffusers"


@pytest.mark.parametrize("text", ["[training\n", "steps = = 4\n", "\x00"])
def test_a_torn_configuration_is_named(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(AdvisorError, match=r"c\.toml is not valid TOML"):
        by_command(("torchrun", "-m", "torchtitan.train", "--job.config_file", "c.toml"))
