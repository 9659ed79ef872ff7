"""The tools of `advisor mcp`: what an assistant can ask about training runs in place of guessing.

Every answer is short: one sentence, the first rows of a table, what was assumed, and the command for the same answer.
Numbers are given as value and ends of the 80 % interval. No tool starts a run or rents a machine.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from advisor import api
from advisor.errors import AdvisorError, close_matches, explain, require_package
from advisor.fleets.read import read_fleet
from advisor.options import OPTIONS, SHARED, AnalyzeOptions, Goal, PredictOptions, options_of
from advisor.planning.explain import COUNTED
from advisor.records import Estimate, Plan
from advisor.report.brief import broken

_OPTIONS_OF: dict[str, type] = {"predict_run": PredictOptions, "analyze_log": AnalyzeOptions}  # others: of `plan`
ROWS, FINDINGS = 8, 12  # per page of an answer
INSTRUCTIONS = """\
Plans, predicts and judges language-model training: time, dollars, GPU memory, loss. Ask it before stating any such
number yourself, and give its numbers with their 80 % interval and their basis.

- plan_training: which GPU, batch, model size or layout for a goal; a fine-tune; a large model over many GPUs.
- predict_run: step time, tokens/s, MFU and memory of one configuration.
- compare_gpus: specifications and cheapest rental prices.
- explain_number: from what a number of plan_training or predict_run was computed.
- plan_fleet: many runs with deadlines over few GPUs: what to buy, what to start when, the chance of each deadline.
- analyze_log: what happened in a training log, what it cost, what to change.
- audit_schema, then audit_judge: check the numbers of a report or plan that you have read.

basis: measured or interpolated (a calibration on that GPU), extrapolated (beyond it), prior (data sheets and published
runs: wide). If a basis is prior and the decision is close, say that `advisor calibrate` on the GPU narrows it. Never
claim more digits than the interval holds, and never that a run was started: nothing here starts or rents anything.
"""
# parameters that are no options of a command, or whose help as an option does not suit an assistant
_WRITTEN = {
    "software": "trl, axolotl, unsloth, llama-factory, hf-trainer, megatron, nemo, torchtitan, nanogpt, nanochat, …",
    "count": "How many GPUs are rented together.",
    "provider": "A name of the price list, as lambda, runpod, aws.",
    "more": "Further options of the command by name, as --help lists them: {'width': '4096', 'sure': true}.",
    "page": "Which page of the rows, from 1.",
    "number": "A name in the rows of the answer, as hours, usd, mfu.",
    "of": "plan_training or predict_run: the tool that gave the answer.",
    "options": "What that tool was given, by name.",
    "path": "A log file or run folder, below the folders that may be read.",
    "report": "The whole text of the report.",
    "fleet": "The text of a fleet.yaml: pools of GPUs, and runs with goals.",
    "answer": "Your JSON for the prompt of audit_schema, or of analyze_log with schema=true.",
    "schema": "Return the prompt for a description of the log instead of the analysis.",
}


def plan_training(
    gpu: str = "any", gpus: str = "", budget: str = "", deadline: str = "", tokens: str = "", model: str = "",
    params: str = "", depth: str = "", seq_len: str = "", software: str = "", finetune: str = "", stage: str = "",
    examples: str = "", length: str = "", epochs: str = "", layout: str = "", objective: str = "", spot: str = "",
    price: str = "", global_batch: str = "", page: int = 1, more: dict[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Recommend how to train within a goal: the GPU and how many, the batch, the tokens, hours and dollars.

    Use it for "what can I train for $20", "how long and how much for 1T tokens", "fine-tune Qwen3-8B on 50k examples"
    (finetune=lora|qlora|full with model and examples; stage=dpo for preference pairs), and "how do I cut a 70B or a
    mixture of experts over 256 GPUs" (layout=any with model, gpus="64,256", tokens), "what does GRPO take" (model, and
    more={'rl': 'grpo', 'prompts': '20k', 'response_len': '1200', 'response_max': '4096'}; grpo, ppo or dapo; also
    prompts_per_step, group, prompt_len, placement (colocated or split), staleness, rollout_gpus, rollout_tp,
    rollout_memory, rollout_precision, dropped_groups, judge, judge_gpus, turns, tool_seconds, reference, lora). Rows
    come best first: a machine on which few have published a run counts with its cautious speed. All values are text,
    as people write it; leave out what nobody said.
    """
    given = _given(locals())
    return _reply(lambda: api.plan(**given), "plan", given, page, ROWS)


