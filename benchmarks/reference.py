"""Writes docs/cli.md, findings.md, the manual page advisor.1 or llms.txt: `python -m benchmarks.reference FILE`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

import advisor
from advisor.cli import VERBS, command

OWN_FORMAT = r"""## A format of your own

A program whose lines are not understood is described in a YAML file. For a log such as

```
planning 2000 updates on card RTX 4090
~ u100 :: cost 4.1718 ; 812 ms
~~ exam at u100 :: cost 4.2031
nothing left to do
```

the file is

```yaml
name: zorp
rows: ['~ u(?P<step>\d+) :: cost (?P<loss><<LOSS>>) ; (?P<seconds__ms>\d+) ms']
validation: ['exam at u(?P<step>\d+) :: cost (?P<eval_loss><<LOSS>>)']
ends: {finished: [nothing left to do]}
settings: {planned_steps: planning, gpu: on card}
```

{fields}

`advisor analyze LOG --format zorp.yaml` reads by it; in `formats/` of the data folder (`ADVISOR_HOME`) it is found by
itself. Your assistant can write it: `advisor analyze LOG --reader 'ollama run NAME'` sends up to 250 lines of the log,
with credentials and e-mail addresses masked; `--schema` prints what it sends, `--answer FILE` takes an answer. It is
used only if its patterns find the losses and the step that it quotes and its evidence is lines of the log; else it is
refused with the reason. What it says of the end is shown as its words. Its format is kept in `formats/` under a
fingerprint of the log's first lines, so that the next log of that program is read without an assistant.
"""
PREFACE = Path(__file__).with_name("reference.md")


def reference() -> str:
    """Return the whole command line as Markdown, with sections in the order of `advisor --help`."""
    context = _root()
    sections: dict[str, list[str]] = {}
    for name, verb in _verbs(context):
        sections.setdefault(VERBS[name].section, []).extend(_pages(verb, VERBS[name].called, context))
    pages = [part for title, written in sections.items() for part in (f"## {title}\n", *written)]
    return "\n".join([PREFACE.read_text(encoding="utf-8"), *pages])


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its full name, including subcommands: ("advisor data prepare", Command)."""
    for name, verb in _verbs(_root()):
        yield from _walk(verb, f"advisor {VERBS[name].called}")


def _root() -> click.Context:
    return click.Context(command, info_name="advisor", **command.context_settings)


