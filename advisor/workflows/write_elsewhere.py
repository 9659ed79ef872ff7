"""Writes a plan as a start file for other software, with that software's names (profiles/exports.yaml)."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from advisor.engines.templates import filled
from advisor.errors import AdvisorError
from advisor.laws.hyperparameters import deepseek_rate
from advisor.options import EIGHT_BIT
from advisor.planning.models import NamedModel
from advisor.prediction.wallclock import between_failures, checkpoint_interval_seconds
from advisor.records import Plan
from advisor.store.disk import read_yaml, write_atomic
from advisor.store.folders import profiles_folder
from advisor.workflows.goal import find_any_model
from advisor.workflows.plan_finetune import LENGTH, SEQUENCES, tokens_padded, usual_epochs
from advisor.workflows.write_rl import HUB, JUDGING_FUNCTION, OUT, machines, rl_fields, rl_form, shared_fields

# Learning rates by stage and whether adapters are trained. They are from the examples of TRL and unsloth; for DPO, they
# and the weight of the reference are from the alignment handbook's Zephyr (Tunstall et al. 2023).
_RATES = {("sft", True): 2e-4, ("sft", False): 2e-5, ("dpo", True): 5e-6, ("dpo", False): 5e-7}
_BETA = 0.1
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_TORCHTITAN = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}
_SAME = {"nemo": "megatron"}  # software that takes the arguments of another
_WEIGHTS = "WEIGHTS"  # stands for the folder of published weights, converted for the software
_STALL_SECONDS = 5.0  # of one asynchronous checkpoint of a large run; sets only the interval


@dataclass(frozen=True, kw_only=True)
class Written:
    """The file that was written, the command that starts it, and what the user must fill in."""

    path: Path
    software: str
    command: str
    to_fill_in: tuple[str, ...]
    missing: str  # what the file does not say of the model; "" if nothing is known to be
    install: str  # the command that installs the software; "" if it has none
    data: str  # what stands in place of DATA, in words; "" if unknown

    @property
    def steps(self) -> str:
        """The steps from the file to the run, in words."""
        blanks = " and ".join(self.to_fill_in)
        steps = [f"install {self.software}" + (f" (`{self.install}`)" if self.install else "")]
        steps += (
            [
                f"put your {'data' if len(self.to_fill_in) == 1 else 'own'} in place of {blanks}"
                + (f" ({self.data})" if self.data else "")
            ]
            if blanks
            else []
        )
        return "; ".join(f"{number}. {step}" for number, step in enumerate([*steps, f"run `{self.command}`"], 1))


def write_elsewhere(plan: Plan, path: Path) -> Written:
    """Write the plan's run for its software. Raises AdvisorError if the format of its start file is unknown."""
    assert plan.goal.model is not None  # other software trains published models
    rollouts, kind, able = plan.workload.rollouts, _kind(plan), _formats(plan)
    architecture = find_any_model(plan.goal.model)
    name = next((one for one in able if _exports()[one]["suffix"] == path.suffix), able[0])
    row = _exports()[name]
    if rollouts is not None:
        row = rl_form(row, plan, rollouts)
    if path.suffix != row["suffix"]:
        hint = f"--out {path.with_suffix(row['suffix'])}"
        raise AdvisorError(f"--out {path}: {name} starts from a {row['suffix']} file", hint, exit_code=2)
    method = plan.goal.finetune
    for needed, writes, what in (
        (plan.goal.stage == "dpo", lambda one: method in one.get("dpo", ()),
         f"of DPO with --finetune {method}"),
        (plan.goal.optimizer == EIGHT_BIT, lambda one: one.get("eight_bit"), f"with --optimizer {EIGHT_BIT}"),
        (kind == "finetune" and architecture.model.experts is not None, lambda one: one.get("mixtures"),
         "for a mixture of experts"),
    ):  # fmt: skip
        if needed and not writes(row):
            able = [key for key, one in _exports().items() if writes(one)]
            hint = f"name software of which it is: --software {' or '.join(able)}"
            raise AdvisorError(f"no file {what} is written for {name} from here", hint, exit_code=2)
    made = {"finetune": finetune_fields, "layouts": layout_fields, "rl": rl_fields}
    fields = made[kind](plan, architecture)
    fields |= {"file": shlex.quote(path.name), "module": path.stem}
    fields["sharded"] = row.get("sharded", {}).get(fields.get("sharding"))
    if fields.get("sharding") in ("optimizer", "full"):
        row = row | {"install": row.get("install_sharded", row.get("install", ""))}
    if "models" in row:
        model = architecture.name
        if model not in row["models"]:
            hint = f"it has {', '.join(row['models'])}"
            raise AdvisorError(f"{name} has no {model} in its own registry", hint, exit_code=2)
        fields["registry"], _, fields["function"] = row["models"][model].partition(".")
    source = str(fields.get("hub") or fields.get("model"))
    if "://" in source and "of_models" not in row and "models" not in row:
        message = f"{name} loads a model from the Hugging Face Hub, and this one is from {source}"
        raise AdvisorError(message, "name it as the Hub does: --model OWNER/NAME", exit_code=2)
    missing = ""
    if kind == "layouts" and "of_models" in row:  # software that is given sizes, not the model's own files
        missing = _missing(architecture)
        row = row | {"values": row["values"] | row["of_models"].get(architecture.name, {})}
    text, command = _text(row, fields, missing)
    write_atomic(path, text)
    blanks = tuple(word for word in ("DATA.jsonl", "DATA") if word in text)[:1]
    blanks += tuple(word for word in (_WEIGHTS, JUDGING_FUNCTION) if word in text)
    return Written(
        path=path, software=name.removesuffix("-rl"), command=command, to_fill_in=blanks, missing=missing,
        install=row.get("install", ""), data=row.get("data", {}).get(plan.goal.stage or "sft", "")
        or row.get("loads_weights", "") * (_WEIGHTS in text),
    )  # fmt: skip