def explain_number(number: str, of: str, options: dict[str, Any]) -> dict[str, Any]:
    """Say how one number of an answer was computed: its formula, the numbers that went into it, its basis.

    Use it for "why so expensive", "where does this MFU come from". of is plan_training or predict_run, options are
    those that you gave it, number is a name in its rows: hours, usd, loss, tokens_per_second, mfu, step_seconds,
    peak_reserved_bytes, fit_probability, steps, tokens, energy_kwh.
    """
    tools: dict[str, Callable[..., api.Answer[Any]]] = {"plan_training": api.plan, "predict_run": api.predict}
    if (ask := tools.get(of)) is None:
        return {"error": f"there is no tool {of!r} whose numbers are explained", "hint": "plan_training or predict_run"}
    given = {"gpu": "any"} if ask is api.plan else {}  # the default of plan_training
    given |= _given(options)

    def explained() -> dict[str, Any]:
        found = api.explain(ask(**given), number).record
        return {"number": found.number, "value": _plain(found.value), "formula": found.formula,
                "inputs": {name: _plain(value) for name, value in found.inputs.items()}, "basis": found.basis,
                "rests_on": list(found.rests_on),
                "derived_in": f"docs/how-it-predicts.md, {found.section}"}  # fmt: skip

    return _or_error(explained)


