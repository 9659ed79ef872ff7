"""The tools of `advisor mcp`, asked by the protocol's own client in this process, over stdin and over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.terminal import advisor

mcp = pytest.importorskip("mcp", reason="the extra mcp is not installed")

TOOLS = {"plan_training", "predict_run", "compare_gpus", "explain_number", "analyze_log", "audit_schema",
         "audit_judge", "plan_fleet"}  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The server of this process, which may read the logs in `logs`: what `advisor mcp` serves to its client."""
    made: list[Any] = []
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr("mcp.server.MCPServer.run", lambda own, *_, **__: made.append(own))
    advisor("mcp", "--root", tmp_path / "logs", expect=0)
    return made[0]


def asked(target: Any, ask: Callable[[Any], Awaitable[Any]]) -> Any:
    async def session() -> Any:
        async with mcp.Client(target) as client:
            return await ask(client)

    return asyncio.run(session())


async def told(client: Any, tool: str, **given: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, given)
    found = json.loads(result.content[0].text)
    assert isinstance(found, dict) and result.is_error == ("error" in found), result.content
    return found


def test_each_tool_says_when_to_use_it_and_answers_shortly(tmp_path: Path, server: Any):
    log = tmp_path / "logs" / "train.log"
    log.write_text("\n".join(f"iter {n}: loss {4 - n / 200:.4f}, time 50.00ms" for n in range(200)), encoding="utf-8")

    async def ask(client: Any) -> dict[str, Any]:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() == TOOLS and all(len(tool.description) > 60 for tool in tools.values())
        helps = {
            name: {one: about["description"] for one, about in tool.input_schema["properties"].items()}
            for name, tool in tools.items()
        }
        assert all(text for tool in helps.values() for text in tool.values())
        plan, predict = helps["plan_training"], helps["predict_run"]
        assert "One of: lora, qlora, full." in plan["finetune"] and "8xh100" in plan["gpu"] and "any" in plan["gpu"]
        assert "trl, axolotl" in plan["software"] and "4 bits" in predict["qlora"] and "fp8" in predict["precision"]
        assert "any" not in predict["gpu"].replace(",", "").split()
        return {
            "plan": await told(client, "plan_training", gpu="l4", budget="5"),
            "odds": await told(client, "plan_training", budget="20"),
            "layout": await told(client, "plan_training", gpu="h100-80gb-sxm", model="mixtral-8x7b", layout="any",
                                 gpus="16,64", tokens="100B"),
            "predict": await told(client, "predict_run", gpu="rtx-4090", model="gpt2", micro_batch="8"),
            "cut": await told(client, "predict_run", gpu="8xh100", model="mixtral-8x7b", tp=2, zero=3),
            "gpus": await told(client, "compare_gpus", page=2),
            "eight": await told(client, "compare_gpus", gpu="l4", count=8),
            "several": await told(client, "compare_gpus", gpu="l4,8xh100"),
            "sized": await told(client, "plan_training", gpu="h100", gpus="8", params="1B"),
            "uneven": await told(client, "plan_training", gpu="h100", model="mixtral-8x7b", layout="any", gpus="24,64",
                                       global_batch="8388608"),
            "log": await told(client, "analyze_log", path=str(log), gpu="l4", gpus="2", price="0.5"),
            "outside": await told(client, "analyze_log", path="/etc/hostname"),
            "wrong": await told(client, "plan_training", gpu="l4", model="no-such-model"),
        }  # fmt: skip

    found = asked(server, ask)  # `told` holds is_error against "error"
    assert found["plan"]["command"] == "advisor plan --gpu l4 --budget 5" and found["plan"]["rows"]
    assert "of going over $20; --sure plans for 90 %" in found["odds"]["odds"]
    cost = found["layout"]["rows"][0]["usd"]
    assert cost["interval_80"][0] < cost["value"] < cost["interval_80"][1] and cost["basis"] == "prior"
    assert "EP" in found["layout"]["rows"][0]["layout"]
    assert found["cut"]["rows"][0]["value"] > 0 and "--tp 2" in found["cut"]["command"]
    assert found["predict"]["fits"] is True and found["predict"]["rows"][0]["quantity"] == "step_seconds"
    row = found["predict"]["rows"][0]
    assert row["interval_80"][0] < row["value"] < row["interval_80"][1] and row["basis"] == "prior"
    assert found["eight"]["command"] == "advisor gpus l4 --gpus 8"
    several = found["several"]["rows"]
    assert [(row["gpu"], row["gpus"]) for row in several] == [("l4", 1), ("h100-80gb-sxm", 8)]
    assert several[1]["usd_per_hour"] > 8 * several[0]["usd_per_hour"] > 0 and several[1]["price_age_days"] > 0
    assert "assumed without given tokens: 12 tokens per " in found["sized"]["assumed"][0]
    assert "do not divide by it" in found["uneven"]["left_out"][0] and found["uneven"]["rows"][0]["gpus"] == 64
    assert found["gpus"]["page"].startswith("2 of ")
    assert "has no end message" in found["log"]["answer"] and "did 200 steps" in found["log"]["answer"]
    assert "outside the folders" in found["outside"]["error"]
    assert "unknown" in found["wrong"]["error"] and found["wrong"]["hint"]
    assert all(len(json.dumps(answer)) < 12_000 for answer in found.values())


