"""What a setting in a configuration is called by whom: the table from names to the facts of `run_table.FACTS`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from advisor.readers.cells import number_with_unit
from advisor.readers.names import MAX_NAME

# fact → kind, names with the surest first: nanoGPT, nanochat, llm.c, Hugging Face (transformers, TRL, axolotl),
# Megatron, DeepSpeed, torchtitan, litgpt, llm-foundry, Lightning, fairseq
_TABLE: dict[str, tuple[str, str]] = {
    "depth": ("count", "n_layer n_layers num_hidden_layers num_layers depth layers decoder_layers n_blocks "
              "num_decoder_layers transformer_layers num_transformer_layers number_of_layers transformer_blocks"),
    "width": ("count", "n_embd hidden_size d_model n_embed embedding_dim embed_dim model_dim model_dimension emb_dim "
              "decoder_embed_dim dim width embedding_dimension embedding_size hidden_dimension"),
    "heads": ("count", "n_head n_heads num_attention_heads num_heads attention_heads heads decoder_attention_heads "
              "number_of_heads"),
    "kv_heads": ("count", "n_kv_head n_kv_heads num_key_value_heads kv_heads num_kv_heads n_query_groups "
                 "num_query_groups multi_query_group_num"),
    "ffn_width": ("count", "ffn_width intermediate_size ffn_hidden_size ffn_dim d_ff mlp_hidden_size ffn_size n_inner "
                  "decoder_ffn_embed_dim feed_forward_dim intermediate_dim ffn_hidden"),
    "vocab_size": ("count", "vocab_size n_vocab vocabulary_size vocab padded_vocab_size vocabulary"),
    "seq_len": ("count", "seq_len block_size max_seq_length max_seq_len seq_length sequence_length sequence_len "
                "context_length context_size ctx_len train_seq_len cutoff_len max_length n_ctx context_window "
                "model_max_length max_sequence_length context n_positions"),
    "micro_batch": ("count", "per_device_train_batch_size device_batch_size micro_batch_size micro_batch "
                    "train_micro_batch_size_per_gpu per_gpu_train_batch_size local_batch_size "
                    "device_train_microbatch_size microbatch_size train_batch_size_per_gpu batch_size"),
    "grad_accum": ("count", "gradient_accumulation_steps grad_accum_steps accumulate_grad_batches grad_accum "
                   "gradient_accumulation accumulation_steps grad_accumulation grad_accumulation_steps update_freq"),
    "world_size": ("count", "world_size num_gpus n_gpus ngpus num_devices nproc_per_node gpu_count gpus devices"),
    "step_tokens": ("count", "step_tokens tokens_per_step global_batch_tokens batch_tokens tokens_per_batch "
                    "total_batch_size total_batch_size_tokens"),
    "step_samples": ("count", "step_samples global_batch_size effective_batch_size global_train_batch_size "
                     "total_train_batch_size effective_batch"),
    "planned_steps": ("count", "planned_steps max_steps max_iters num_iterations train_iters max_train_steps "
                      "total_steps total_iterations num_training_steps training_steps train_steps num_train_steps "
                      "max_update iterations target_iters iters num_steps max_step max_duration steps"),
    "planned_epochs": ("plain", "planned_epochs num_train_epochs num_epochs max_epochs n_epochs total_epochs "
                       "max_epoch epochs"),
    "learning_rate": ("plain", "learning_rate lr max_lr peak_lr max_learning_rate base_lr base_learning_rate "
                      "peak_learning_rate"),
    "min_learning_rate": ("plain", "min_learning_rate min_lr lr_min end_lr min_lr_rate"),
    "warmup_steps": ("count0", "warmup_steps warmup_iters num_warmup_steps lr_warmup_iters lr_warmup_steps "
                     "warmup_updates warmup_iterations warmup"),
    "schedule": ("word", "schedule_name lr_scheduler_type lr_scheduler lr_schedule lr_decay_style scheduler_type "
                 "schedule scheduler"),
    "grad_clip": ("positive", "grad_clip max_grad_norm gradient_clip_val clip_grad clip_grad_norm gradient_clipping "
                  "gradient_clip clip_norm grad_clip_norm gradient_clip_norm"),
    "weight_decay": ("plain", "weight_decay"),
    "optimizer": ("word", "optimizer_name optim optimizer_type optimizer"),
    "precision": ("precision", "mixed_precision precision dtype amp_dtype torch_dtype compute_dtype training_dtype"),
    "compile": ("flag", "torch_compile compile use_compile"),
    "checkpoint_every_steps": ("count", "checkpoint_every_steps save_steps save_interval save_every checkpoint_every "
                               "checkpoint_interval save_checkpoint_every ckpt_every ckpt_interval save_every_steps"),
    "eval_every_steps": ("count", "eval_every_steps eval_steps eval_interval eval_every val_interval eval_freq "
                         "validation_interval val_loss_every val_check_interval val_every"),
    "parameters": ("count", "parameters num_parameters n_params num_params total_params total_parameters model_params "
                   "param_count number_of_parameters model_size params"),
    "dataset_tokens": ("count", "dataset_tokens train_dataset_tokens num_train_tokens unique_tokens"),
    "gpu": ("text", "gpu gpu_name device_name gpu_type gpus_name accelerator_name gpu_model"),
    "usd_per_hour": ("positive", "usd_per_hour price_per_hour cost_per_hour hourly_rate"),
    "dropout": ("plain", "dropout dropout_rate resid_pdrop dropout_p"),
    "family": ("word", "model_type family model_family"),
    "driver": ("text", "driver_version nvidia_driver gpu_driver_version"),
    "cuda": ("text", "cuda_version"),
    "torch": ("text", "torch_version pytorch_version"),
    "host": ("text", "hostname host_name"),
    "cpu_threads": ("count", "cpu_count cpu_threads"),
    "date": ("text", "date"),
}  # fmt: skip
_RANK = {name: (fact, kind, rank) for fact, (kind, names) in _TABLE.items() for rank, name in enumerate(names.split())}
_PRECISIONS = (("bf16", ("bf16", "bfloat16")), ("fp16", ("fp16", "float16", "half")), ("fp8", ("fp8", "float8")),
               ("fp32", ("fp32", "float32", "32", "no", "full")))  # fmt: skip
_SUFFIXES = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12, "million": 1e6, "billion": 1e9, "thousand": 1e3, "trillion": 1e12}
_MOST_SETTINGS = 20_000
_DEEPEST = 8
# in a model's own config (transformers) these are limits of the model or of generation, not what it was trained at
_MODEL_LIMITS = ("seq_length", "n_positions", "n_ctx", "max_length", "model_max_length", "max_seq_len")
TOKENS_IN_A_STEP = 16_384  # a "total batch size" of so many can only be tokens: no run has so many sequences a step


def facts_of_settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a configuration of any of the known frameworks, nested or flat; settings nobody knows are passed over.

    Where two names of one fact differ, the surer name wins, then the less nested; equals that differ give none.
    """
    found: dict[str, list[tuple[int, int, Any]]] = {}
    flat = dict(_flatten(raw))
    of_model = any(path[-1] in ("architectures", "transformers_version") for path in flat)
    for path, value in flat.items():
        named = name_of(path)
        if named is None or (of_model and path[-1] in _MODEL_LIMITS):
            continue
        fact, kind, rank = named
        read = value_of(kind, value)
        if read is not None:
            found.setdefault(fact, []).append((rank, len(path), read))
    facts = {}
    for fact, values in found.items():
        values.sort(key=lambda one: one[:2])
        best = [value for rank, depth, value in values if (rank, depth) == values[0][:2]]
        if all(value == best[0] for value in best):
            facts[fact] = best[0]
    return _settled(facts, {path[-1]: value for path, value in flat.items()})


