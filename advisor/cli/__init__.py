"""The command line: one file per verb, each loaded only when its verb is used."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
import warnings
from dataclasses import dataclass

import click

import advisor
from advisor import errors
from advisor.errors import AdvisorError, close_matches

DONE, FAILED, USAGE, NOTHING_FITS, INTERRUPTED = 0, 1, 2, 3, 130
START, MEASURE, RUN, LEARN, LOOK = "Start", "Measure and plan", "Train", "Check", "Look up"
PROGRAMS = "For other programs"


@dataclass(frozen=True)
class Verb:
    """One command: its name, its section and its line in the help. Its module has the click object `command`.

    `form` says how to call a command that is a form of another, such as "calibrate --list". It is `profiles_command` in
    the other's module; its own former name still works but is not listed.
    """

    name: str
    section: str
    help: str
    form: str = ""

    @property
    def called(self) -> str:
        """The words to type after `advisor`."""
        return self.form or self.name

    @property
    def form_of(self) -> tuple[str, str] | None:
        """The command that this one is a form of, and the word that selects the form."""
        command, _, word = self.form.partition(" ")
        return (command, word) if word else None


VERBS = {verb.name: verb for verb in (
    Verb("quickstart", START, "Calibrate, plan, train and compare on this machine, in minutes."),
    Verb("app", START, "Plan, launch, watch, compare and explore in the browser."),
    Verb("calibrate", MEASURE, "Measure this machine's GPU or CPU with short bursts, for predictions."),
    Verb("adopt", MEASURE, "Calibrate and plan any other training command, unchanged."),
    Verb("predict", MEASURE, "Predict step time, throughput and memory of one configuration."),
    Verb("plan", MEASURE, "Recommend depth, batch and tokens for a goal."),
    Verb("fleet", MEASURE, "Plan many runs over few GPUs: what to buy, when to start, how likely each deadline is."),
    Verb("launch", RUN, "Start a planned run that outlives this terminal."),
    Verb("export", RUN, "Write a plan as a script, cluster job or cloud task, or a trained run for transformers."),
    Verb("watch", RUN, "Follow a run: steps, loss, time left, dollars so far."),
    Verb("monitor", RUN, "Watch power, use, memory and temperature of every GPU of this machine.", "watch --gpus"),
    Verb("stop", RUN, "Stop a run with a checkpoint."),
    Verb("resume", RUN, "Continue a stopped or broken run from its last checkpoint."),
    Verb("finetune", RUN, "Train a model further on other data.", "model finetune"),
    Verb("sample", RUN, "Generate text from a run's newest checkpoint.", "model sample"),
    Verb("import", RUN, "Copy a run from another machine and score its prediction.", "runs --import"),
    Verb("push", RUN, "Share finished runs, scores and calibrations with a team.", "runs --push"),
    Verb("pull", RUN, "Copy what a team shared.", "runs --pull"),
    Verb("spend", RUN, "Add up what a team's runs used, by team, model, GPU or month.", "runs --spend"),
    Verb("budget", RUN, "Show or set what a team may spend: runs reserve it before they start.", "runs --budget"),
    Verb("like", RUN, "Have we trained this before? The team's runs nearest to a plan.", "runs --like"),
    Verb("compact", RUN, "Write a month of a shared ledger's records into one file.", "runs --compact"),
    Verb("model", RUN, "Use a trained model: generate text, evaluate it, train it further."),
    Verb("runs", RUN, "List the runs on this machine."),
    Verb("analyze", LEARN, "Diagnose any training log: what happened, what it cost, what to do."),
    Verb("compare", LEARN, "Compare a run with its prediction and explain the difference."),
    Verb("ab", LEARN, "Train variants and a base with several seeds, and say which differences are real."),
    Verb("diff", LEARN, "List the settings that differ between two runs or plans.", "compare --settings"),
    Verb("audit", LEARN, "Check the claims of a plan or report on paper."),
    Verb("eval", RUN, "Measure held-out loss and small tests of a trained model.", "model eval"),
    Verb("accuracy", LEARN, "Show how accurate the predictions have been so far.", "runs --accuracy"),
    Verb("profiles", LOOK, "List the calibrations of each GPU and CPU.", "calibrate --list"),
    Verb("gpus", LOOK, "List GPU specifications and rental prices."),
    Verb("data", LOOK, "Turn text into token files, and look at them."),
    Verb("mcp", PROGRAMS, "Serve an assistant: plan, predict and judge as its tools (MCP)."),
    Verb("check", PROGRAMS, "Judge in CI: does a run fit, what will it cost, is it slower than accepted?"),
    Verb("completion", PROGRAMS, "Print the completion script of a shell: bash, zsh or fish."),
    Verb("schema", PROGRAMS, "Print the JSON Schema of a document that --json prints, or of a file."),
)}  # fmt: skip
FORMS = {verb.form_of: verb.name for verb in VERBS.values() if verb.form_of}
_SETTINGS = "what each setting gives on this machine: advisor calibrate --settings"
GONE = {"tune": _SETTINGS, "calibrate --tune": _SETTINGS}  # former commands, and what to type instead
# former option names: the verb's own first, then those of all verbs; the text after the new name is a unit
FORMER = {
    "": {"--max-usd": ("--budget", ""), "--max-hours": ("--deadline", "h"), "--target-usd": ("--budget", ""),
         "--target-time": ("--deadline", "")},
    "sample": {"--tokens": ("--max-tokens", ""), "--samples": ("--texts", "")},
    "eval": {"--tokens": ("--max-tokens", "")},
    "accuracy": {"--device": ("--gpu", "")},
}  # fmt: skip


def formed(words: list[str]) -> tuple[str, list[str]]:
    """Return the command in these words and the remaining words, with present names in place of former ones."""
    name, rest = words[0], words[1:]
    if name == "adopt":  # its words belong to another program
        return name, rest
    before = zip(["", *rest], rest, strict=False)
    named = [word for last, word in before if "=" in last or not last.startswith("--")]
    if (form := next(((name, word) for word in rest if (name, word) in FORMS), None)) is not None:
        name = FORMS[form]
        rest.remove(form[1])
    elif name == "compare" and len(named) > 1 and any(word.endswith((".yaml", ".yml")) for word in named):
        name = "diff"  # plans, configurations and calibrations can only be compared by their settings
    former, present, unit = FORMER[""] | FORMER.get(name, {}), [], ""
    for word in rest:
        option, equals, value = word.partition("=")
        if not option.startswith("--"):
            option, equals, value = "", "", word  # of the previous option
        else:
            option, unit = former.get(option, (option, ""))
        number = value.replace(".", "").isdigit()
        present.append(f"{option}{equals}{value}{unit if number else ''}")
        unit = "" if value else unit
    return name, present


class LazyGroup(click.Group):
    """A click group that imports a verb's module when the verb is used, and not for its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, verb in VERBS.items() if not verb.form]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        form_of = VERBS[cmd_name].form_of
        module = importlib.import_module(f"advisor.cli.{form_of[0] if form_of else cmd_name}")
        loaded: click.Command = getattr(module, f"{cmd_name}_command" if form_of else "command")
        if forms := [one for one in VERBS.values() if one.form_of and one.form_of[0] == cmd_name != "model"]:
            loaded.epilog = "\b\nSee also:\n" + "\n".join(f"  advisor {one.called} --help: {one.help}" for one in forms)
        return loaded

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        for former, hint in GONE.items():
            verb, *words = former.split()
            if args[:1] == [verb] and set(words) <= set(args):
                raise AdvisorError(f"there is no `advisor {former}` any more", hint, exit_code=USAGE)
        if args and not args[0].startswith("-") and args[0] in VERBS:
            name, rest = formed(args)
            return VERBS[name].called, self.get_command(ctx, name), rest
        if args and not args[0].startswith("-"):
            close = close_matches(args[0], self.list_commands(ctx))
            hint = f"did you mean {' or '.join(close)}?" if close else "`advisor --help` lists the commands"
            raise AdvisorError(f"there is no command {args[0]!r}", hint, exit_code=USAGE)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        for section in (START, MEASURE, RUN, LEARN, LOOK, PROGRAMS):
            rows = [(name, VERBS[name].help) for name in names if VERBS[name].section == section]
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(advisor.__version__, prog_name="advisor", message="%(prog)s %(version)s")
def command() -> None:
    """Plan a training run before paying for it: what fits, how long it takes, what it costs, how sure that is.

    Every command has --help and --json. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 worked but nothing fits.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: errors are one sentence and a next step on stderr, never a traceback.

    A verb may return its exit code. ADVISOR_DEBUG=1 shows the traceback of whatever went wrong.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["help"]:  # `advisor help plan` is `advisor plan --help`
        arguments = [*arguments[1:], "--help"]
    if os.environ.get("ADVISOR_DEBUG") != "1":
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's warnings about numbers do not help the user
    try:
        code = command.main(args=arguments, prog_name="advisor", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader has closed the pipe; keep Python from complaining when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILED
    except (KeyboardInterrupt, click.Abort):
        print("interrupted", file=sys.stderr)
        code = INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        code = USAGE
    except Exception as error:  # the one place where an error becomes words and an exit code
        code = report(error, as_json="--json" in arguments)
    sys.exit(code if isinstance(code, int) else DONE)


def report(error: Exception, *, as_json: bool) -> int:
    """Say what went wrong on stderr (and as JSON on stdout if asked); returns the exit code."""
    message, hint, code = explain(error)
    if os.environ.get("ADVISOR_DEBUG") == "1":
        traceback.print_exception(error)
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    if as_json:
        from advisor.documents import print_json

        print_json("error", {"error": message, "hint": hint})
    return code


def explain(error: Exception) -> tuple[str, str | None, int]:
    """Return the message, hint and exit code of any exception, including those of the command line."""
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "advisor"
        if isinstance(error, click.NoSuchOption):
            from advisor.options import called_here

            if error.option_name[1:2].isdigit():  # an argument, as in `advisor runs --budget TEAM -5`
                message = f"numbers must be positive here, and one begins with {error.option_name}"
                return message, f"`{path} --help` shows how to call it", USAGE
            known = [param.name or "" for param in error.ctx.command.params] if error.ctx else []
            flags = [f"--{name.replace('_', '-')}" for name in called_here(error.option_name, known)]
            if flags:
                here = " or ".join(filter(None, (", ".join(flags[:-1]), flags[-1])))
                return f"No such option '{error.option_name}'", f"here it is {here}", USAGE
        return error.format_message(), f"`{path} --help` shows how to call it", USAGE
    if isinstance(error, click.ClickException):
        return error.format_message(), None, error.exit_code
    return errors.explain(error)