def start_suffix(plan: Plan) -> str:
    """Return the suffix of the plan's start file. Raises AdvisorError if the format of its start file is unknown."""
    return str(_exports()[_formats(plan)[0]]["suffix"])


def _kind(plan: Plan) -> str:
    if plan.workload.rollouts is not None:
        return "rl"
    return "finetune" if plan.workload.layout is None else "layouts"


def _formats(plan: Plan) -> list[str]:
    """Return the rows of exports.yaml that can say the plan's software, the requested one first."""
    kind = _kind(plan)
    tuned = kind == "layouts" and plan.goal.finetune is not None
    requested = plan.goal.software or ("trl" if kind == "finetune" else "nemo")
    if kind == "rl":
        requested = f"{requested}-rl"
    known = [key for key, row in _exports().items() if row["for"] == kind and (not tuned or row.get("loads_weights"))]
    able = [name for name in (requested, _SAME.get(requested)) if name in known]
    if not able:
        message = f"no file is written for {requested} from here"
        named = " or ".join(key.removesuffix("-rl") for key in known)
        raise AdvisorError(message.replace("-rl", ""), f"name software of which it is: --software {named}", exit_code=2)
    return able


def _missing(architecture: NamedModel) -> str:
    """Returns what options for sizes, positions and norms do not say of a model, or "" if they say all of it."""
    name, details = architecture.name, architecture.details
    if details.open:
        return f"{name} has {details.open}: this file does not make that model"
    if details.qk_norm is not None and (details.rope_base is not None or not architecture.model.gated):
        return ""
    base = "" if details.rope_base is None else "other than the base of its positions "
    return (
        f"what {name} has beyond its sizes {base}is not known here, so Megatron-LM's defaults are used: check "
        "--rotary-base, --qk-layernorm, --add-qkv-bias, --norm-epsilon and the router against its config.json"
    )


def _text(row: Mapping[str, Any], fields: Mapping[str, Any], missing: str = "") -> tuple[str, str]:
    """Returns the file and the command for one software package, without the values that the plan lacks."""
    values = filled(row.get("values", {}), fields, lambda value: value is None or value is False)
    if row["format"] == "options":
        begin = row["begin"].format(**fields)
        if fields.get("gpus", 1) > 1 and "several" in row:
            begin += " " + row["several"].format(**fields)
        bare, hydra = row.get("switches") == "bare", row.get("switches") == "overrides"
        words = [begin, *(_option(name, value, bare, hydra) for name, value in values.items())]
        remark = (f"# {missing}\n" if missing else "") + row.get("before", "").format(**fields)
        return f"#!/bin/bash\n{remark}" + " \\\n  ".join(words) + "\n", f"bash {fields['file']}"
    several = fields.get("gpus", 1) > 1 and "start_on_several" in row
    command = row["start_on_several" if several else "start"].format(**fields)
    if fields["sharded"] is not None and "before_sharded" in row:
        command = f"{row['before_sharded']} && {command}"
    if row["format"] == "python":
        return row["text"].format(**fields), command
    return yaml.safe_dump(values, sort_keys=False), command