def name_of(path: tuple[str, ...]) -> tuple[str, str, int] | None:
    """The fact, its kind and how surely the last words of a setting's path name it."""
    last = plain_name(path[-1])
    if len(path) > 1 and (found := _RANK.get(f"{plain_name(path[-2])}_{last}")):
        return found
    return _RANK.get(last)


def plain_name(name: str) -> str:
    """A name as the table has it: "Embedding dim" → "embedding_dim"."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name[:MAX_NAME]).lower()).strip("_")


def value_of(kind: str, value: Any) -> Any:
    """A setting's value as its fact has it; None where it is not set or is none of that kind."""
    if value is None or isinstance(value, list | tuple | dict):
        return None
    if kind == "flag":
        return value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value).lower())
    if isinstance(value, bool):
        return None
    if kind in ("word", "text"):
        text = str(value).strip()[:80]
        if kind == "word":
            return text.lower() if text[:1].isalpha() else None
        return text if text and not _is_number(text) else None
    if kind == "precision":
        return precision_of(str(value))
    number = _number(value)
    if number is None or (kind in ("count", "positive") and number <= 0) or number < 0:
        return None
    if kind in ("count", "count0"):
        return int(number) if number == int(number) else None
    return number


def precision_of(text: str) -> str | None:
    """bf16, fp16, fp8 or fp32 of what a framework calls it ("bf16-mixed", "torch.float16", "amp_bf16")."""
    lower = text.lower()
    return next((name for name, words in _PRECISIONS if any(word in lower for word in words)), None)