def _verbs(context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands of `advisor` itself and their forms, by name; commands of a group are on the group's pages."""
    for name in (name for name, verb in VERBS.items() if verb.form_of is None or verb.form_of[1].startswith("--")):
        verb = command.get_command(context, name)
        assert verb is not None  # it is listed
        yield name, verb


def _walk(verb: click.Command, full_name: str) -> Iterator[tuple[str, click.Command]]:
    yield full_name, verb
    if isinstance(verb, click.Group):
        for name, member in sorted(verb.commands.items()):
            yield from _walk(member, f"{full_name} {name}")


def _pages(verb: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    """Yield the page of a command, then those of its subcommands."""
    context = click.Context(verb, info_name=name, parent=parent)
    usage = " ".join([context.command_path, *verb.collect_usage_pieces(context)])
    yield f"### {context.command_path}\n\n```\n{usage}\n```\n\n{_text(verb.help or '')}\n"
    rows = [row for parameter in verb.get_params(context) if (row := _option(parameter, context))]
    if rows:
        yield "\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n"
    if isinstance(verb, click.Group):
        for member in sorted(verb.commands):
            yield from _pages(verb.commands[member], member, context)


def _option(parameter: click.Parameter, context: click.Context) -> str | None:
    if not isinstance(parameter, click.Option):
        return None
    record = parameter.get_help_record(context)
    if record is None or "--help" in parameter.opts:
        return None
    names, meaning = (text.replace("|", "\\|").replace("\n", " ") for text in record)
    return f"| `{names}` | {meaning} |"


def manual() -> str:
    """Return the manual page advisor(1), as roff."""
    pages = []
    for full_name, verb in commands():
        here = click.Context(verb, info_name=full_name, parent=_root())
        usage = " ".join([full_name, *verb.collect_usage_pieces(here)])
        # all commands have --help, which click spells differently for commands that ran before
        records = [one.get_help_record(here) for one in verb.get_params(here) if "--help" not in one.opts]
        options = "".join(f".TP\n.B {_roff(record[0])}\n{_roff(record[1])}\n" for record in records if record)
        paragraphs = "\n.PP\n".join(_roff(part) for part in _text(verb.help or "").split("\n\n"))
        pages.append(f".SS {_roff(usage)}\n{paragraphs}\n{options}")
    about, _, rest = _text(command.help or "").partition("\n\n")
    title = f'.TH ADVISOR 1 "" "training-advisor {advisor.__version__}"'
    head = f".SH NAME\nadvisor \\- {_roff(about)}\n.SH SYNOPSIS\n.B advisor\nCOMMAND [OPTIONS]"
    exits = "0 done, 1 failed, 2 wrong usage, 3 worked but nothing fits, 130 interrupted."
    parts = (title, head, ".SH DESCRIPTION", _roff(rest), ".SH COMMANDS", *pages, ".SH EXIT STATUS", exits, "")
    return "\n".join(parts)


def llms(readme: str) -> str:
    """Return an index of the documentation for language models (llmstxt.org), from the README and the commands."""
    about = readme.partition("\n\n")[2].partition("\n\n")[0].replace("\n", " ")
    pages = re.findall(r"^- (\[.+)$", readme, re.MULTILINE)
    rows = [f"- `advisor {verb.called}`: {verb.help}" for verb in VERBS.values()]
    return "\n".join(
        ["# training-advisor", "", f"> {about}", "", "## Documents", "", *(f"- {page}" for page in pages), ""]
        + ["## Commands", "", "Each has `--help`, all but app and mcp have `--json`.", "", *rows, ""]
    )


def findings() -> str:
    """Return docs/findings.md: every log format, one of your own, and the detectors in the order in which they run."""
    from advisor.findings.registry import DETECTORS
    from advisor.readers.own_formats import ENDS, FIELDS
    from advisor.readers.read import READERS

    fields = "\n".join(f"- `{name}`: {meaning}" for name, meaning in FIELDS.items())
    own = OWN_FORMAT.replace("{fields}", f"{fields}\n\nEnds are {', '.join(f'`{end}`' for end in ENDS)}.")
    formats = ", ".join(f"`{name}`" for name in sorted({reader.name for reader in READERS}))
    first = [" ".join((inspect.getdoc(one) or "").split("\n\n")[0].split()).replace("|", "\\|") for one in DETECTORS]
    rows = [(one.__name__.removeprefix("detect_"), text) for one, text in zip(DETECTORS, first, strict=True)]
    lines = [
        "# What `advisor analyze` reads and finds",
        "",
        "Generated by `make docs`; do not edit. Each finding says its threshold; [sources.md](sources.md) has where",
        "thresholds come from. A detector that lacks data says *insufficient telemetry* and what would have to be",
        "logged or given.",
        "",
        f"## {len(READERS)} formats",
        "",
        f"{formats}.",
        "",
        "A folder is read as one run: log, configuration, telemetry and checkpoints together; a `.gz` or a",
        "`.zip` of one log is unpacked. The format is recognised by the text; `--format NAME` forces one.",
        "",
        *own.split("\n"),
        f"## {len(DETECTORS)} detectors",
        "",
        "| detector | looks for |",
        "|---|---|",
        *(f"| `{name}` | {text} |" for name, text in rows),
    ]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    """Return a text without roff requests or escapes; its line ends have no meaning."""
    plain = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    plain = "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in plain)
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain


def _text(help_text: str) -> str:
    """Return a docstring as paragraphs, without click's marker against rewrapping."""
    return inspect.cleandoc(help_text).replace("\b\n", "").strip()


def main() -> None:
    """Write the file named on the command line; its name says which."""
    path = Path(sys.argv[1])
    pages = {"cli.md": reference, "advisor.1": manual, "findings.md": findings}
    readme = path.with_name("README.md")
    text = pages[path.name]() if path.name in pages else llms(readme.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