def test_numbers_are_taken_for_text_and_unknown_arguments_are_refused_by_name(server: Any):
    async def ask(client: Any) -> dict[str, Any]:
        plan = {"gpu": "l4", "depth": 12, "tokens": 5e8}
        return {
            "number": await told(client, "plan_training", gpu="l4", budget=5),
            "text": await told(client, "plan_training", gpu="l4", budget="5"),
            "list": await told(client, "plan_training", gpu="h100-80gb-sxm", gpus=[1, 2], depth=12, tokens=5e8),
            "usd": await told(client, "explain_number", number="usd", of="plan_training", options=plan),
            "qlora": await told(client, "predict_run", gpu="rtx-4090", model="llama-3-8b", lora_rank=16, qlora=True),
            "lora": await told(client, "predict_run", gpu="rtx-4090", model="llama-3-8b", lora_rank=16),
            "gpus": await told(client, "compare_gpus", gpus="h100,a100"),
            "options": await told(client, "plan_training", options=plan),
            "log": await told(client, "analyze_log", path="x.log", cards="l4"),
        }

    found = asked(server, ask)
    assert found["number"]["command"] == found["text"]["command"] == "advisor plan --gpu l4 --budget 5"
    assert "--gpus 1,2 " in found["list"]["command"] + " " and "--tokens 500000000" in found["list"]["command"]
    assert found["usd"]["value"]["value"] > 0
    assert found["qlora"]["command"].endswith("--lora-rank 16 --qlora")
    assert found["qlora"]["fit_probability"] > found["lora"]["fit_probability"]
    assert found["gpus"] == {"error": "compare_gpus has no argument 'gpus'", "hint": "did you mean gpu?"}
    assert "no argument 'options'" in found["options"]["error"] and "no argument 'cards'" in found["log"]["error"]


def test_a_number_is_explained_by_what_it_was_computed_from(server: Any):
    """The formula holds between the numbers that are given, of a plan and of a prediction."""

    async def ask(client: Any) -> dict[str, Any]:
        plan, run = {"gpu": "l4", "budget": "5"}, {"gpu": "8xh100", "model": "gpt2-xl"}
        return {
            "usd": await told(client, "explain_number", number="usd", of="plan_training", options=plan),
            "any": await told(client, "explain_number", number="usd", of="plan_training", options={"budget": "5"}),
            "mfu": await told(client, "explain_number", number="mfu", of="predict_run", options=run),
            "none": await told(client, "explain_number", number="los", of="plan_training", options=plan),
            "tool": await told(client, "explain_number", number="usd", of="gpus", options={}),
        }

    found = asked(server, ask)
    usd, known = found["usd"], found["usd"]["inputs"]
    assert found["any"]["value"]["value"] <= 5  # with the GPU that plan_training takes where none is named
    hours = known["total_seconds"]["value"] / 3600
    paid = hours * known["usd_per_hour"] + known["storage_usd"]["value"]
    assert usd["formula"].startswith("total_seconds / 3600 * usd_per_hour + storage_usd")
    assert usd["value"]["value"] == pytest.approx(paid, rel=2e-3) and usd["value"]["basis"] == "prior"
    assert "published runs" in usd["basis"] and any("price" in one for one in usd["rests_on"])
    mfu, known = found["mfu"], found["mfu"]["inputs"]
    rate = known["tokens_per_second"]["value"] * known["flops_per_token"] / (known["gpus"] * known["peak_flops"])
    assert mfu["value"]["value"] == pytest.approx(rate, rel=2e-3) and "Step time" in mfu["derived_in"]
    assert "did you mean loss" in found["none"]["hint"] and "plan_training or predict_run" in found["tool"]["hint"]


def test_a_report_is_judged_by_what_the_assistant_copied(server: Any):
    report = "We train on 8 GPUs.\n\nA step is 24 x 2,048 = 39,152 tokens.\n"

    async def ask(client: Any) -> dict[str, Any]:
        schema = (await client.call_tool("audit_schema", {})).content[0].text
        assert "quote" in schema and len(schema) > 1000
        claim = {"id": "c1", "kind": "arithmetic", "line": 3, "quote": "24 x 2,048 = 39,152",
                 "that": "24 * 2048 = 39152"}  # fmt: skip
        return await told(client, "audit_judge", report=report, answer=json.dumps({"claims": [claim]}))

    assert "answer" in asked(server, ask)