def _number(value: Any) -> float | None:
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1e300 else None  # an integer may be larger than any float
    found = number_with_unit(str(value)[:64])
    if found is None or not math.isfinite(found[0]):
        return None
    return round(found[0] * _SUFFIXES.get(found[1].lower(), 1), 9)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _flatten(raw: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All settings with their paths; W&B's {desc, value} and dotted names count as nesting."""
    if len(path) >= _DEEPEST:
        return
    for number, (key, value) in enumerate(raw.items()):
        if number > _MOST_SETTINGS:
            return
        here = (*path, *(str(key).split(".") if "." in str(key) else (str(key),)))
        if isinstance(value, Mapping):
            if set(value) <= {"desc", "value"} and "value" in value:
                inner = value["value"]
                yield from _flatten(inner, here) if isinstance(inner, Mapping) else ((here, inner),)
            else:
                yield from _flatten(value, here)
        else:
            yield here, value


def _settled(facts: dict[str, Any], flat: Mapping[str, Any]) -> dict[str, Any]:
    """What settings say only together: precision flags, warm-up as a share, strategies that switch a period off."""
    if "precision" not in facts:
        for flag, name in (("bf16", "bf16"), ("fp16", "fp16"), ("fp8", "fp8")):
            if flat.get(flag) is True:
                facts["precision"] = name
    if flat.get("bf16") is False and flat.get("fp16") is False and "torch_dtype" not in flat:
        facts.setdefault("precision", "fp32")
    if "step_tokens" in facts and "tokens_per_step" not in flat and facts["step_tokens"] < TOKENS_IN_A_STEP:
        facts.setdefault("step_samples", facts.pop("step_tokens"))
    ratio = _number(flat.get("warmup_ratio")) if flat.get("warmup_ratio") is not None else None
    if ratio and ratio < 1 and not facts.get("warmup_steps") and facts.get("planned_steps"):
        facts["warmup_steps"] = math.ceil(ratio * facts["planned_steps"])  # transformers rounds up
    if flat.get("save_strategy", "steps") != "steps":
        facts.pop("checkpoint_every_steps", None)
    if (flat.get("eval_strategy") or flat.get("evaluation_strategy") or "steps") != "steps":
        facts.pop("eval_every_steps", None)
    if "schedule" not in facts and isinstance(flat.get("decay_lr"), bool):  # nanoGPT knows only these two
        facts["schedule"] = "cosine" if flat["decay_lr"] else "constant"
    return facts
