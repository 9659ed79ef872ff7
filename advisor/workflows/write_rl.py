"""What the start file of a plan of RL post-training says, and what no file says (profiles/exports.yaml)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from advisor.architecture import Layout, Rollouts
from advisor.errors import AdvisorError
from advisor.hardware.catalog import GPUS_PER_NODE
from advisor.planning.models import NamedModel
from advisor.prediction.rl import ONE_OFF
from advisor.records import Plan
from advisor.workflows.goal import find_any_model
from advisor.workflows.plan_finetune import RANK

# By whether adapters are trained, and the weight of the reference: verl's examples/grpo_trainer.
_RATES = {True: 3e-6, False: 1e-6}
_KL = 0.001
_LONGEST_PROMPT = 4.0  # over the mean one
HUB = "https://huggingface.co/"
OUT = "out"
_AS_PLANNED = ("prompts", "group", "response_max", "reference", "offloaded", "memory_share", "staleness", "updates")
JUDGING_FUNCTION = "REWARD.py"  # with a function that turns a judgement into a number


def rl_form(row: Mapping[str, Any], plan: Plan, rollouts: Rollouts) -> Mapping[str, Any]:
    """Return the row for the trainer and engines of a plan of RL. Raises AdvisorError for what it cannot say."""
    name, layout, goal = plan.goal.software, plan.workload.layout, plan.goal
    behind = {0.0: "waits", ONE_OFF: "one_step"}.get(rollouts.staleness, "further")
    pieces = layout is not None and (layout.data < layout.gpus or layout.expert > 1)
    form = {} if rollouts.colocated else row["split"][behind]
    shared = rollouts.judge is not None and not rollouts.judge_gpus
    near = "one_machine" not in row or plan.offer.gpus <= GPUS_PER_NODE
    writes = row["writes"]
    for wanted, able, what, nearest in (
        (True, near, "over several machines", f"--gpus {GPUS_PER_NODE}"),
        (pieces, "pieces" in row, "of models that are split over GPUs", "--lora"),
        (rollouts.judge_len > 0, "judges" in writes, "with a judge that writes", "--judge-len 0"),
        (rollouts.judge_gpus > 0, "judge_gpus" in writes, "with a judge on GPUs of its own", "without --judge-gpus"),
        (shared, "judge_in_turn" not in form.get("lacks", ()), "with a judge on GPUs of the engines",
         "--judge-gpus 1"),
        (rollouts.trained_share < 1, "dropped_groups" in writes, "that drops groups", "--dropped-groups 0"),
        (goal.precision == "fp8", "precision" in writes, "for training in fp8", "--precision bf16"),
        (rollouts.engine_fp8, "rollout_precision" in writes, "for engines in fp8", "--rollout-precision bf16"),
    ):  # fmt: skip
        if wanted and not able:
            raise AdvisorError(f"no file for {name} {what} is written from here", f"nearest: {nearest}", exit_code=2)
    forms = [row["pieces"], form] if pieces else [form]
    made = dict(row) | {"values": row["values"]}
    for one in forms:
        made |= {key: value for key, value in one.items() if key != "values"}
        made["values"] = made["values"] | one.get("values", {})
    if pieces:
        made["begin"] += f" --config-name={made['config']}"
    return made


def machines(gpus: int, role: str = "") -> dict[str, int]:
    """Returns the number of machines with these GPUs, and the GPUs of each, as fields."""
    return {f"{role}nodes": max(1, gpus // GPUS_PER_NODE), f"{role}node_gpus": min(GPUS_PER_NODE, gpus)}


def shared_fields(plan: Plan, architecture: NamedModel, adapted: bool) -> dict[str, Any]:
    """Returns the fields that the files of fine-tunes and of RL have in common."""
    work, rank = plan.workload, (plan.goal.lora_rank or RANK) if adapted else None
    recomputed = work.activation_checkpointing == "full"
    return {
        "model": architecture.source.removeprefix(HUB),
        "adapted": adapted,
        "rank": rank,
        "alpha": 2 * rank if rank else None,
        "target_linear": "all-linear" if rank else None,
        "recomputed": recomputed,
        "recomputed_in_words": "true" if recomputed else "false",
        "bf16": work.precision != "fp16",
        "fp16": work.precision == "fp16",
        "sharding": work.sharding,
        "gpus": work.gpus,
        "out": OUT,
    }


def rl_fields(plan: Plan, architecture: NamedModel) -> dict[str, Any]:
    """Returns the fields of the files for RL post-training, by the names of profiles/exports.yaml."""
    work, rollouts, goal = plan.workload, plan.workload.rollouts, plan.goal
    assert rollouts is not None
    trained = work.gpus
    a_gpu = rollouts.prompts * rollouts.group // trained
    micro = max(1, min(work.micro_batch, a_gpu))
    # micro-batches after which every group of answers is complete, as TRL demands of a batch
    whole_groups = rollouts.group // math.gcd(rollouts.group, micro * trained)
    recomputed = work.activation_checkpointing == "full"
    layout = work.layout if work.layout is not None else Layout(data=trained)
    judge = None if goal.judge is None else find_any_model(goal.judge).source.removeprefix(HUB)
    judging, engine_gpus = rollouts.judge_gpus, rollouts.engine_gpus
    prompt_max = 128 * math.ceil(_LONGEST_PROMPT * rollouts.prompt_len / 128)
    return shared_fields(plan, architecture, goal.lora) | {
        "estimator": "gae" if rollouts.algorithm == "ppo" else "grpo",
        "critic": architecture.source.removeprefix(HUB) if rollouts.algorithm == "ppo" else None,
        **{name: getattr(rollouts, name) for name in _AS_PLANNED},
        **machines(trained),
        **machines(engine_gpus, "engine_"),
        **(machines(judging, "judge_") if judging else dict.fromkeys(("judge_nodes", "judge_node_gpus"))),
        "prompt_max": prompt_max,
        "learning_rate": _RATES[goal.lora],
        "mini_prompts": max(1, rollouts.prompts // rollouts.updates),
        "micro_tokens": work.micro_tokens,
        "micro_batch": micro,
        "grad_accum": max(whole_groups, a_gpu // micro // whole_groups * whole_groups),
        "beta": _KL if rollouts.reference else 0.0,
        "tensor": rollouts.engine_tensor,
        "engine_devices": ",".join(map(str, range(trained, trained + engine_gpus))),
        "train_devices": ",".join(map(str, range(trained))),
        "copies": engine_gpus // rollouts.engine_tensor,
        "context": prompt_max + rollouts.response_max,
        "engine_quantization": "fp8" if rollouts.engine_fp8 else None,
        "samples": plan.chosen.steps * rollouts.prompts,
        "dropping": rollouts.trained_share < 1,
        "train_tensor": layout.tensor,
        "train_pipeline": layout.pipeline,
        "train_expert": layout.expert,
        "granularity": "full" if recomputed else None,
        "recompute_method": "uniform" if recomputed else None,
        "recompute_layers": 1 if recomputed else None,
        "rule": None if judge else "accuracy_reward",
        "judge": judge,
        "judged": judge is not None,
        "judge_apart": judging > 0,
        "judge_engine": "vllm" if judge else None,
        "judge_tensor": rollouts.judge_tensor if judge else None,
        "judge_function": JUDGING_FUNCTION if judge and rollouts.judge_len else None,
        "steps": plan.chosen.steps,
    }
