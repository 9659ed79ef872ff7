"""The command line: one file per verb, each loaded only when its verb is used."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
import warnings
from dataclasses import dataclass

import click

import advisor
from advisor import errors
from advisor.errors import AdvisorError, close_matches

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True, kw_only=True)
class Verb:
    """One command: where its click object lives and its line in the help."""

    name: str
    section: str
    help: str
    object_name: str = "command"

    @property
    def module(self) -> str:
        return f"advisor.cli.{self.name}"

    def exists(self) -> bool:
        return importlib.util.find_spec(self.module) is not None


START, MEASURE, RUN, LEARN, LOOK = "Start", "Measure and plan", "Train", "Check", "Look up"

VERBS = {
    verb.name: verb
    for verb in (
        Verb(name="quickstart", section=START, help="Calibrate, plan, train and compare on this machine, in minutes."),
        Verb(name="app", section=START, help="The same in the browser: plan, launch, watch, compare, explore."),
        Verb(
            name="calibrate",
            section=MEASURE,
            help="Measure this machine's GPU or CPU in short bursts, for predictions.",
        ),
        Verb(name="adopt", section=MEASURE, help="Calibrate and plan any other training command, as it is."),
        Verb(name="tune", section=MEASURE, help="Measure which settings make a run faster here, and by how much."),
        Verb(name="predict", section=MEASURE, help="Predict step time, throughput and memory of one configuration."),
        Verb(name="plan", section=MEASURE, help="Recommend depth, batch and tokens for a goal."),
        Verb(name="launch", section=RUN, help="Start a planned run that outlives this terminal."),
        Verb(
            name="export",
            section=RUN,
            help="A plan as a script, cluster job or cloud task; a trained run as a model for transformers.",
        ),
        Verb(name="watch", section=RUN, help="Follow a run: steps, loss, time left, dollars so far."),
        Verb(name="monitor", section=RUN, help="Watch the power, use, memory and heat of every GPU of this machine."),
        Verb(name="stop", section=RUN, help="Stop a run with a checkpoint."),
        Verb(name="resume", section=RUN, help="Go on with a stopped or broken run from its last checkpoint."),
        Verb(name="finetune", section=RUN, help="Go on from a trained run on other data, stage by stage."),
        Verb(name="sample", section=RUN, help="Text from a run's newest checkpoint."),
        Verb(name="import", section=RUN, help="Bring in and score a run that came from elsewhere."),
        Verb(name="runs", section=RUN, help="List the runs on this machine."),
        Verb(name="analyze", section=LEARN, help="Diagnose any training log: what happened, what it cost, what to do."),
        Verb(name="compare", section=LEARN, help="Set a run against its prediction and say where the gap went."),
        Verb(
            name="ab", section=LEARN, help="Run variants against a base over seeds, and say what differs for certain."
        ),
        Verb(name="diff", section=LEARN, help="What differs between two runs or plans, and what each difference does."),
        Verb(name="audit", section=LEARN, help="Check the claims of a plan or report on paper."),
        Verb(name="eval", section=LEARN, help="Held-out loss and small tests of a trained model."),
        Verb(name="accuracy", section=LEARN, help="Show how right the predictions have been so far."),
        Verb(name="profiles", section=LOOK, help="List what is known of each GPU and CPU, and from which calibration."),
        Verb(name="gpus", section=LOOK, help="List GPU specifications and rental prices."),
        Verb(name="data", section=LOOK, help="Turn text into token files, and look at them."),
    )
}


class LazyGroup(click.Group):
    """A click group that imports a verb's module when the verb is used, and not for its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, verb in VERBS.items() if verb.exists()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = VERBS.get(cmd_name)
        if verb is None or not verb.exists():
            return None
        return getattr(importlib.import_module(verb.module), verb.object_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            close = close_matches(args[0], self.list_commands(ctx))
            hint = f"did you mean {' or '.join(close)}?" if close else "`advisor --help` lists the commands"
            raise AdvisorError(f"there is no command {args[0]!r}", hint, exit_code=USAGE)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        for section in (START, MEASURE, RUN, LEARN, LOOK):
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
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's words about a number are no use to whoever gave it
    try:
        code = command.main(args=arguments, prog_name="advisor", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # whoever read our output has seen enough; keep Python from complaining when it flushes at exit
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
        import json

        print(json.dumps({"error": message, "hint": hint}, ensure_ascii=False))
    return code


def explain(error: Exception) -> tuple[str, str | None, int]:
    """The message, hint and exit code of any exception, those of the command line included."""
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "advisor"
        return error.format_message(), f"`{path} --help` shows how to call it", USAGE
    if isinstance(error, click.ClickException):
        return error.format_message(), None, error.exit_code
    return errors.explain(error)
