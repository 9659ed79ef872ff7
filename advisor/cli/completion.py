"""`advisor completion`: prints the shell completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from advisor.cli.verb import answer, verb


@verb("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def command(shell: str) -> None:
    """Print the script that completes commands and options in SHELL.

    Write it where the shell looks: advisor completion bash > ~/.local/share/bash-completion/completions/advisor
    For zsh that is a file _advisor in a folder of $fpath, for fish ~/.config/fish/completions/advisor.fish.
    """
    from advisor.cli import command as root

    kind = get_completion_class(shell)
    assert kind is not None  # click has all three
    script = kind(root, {}, "advisor", "_ADVISOR_COMPLETE").source()
    answer("completion", lambda: {"shell": shell, "script": script}, lambda: script)