def _option(name: str, value: Any, bare: bool, hydra: bool) -> str:
    """Returns an option for a command line, or as Hydra takes it; with `bare`, a true option has no value."""
    if bare and value is True:
        return f"--{name}"
    if name == "lora_target_modules":
        return f"--{name} {value}"  # several words
    text = shlex.quote(str(value).lower() if isinstance(value, bool) else str(value))
    return f"{name}={text}" if hydra else f"--{name} {text}"


def finetune_fields(plan: Plan, architecture: NamedModel) -> dict[str, Any]:
    """Returns the fields of a fine-tune's files, by the names of profiles/exports.yaml."""
    goal, run = plan.goal, plan.chosen
    work = run.prediction.workload
    adapted, quantized = goal.finetune != "full", goal.finetune == "qlora"
    shared = shared_fields(plan, architecture, adapted)
    recomputed = shared["recomputed"]
    mixture = architecture.model.experts is not None  # its adapters are only in attention
    eight_bit = goal.optimizer == EIGHT_BIT
    epochs, pairs = float(goal.epochs or usual_epochs(goal)), goal.stage == "dpo"
    stage = goal.stage or "sft"
    micro_batch = work.micro_batch // SEQUENCES[stage]  # in examples or pairs
    dtype = {"bf16": "bfloat16", "fp16": "float16"}[work.precision]
    return shared | {
        "adapter": goal.finetune if adapted else None,
        "method": "lora" if adapted else "full",
        "full": not adapted,
        "quantized": quantized,
        "four_bits": 4 if quantized else None,
        "dropout": 0.0 if adapted else None,
        "target_all": (",".join(_ATTENTION) if mixture else "all") if adapted else None,
        "target_linear": (" ".join(_ATTENTION) if mixture else "all-linear") if adapted else None,
        "target_each": list(_ATTENTION) if adapted and mixture else None,
        "adapted_all": adapted and not mixture,
        "seq_len": goal.seq_len or goal.length or LENGTH,
        "micro_batch": micro_batch,
        "grad_accum": work.grad_accum,
        "epochs": epochs,
        "learning_rate": _RATES[stage, adapted],
        "optimizer": "adamw_bnb_8bit" if eight_bit else "adamw_torch_fused",
        "stage": stage,
        "pairs": pairs,
        "packed": not pairs,
        "rl": "dpo" if pairs else None,
        "chat_type": "chat_template.default" if pairs else "chat_template",
        "beta": _BETA if pairs else None,
        "not_recomputed": not recomputed,
        "unsloth_checkpointing": '"unsloth"' if recomputed else "False",
        "dtype": dtype,
        "quant_storage": dtype if quantized and work.sharding == "full" else None,  # weights that can be sharded
        "step_sequences": micro_batch * work.grad_accum * run.offer.gpus,
        "whole_epochs": math.ceil(epochs),
        "steps": None if epochs.is_integer() else math.ceil(tokens_padded(plan) / work.step_tokens),
    }


