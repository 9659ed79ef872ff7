"""`advisor model`: samples from, evaluates and further trains a trained model."""

from __future__ import annotations

import click

from advisor.cli import eval as evaluate
from advisor.cli import finetune, sample


@click.group("model")
def command() -> None:
    """Use a trained model: sample text, evaluate it, train it further."""


for _name, _verb in (("sample", sample), ("eval", evaluate), ("finetune", finetune)):
    command.add_command(_verb.command, _name)