def test_a_fleet_is_planned_from_its_text(server: Any, advisor_home: Path):
    pools = "pools: {own: {kind: owned, gpu: rtx-4090, gpus: 1}, cloud: {kind: on-demand, gpu: h100, gpus: 8}}"
    runs = "{name: a, goal: {model: gpt2, tokens: 200M}, count: 2, deadline: 5d}"

    async def ask(client: Any) -> dict[str, Any]:
        return {
            "plan": await told(client, "plan_fleet", fleet=f"{pools}\nruns: [{runs}]"),
            "wrong": await told(client, "plan_fleet", fleet=f"{pools}\nruns: [{{name: a, goal: {{model: gpt9}}}}]"),
            "file": await told(client, "plan_fleet", fleet=f"{pools}\nruns: [{{name: a, plan: /etc/hostname}}]"),
        }

    found = asked(server, ask)
    plan = found["plan"]
    first, second = plan["rows"]
    assert (first["run"], second["run"]) == ("a 1", "a 2") and plan["keeps_deadlines"] is True
    assert first["pool"] == second["pool"] == "own" and second["start_hours"] >= first["end_hours"]["value"] * 0.9
    assert "each of 2 deadlines" in plan["answer"] and plan["bound_usd"] == 0
    assert "line 2: runs.a" in found["wrong"]["error"] and "gpt9" in found["wrong"]["error"]
    assert "no files are read here" in found["file"]["error"] and "root:" not in json.dumps(found["file"])
    assert not list(advisor_home.glob("**/*.yaml")) and len(json.dumps(plan)) < 12_000


@contextlib.asynccontextmanager
async def served(way: str) -> AsyncIterator[Any]:
    """What a client connects to when the command serves in a process of its own."""
    words = ["-m", "advisor", "mcp"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    if way == "stdin":
        yield mcp.StdioServerParameters(command=sys.executable, args=words, env=environment, cwd=str(ROOT))
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, *words, "--http", str(port)], cwd=ROOT, stderr=subprocess.DEVNULL,
                               env=environment)  # fmt: skip
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize("way", ["stdin", "HTTP"])
def test_a_process_of_its_own_answers_over(way: str):
    async def session() -> dict[str, Any]:
        async with served(way) as target, mcp.Client(target) as client:
            return await told(client, "compare_gpus", gpu="l4")

    assert asyncio.run(session())["rows"][0]["gpu"] == "l4"


def test_the_instructions_are_short():
    from advisor.mcp_server import INSTRUCTIONS

    assert len(INSTRUCTIONS.encode()) < 2048


def test_an_assistant_describes_a_log_that_is_not_recognised(tmp_path: Path, server: Any):
    log = tmp_path / "logs" / "odd.log"
    rows = [f"<< {i} | err {4 - i / 50:.2f} | api_key={'k3y' * 6} >>" for i in range(1, 51)]
    log.write_text("\n".join(["training starts on cuda", *rows, "RuntimeError: CUDA out of memory."]) + "\n")
    said = {"format": {"name": "odd", "rows": [r"<< (?P<step>\d+) \| err (?P<loss><<LOSS>>)"]},
            "outcome": {"status": "out_of_memory", "cause": "the GPU was full", "lines": [52], "first_loss": "3.98",
                        "last_loss": "3.00", "last_step": "50"}}  # fmt: skip

    async def ask(client: Any) -> dict[str, Any]:
        return {
            "alone": await told(client, "analyze_log", path=str(log)),
            "prompt": await told(client, "analyze_log", path=str(log), schema=True),
            "wrong": await told(client, "analyze_log", path=str(log), answer=json.dumps(said).replace("3.98", "9.98")),
            "right": await told(client, "analyze_log", path=str(log), answer=json.dumps(said)),
            "again": await told(client, "analyze_log", path=str(log)),
        }

    found = asked(server, ask)
    assert "not read as rows with a loss: lines like 2" in found["alone"]["how_it_was_read"][0]
    assert "2: << 1 | err 3.98" in found["prompt"]["prompt"] and "k3yk3y" not in found["prompt"]["prompt"]
    assert "its first_loss 9.98 is not what its patterns find at line 2" in found["wrong"]["how_it_was_read"][0]
    assert "an assistant read: the GPU was full (out_of_memory); line 52" in found["right"]["how_it_was_read"]
    assert "ran out of memory after 50 steps; its loss fell from 3.98 to 3" in found["right"]["answer"]
    assert found["again"]["answer"] == found["right"]["answer"] and "how_it_was_read" not in found["again"]