def predict_run(
    gpu: str, model: str = "", params: str = "", depth: str = "", gpus: str = "", micro_batch: str = "",
    seq_len: str = "", precision: str = "", sharding: str = "", activation_checkpointing: str = "",
    grad_accum: str = "", software: str = "", lora_rank: str = "", qlora: bool = False,
    zero: str = "", tp: str = "", pp: str = "", vpp: str = "", cp: str = "", ep: str = "", network: str = "",
    more: dict[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Predict step time, tokens/s, MFU and peak memory of one configuration, and whether it fits.

    Use it for "does a 7B fit on a 4090", "how fast is GPT-2 on an A100", "memory of GRPO for 32B on 8 H100"
    (more={'rl': 'grpo', 'response_max': '8192'}; the names of plan_training, prompts_per_step for a step's prompts;
    without placement the likeliest to fit, or else the fastest use of the GPUs). software names the trainer (trl,
    axolotl, torchtitan, megatron, nanogpt, …); without it the numbers are of this project's own trainer.
    """
    given = _given(locals())
    return _reply(lambda: api.predict(**given), "predict", given, 1, 2 * ROWS, ("fits", "fit_probability", "would_fit"))


def compare_gpus(gpu: str = "", count: int | None = None, provider: str = "", page: int = 1) -> dict[str, Any]:
    """List GPUs with memory, bandwidth, dense bf16 rate and the cheapest on-demand price per hour for all `count`.

    gpu is empty for all GPUs, one name, or several (l4,8xh100). Prices are a provider's list prices, price_age_days
    old. Marketplaces and spot machines are left out (plan_training with spot=any counts them).
    """
    typed = {"": gpu, "gpus": str(count) if count else "", "provider": provider}
    given = {name: value for name, value in typed.items() if value}
    return _reply(lambda: api.gpus(gpu or None, count=count, provider=provider or None), "gpus", given, page, 3 * ROWS)


def audit_schema() -> str:
    """Return the prompt and JSON Schema with which you copy a report's claims. Judge your answer with audit_judge."""
    from advisor.auditing.schema import prompt

    return prompt()


def audit_judge(report: str, answer: str, page: int = 1) -> dict[str, Any]:
    """Judge the claims that you copied from a report with audit_schema: right, wrong with the numbers, or not judged.

    `report` is the report's whole text, `answer` your JSON. A claim whose quote is not in the text is not judged.
    """
    import tempfile

    with tempfile.TemporaryDirectory(prefix="audit-") as folder:
        path = Path(folder) / "report.md"
        path.write_text(report, encoding="utf-8")
        return _reply(lambda: api.audit(path, answer=answer), "audit", {}, page, FINDINGS)


def plan_fleet(fleet: str, page: int = 1) -> dict[str, Any]:
    """Plan many runs over owned, reserved and rented GPUs: purchases, a schedule, the chance of each deadline.

    Use it for "six ablations and a base run by Friday on four 4090s and whatever is cheapest". An example:

    budget: 3000
    pools: {desks: {kind: owned, gpu: rtx-4090, gpus: 4}, cloud: {kind: on-demand, quota: {h100: 16}},
      cheap: {kind: spot, gpu: a100-80gb-sxm, gpus: 8, availability: 70%, up_time: 3h},
      block: {kind: reservation, gpu: h100, gpus: 8, from: 24h, until: 96h, upfront: 700, most: 2}}
    runs: [{name: ablation, goal: {model: gpt2, tokens: 2B}, count: 6, deadline: 3d}]

    A goal has the options of plan_training. Times are durations from now, or moments. Of a file that is wrong, every
    problem is named with its line. Rows are the runs by their start.
    """
    import tempfile

    from advisor.report.fleet import lines

    def planned() -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
            path = Path(folder) / "fleet.yaml"
            path.write_text(fleet, encoding="utf-8")
            if any(entry.plan is not None for entry in read_fleet(path, datetime.now()).entries):
                raise AdvisorError("a run has plan: FILE, and no files are read here", "state its goal", exit_code=2)
            schedule = api.fleet(path)
        answer = _shortly(schedule, "fleet", {}, page, 2 * ROWS, ("keeps_deadlines", "purchases", "bound_usd"))
        return answer | {"notes": list(lines(schedule.record)), "command": "advisor fleet plan FLEET.yaml"}

    return _or_error(planned)


def log_reader(roots: Sequence[Path]) -> Callable[..., dict[str, Any]]:
    """Return the tool that reads logs below these folders, and nowhere else."""

    def analyze_log(
        path: str, gpu: str = "", gpus: str = "", price: str = "", answer: str = "", schema: bool = False, page: int = 1
    ) -> dict[str, Any]:
        """Read a training log or run folder: progress, loss, speed, what went wrong, what it cost, what to do.

        Profiler traces, memory snapshots and flight-recorder dumps too: where a step goes, what fills memory, who is
        stuck.

        gpu ("h100"), gpus and price (dollars per GPU-hour) add facts that the log lacks (without a price, no dollars).
        If it says that lines were not read as rows, call it with schema=true: you get lines of the log, without
        credentials, and the schema of a description. Pass your JSON as answer. It is used only if its patterns hold on
        every line, and kept for the next log of that program.
        """
        found = Path(path).expanduser().resolve()
        if not any(found.is_relative_to(root.resolve()) for root in roots):
            allowed = ", ".join(map(str, roots))
            return {"error": f"{path} is outside the folders that may be read", "hint": f"allowed: {allowed}"}
        given = {name: value for name, value in (("gpu", gpu), ("gpus", gpus), ("price", price)) if value}

        def read() -> dict[str, Any]:
            from advisor.workflows.ask_about_log import question

            if schema:
                return {"prompt": question(found).prompt}
            analyses = api.analyze(found, answer=answer or None, **given)
            told = _shortly(analyses, "analyze", {"": str(found)} | given, page, FINDINGS, ())
            if analyses.name == "analyze-trace":
                whole = [one.judgement.parts for one in analyses.judged if one.judgement.parts]
                return told | {"parts": [{part.name: _plain(part.share) for part in parts} for parts in whole]}
            notes = [
                note for one in analyses for note in one.run.notes if note.startswith(("an assistant", "not read"))
            ]
            return told | ({"how_it_was_read": notes} if notes else {})

        return _or_error(read)

    return analyze_log


def serve(roots: Sequence[Path], port: int | None) -> None:
    """Answer an assistant over stdin and stdout, or over HTTP on this machine only."""
    require_package("mcp", "the server for assistants")
    from mcp.server import MCPServer
    from mcp.types import CallToolResult, TextContent

    served = (plan_training, predict_run, compare_gpus, explain_number, plan_fleet, log_reader(roots), audit_schema,
              audit_judge)  # fmt: skip
    tools = {tool.__name__: tool for tool in served}

    class Server(MCPServer):
        """Refuses arguments by name, takes numbers for text, and marks an error as one."""

        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            try:
                arguments = _arguments(tools[name], arguments) if name in tools else arguments
            except AdvisorError as error:
                found = {"error": error.message, "hint": error.hint}
                text = TextContent(type="text", text=json.dumps(found))
                return CallToolResult(content=[text], structured_content=found, is_error=True)
            done = await super().call_tool(name, arguments, context)
            if isinstance(done, CallToolResult) and "error" in (done.structured_content or {}):
                return done.model_copy(update={"is_error": True})
            return done

    server: Any = Server("training-advisor", instructions=INSTRUCTIONS, log_level="WARNING")
    for tool in served:
        server.tool()(with_help(tool))
    if port is None:
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=port)


def with_help(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Return the tool with a description of each parameter in its signature: the help and choices of its option.

    A parameter that is read as text may be a number too.
    """
    from pydantic import Field

    known = {**SHARED, **OPTIONS, **options_of(_OPTIONS_OF.get(tool.__name__, Goal))}
    parameters = []
    for one in inspect.signature(tool, eval_str=True).parameters.values():
        text = _WRITTEN.get(one.name)
        if text is None:
            option = known[one.name]
            text = option.help + (f" One of: {', '.join(option.choices)}." if option.choices else "")
        also: Any = {"type": ["string", "number"]} if one.annotation is str else None
        help_ = Field(description=text, json_schema_extra=also)
        parameters.append(one.replace(annotation=Annotated[one.annotation, help_]))

    @functools.wraps(tool)
    def described(**given: Any) -> Any:
        return tool(**given)

    returns = inspect.signature(tool, eval_str=True).return_annotation
    described.__signature__ = inspect.Signature(parameters, return_annotation=returns)  # type: ignore[attr-defined]
    return described


def _arguments(tool: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a tool was given, numbers and lists as text; AdvisorError for an argument that it does not have."""
    known = inspect.signature(tool, eval_str=True).parameters
    for name in given:
        if name not in known:
            close = close_matches(name, known)
            hint = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(known) or 'none'}"
            raise AdvisorError(f"{tool.__name__} has no argument {name!r}", hint, exit_code=2)
    return {name: _text(value) if known[name].annotation is str else value for name, value in given.items()}


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a command among the arguments of a tool, with those in `more`."""
    named = {name: value for name, value in arguments.items() if value and name not in ("page", "more")}
    return {name: _text(value) for name, value in (named | (arguments.get("more") or {})).items()}


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return ",".join(str(_text(one)) for one in value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _reply(
    ask: Callable[[], Any], verb: str, given: Mapping[str, Any], page: int, most: int, more: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a short answer, or the reason why there is none and what to do."""
    return _or_error(lambda: _shortly(ask(), verb, given, page, most, more))


_IN_FIELDS = ("assumed, because", "may not fit")  # notes that are fields of the reply


def _or_error(answer: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return answer()
    except (AdvisorError, OSError, ValueError) as error:
        message, hint, _ = explain(error)
        return {"error": message} | ({"hint": hint} if hint else {})


def _shortly(
    answer: Any, verb: str, given: Mapping[str, Any], page: int, most: int, more: Sequence[str]
) -> dict[str, Any]:
    pages = max(1, math.ceil(len(answer.rows) / most))
    rows = [_short(row) for row in answer.rows[(page - 1) * most : page * most]]
    added = {name: _plain(answer.document[name]) for name in more if name in answer.document}
    reply = {"answer": answer.sentence, "rows": rows} | added
    if assumed := [*getattr(answer.record, "assumed", ()), *_rule_of_tokens(answer.record)]:
        reply["assumed"] = assumed
    if isinstance(answer.record, Plan) and (odds := broken(answer.record)) is not None:
        reply["odds"] = odds
    if isinstance(answer.record, Plan) and answer.record.run is None and answer.record.warnings:
        reply["warnings"] = list(answer.record.warnings)
    if isinstance(answer.record, Plan) and answer.record.run is None:
        from advisor.report import elsewhere, rl

        said = reply.get("warnings", [])
        notes = [one for one in elsewhere.notes(answer.record) if one not in said and not one.startswith(_IN_FIELDS)]
        reply["notes"] = [*rl.in_words(answer.record), *notes] if answer.record.workload.rollouts else notes
    search = answer.record.search if isinstance(answer.record, Plan) else None
    if search is not None and search.does_not_fit:
        reply["left_out"] = list(search.does_not_fit[:ROWS])  # machines, with the reason if it is not memory
    if pages > 1:
        reply["page"] = f"{page} of {pages}"
    words = ["advisor", verb]
    for name, value in given.items():
        words += [f"--{name.replace('_', '-')}"] if name else []
        words += [shlex.quote(value)] if value is not True else []
    return reply | {"command": " ".join(words)}


def _rule_of_tokens(record: Any) -> Sequence[str]:
    """Return the rule by which a plan chose its tokens, if nobody stated them."""
    if not isinstance(record, Plan) or record.run is None or record.goal.tokens is not None:
        return ()
    rule = f"{record.chosen.standing.ratio:.3g} tokens per {COUNTED[record.goal.ratio_counts]}"
    return (f"assumed without given tokens: {rule} ({record.reasons[0]}; Chinchilla's rule is 20 per parameter)",)


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without empty fields. An estimate becomes its value, its interval and its basis."""
    found = {name: _plain(value) for name, value in row.items() if value is not None}
    only = found.pop("", None)  # for a row that is a single number
    return found | (only if isinstance(only, dict) else {})


def _plain(value: Any) -> Any:
    if isinstance(value, Estimate):
        return {
            "value": float(f"{value.value:.4g}"),
            "interval_80": [float(f"{value.low:.3g}"), float(f"{value.high:.3g}")],
            "basis": str(value.basis),
        }
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    return value if isinstance(value, str | int | bool | type(None)) else str(value)