def layout_fields(plan: Plan, architecture: NamedModel) -> dict[str, Any]:
    """Returns the fields of the files for a plan over layouts, by the names of profiles/exports.yaml."""
    work, cut, model = plan.workload, plan.workload.layout, architecture.model
    assert cut is not None
    seq_len, recompute = work.shape.seq_len, work.activation_checkpointing
    experts, latent, details = model.experts, architecture.latent, architecture.details
    steps = math.ceil(plan.chosen.tokens / work.step_tokens)
    full, recomputed = cut.sharding == "full", recompute != "none"
    piece = -(-model.layers // (cut.pipeline * cut.virtual))
    tuned = plan.goal.finetune is not None
    rate = deepseek_rate(plan.prediction.flops_per_token, plan.chosen.tokens)  # compute as `scale_flops` counts it
    rate = _RATES[plan.goal.stage or "sft", False] if tuned else rate
    every = checkpoint_interval_seconds(_STALL_SECONDS, between_failures(cut.gpus).value)
    dense = model.layers - model.expert_layers
    mixed = [0] * dense + [1] * model.expert_layers
    uneven = _uneven(model.layers, cut.pipeline, cut.virtual)
    pieces = {} if latent is None else dict(zip(("queries", "keys", "rotary", "plain", "values"), latent, strict=True))
    found = {
        "hub": architecture.source.removeprefix(HUB),
        "tuned": tuned,
        "weights": _WEIGHTS if tuned else None,
        **machines(cut.gpus),
        **{name: getattr(model, name) for name in ("layers", "width", "heads", "gated")},
        **{name: getattr(cut, name) for name in ("tensor", "sequence", "pipeline", "context", "gpus")},
        "ffn_width": model.ffn_width or (experts.width if experts else None),
        "grouped": latent is None and model.kv_heads < model.heads,
        "groups": model.kv_heads if latent is None and model.kv_heads < model.heads else None,
        "head_dim": None if latent is not None else model.head_dim,
        "latent": latent is not None,
        **{f"latent_{name}": pieces.get(name) or None for name in ("queries", "keys", "rotary", "plain", "values")},
        "normalization": "RMSNorm" if model.gated else "LayerNorm",
        "positions": "rope" if model.gated else "learned_absolute",
        "rope_base": int(details.rope_base) if details.rope_base and model.gated else None,
        "qk_norm": details.qk_norm or latent is not None,  # of latent attention the compressed ones are normalised
        "qkv_bias": details.qkv_bias,
        "untied": not model.tied,
        "mixture": experts is not None,
        **dict.fromkeys(("experts", "per_token", "expert_width", "shared_width", "expert_pattern", "dispatcher")),
        "vocab": model.vocab_size,
        "seq_len": seq_len,
        "micro_batch": work.micro_batch,
        "micro_tokens": work.micro_tokens,
        "sequences": work.step_tokens // seq_len,
        "step_tokens": work.step_tokens,
        "steps": steps,
        "even_virtual": cut.virtual if cut.virtual > 1 and not uneven else None,
        "uneven_layout": uneven,
        "layers_per_stage": piece if cut.pipeline > 1 else None,
        "pipeline_micro_batches": work.grad_accum if cut.pipeline > 1 else 1,
        "schedule": "Interleaved1F1B" if cut.virtual > 1 else "1F1B",
        **dict.fromkeys(("expert", "expert_tensor")),
        "expert_degree": cut.expert,
        "optimizer_sharded": not full and cut.sharding != "none",
        "fully_sharded": full,
        "sharding_strategy": "optim_grads_params" if full else None,
        "shard": cut.data if cut.sharding != "none" else 1,
        "replicate": 1 if cut.sharding != "none" else cut.data,
        "checkpointing": _TORCHTITAN[recompute],
        "recompute_granularity": "full" if recomputed else None,
        # uniform: every layer by itself; block: this many layers of each stage, and the others keep all activations
        "recompute_method": {"selective": "block", "full": "uniform"}.get(recompute),
        "recompute_layers": {"selective": -(-piece // 2), "full": 1}.get(recompute),
        "learning_rate": float(f"{rate:.2g}"),
        "least_rate": float(f"{rate / 10:.2g}"),
        "any_sharding": cut.sharding != "none",
        "save_every": max(1, round(float(every) / plan.chosen.step_seconds.value)),
        "out": OUT,
    }
    if experts is not None:
        found |= {
            "experts": experts.count, "per_token": experts.per_token, "expert_width": experts.width,
            "shared_width": experts.shared * experts.width or None, "dispatcher": "alltoall", "expert": cut.expert,
            "expert_tensor": cut.expert_tensor, "expert_pattern": str(mixed).replace(" ", "") if dense else None,
        }  # fmt: skip
    quoted = ("uneven_layout", "recompute_granularity", "recompute_method")
    return found | {f"quoted_{name}": repr(found[name]) for name in quoted}


def _uneven(layers: int, pipeline: int, virtual: int) -> str | None:
    """Returns Megatron's text for stages of unequal numbers of layers, fewer at both ends; None if all are equal."""
    stages = pipeline * virtual
    if layers % stages == 0:
        return None
    most = -(-layers // stages)
    counts, spare = [most] * stages, most * stages - layers
    for at in range(spare):  # alternate between the last stages and the first ones, moving inward
        counts[-1 - at // 2 if at % 2 == 0 else at // 2] -= 1
    pieces = ["t" * count for count in counts]
    return "|".join(["E" + pieces[0], *pieces[1:-1], pieces[-1] + "L"])


@cache
def _exports() -> dict[str, Any]:
    return read_yaml(profiles_folder() / "exports.yaml", "table of exports")
