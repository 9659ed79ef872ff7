"""Predicts published runs with other tools: constant MFU, a roofline, and two packages if they are installed.

llm-analysis 0.2.2 and sysplug 0.1.0 are called through their public functions, with the GPU's facts from the catalog
and otherwise their own defaults. The `baselines` group of pyproject.toml has both; use a separate environment, because
llm-analysis needs an old transformers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from advisor.hardware.catalog import GpuSpec
from advisor.laws import flops
from advisor.prediction.prior import datasheet_rates
from advisor.prediction.throughput import TERMS, sizes, terms
from advisor.records import Workload

Predictor = Callable[[Workload, GpuSpec], float | None]
NOT_INSTALLED = "not installed: `pip install '.[baselines]'` in an environment of its own"
MFU = 0.40


def constant_mfu(w: Workload, spec: GpuSpec) -> float:
    """Return tokens per second and GPU at 40 % of the dense peak, with only model FLOPs, as MFU is defined."""
    return MFU * datasheet_rates(spec, w.precision).matmul_flops / flops.flops_per_token(w.shape)


def roofline(w: Workload, spec: GpuSpec) -> float:
    """Return tokens per second and GPU if a step took the longer of FLOPs at peak and bytes at full bandwidth."""
    seconds = dict(zip(TERMS, terms(sizes([w]), datasheet_rates(spec, w.precision))[0], strict=True))
    compute = seconds["matmul"] + seconds["attention"]
    memory = sum(seconds[name] for name in ("traffic", "logits", "weights", "optimizer"))
    return w.step_tokens / w.gpus / max(compute, memory)


def llm_analysis() -> tuple[Predictor, Predictor] | None:
    """Return llm-analysis's tokens per second and GPU, and bytes per GPU; None if it is not installed.

    It uses its own advice for training, half of the peak FLOP/s, in place of its default of the full peak.
    """
    if find_spec("llm_analysis") is None:
        return None
    logging.disable(logging.WARNING)  # it reports every configuration at length

    def answer(w: Workload, spec: GpuSpec) -> dict | None:
        try:
            return _llm_analysis_summary(w, spec)
        except AssertionError:  # raised for a configuration that it expects not to fit
            return None

    def rate(w: Workload, spec: GpuSpec) -> float | None:
        found = answer(w, spec)
        return w.step_tokens / w.gpus / found["latency_per_iter"] if found else None

    def memory(w: Workload, spec: GpuSpec) -> float | None:
        found = answer(w, spec)
        return found["(weight+op_state+grad+act)_memory_per_gpu"] if found else None

    return rate, memory


def _llm_analysis_summary(w: Workload, spec: GpuSpec) -> dict | None:
    """Return its summary of a training step; None if it cannot express it. Raises AssertionError if it sees no room."""
    from llm_analysis import analysis, config

    s = w.shape
    if w.optimizer != "adamw" or w.precision == "fp32":
        return None
    model = config.ModelConfig(
        name="row",
        num_layers=s.depth,
        n_head=s.heads,
        hidden_dim=s.width,
        vocab_size=s.vocab_size,
        max_seq_len=s.seq_len,
        num_key_value_heads=s.kv_heads,
        ffn_embed_dim=s.ffn_width,
        expansion_ratio=s.ffn_width / s.width,
    )
    card = config.GPUConfig(
        name=spec.key,
        mem_per_GPU_in_GB=spec.memory_gb,
        hbm_bandwidth_in_GB_per_sec=spec.memory_bytes_per_second / 1e9,
        intra_node_bandwidth_in_GB_per_sec=300,
        intra_node_min_message_latency=8e-6,
        peak_fp16_TFLOPS=datasheet_rates(spec, w.precision).matmul_flops / 1e12,
    )
    zero = {"none": "NONE", "optimizer": "STAGE_1", "full": "STAGE_3"}[w.sharding]
    kind = {"none": "NONE", "selective": "SELECTIVE", "full": "FULL"}[w.activation_checkpointing]
    return analysis.LLMAnalysis(
        model,
        card,
        parallelism_config=config.ParallelismConfig(dp_size=w.gpus),
        flops_efficiency=0.5,
    ).training(
        batch_size_per_gpu=w.micro_batch,
        gradient_accumulation_steps=w.grad_accum,
        seq_len=s.seq_len,
        total_num_tokens=w.step_tokens,
        activation_recomputation=analysis.ActivationRecomputation[kind],
        ds_zero=analysis.DSZeRO[zero],
        mlp_gated_linear_units=s.family == "llama",
    )


def sysplug() -> tuple[Predictor, Predictor] | None:
    """Return sysplug's tokens per second and GPU, and bytes per GPU; None if it is not installed."""
    if find_spec("sysplug") is None:
        return None
    from sysplug import MemoryModel, ThroughputModel

    def rate(w: Workload, spec: GpuSpec) -> float | None:
        model = ThroughputModel(_sysplug_name(spec), bandwidth_gbps=spec.memory_bytes_per_second / 1e9)
        found = model.predict(
            w.micro_batch * w.grad_accum,
            flops.parameters(w.shape),
            w.precision,
            sequence_length=w.shape.seq_len,
            hidden_size=w.shape.width,
            num_layers=w.shape.depth,
        )
        return found.tokens_per_sec

    def memory(w: Workload, spec: GpuSpec) -> float | None:
        kind = {"none": "ddp", "optimizer": "zero1", "full": "zero3"}[w.sharding] if w.gpus > 1 else "none"
        found = MemoryModel(gpu_count=w.gpus).predict(
            flops.parameters(w.shape),
            w.micro_batch,
            w.precision,
            parallelism=kind,
            use_gradient_checkpointing=w.activation_checkpointing != "none",
            sequence_length=w.shape.seq_len,
            hidden_dim=w.shape.width,
            num_layers=w.shape.depth,
            num_heads=w.shape.heads,
        )
        return found.peak_memory_mb * 2**20

    return rate, memory


def expressed(predictor: Predictor, rows: Sequence[tuple[Workload, GpuSpec]]) -> list[float | None]:
    """Return the predictor's answers, None for each row that it cannot express."""
    return [predictor(w, spec) for w, spec in rows]


def _sysplug_name(spec: GpuSpec) -> str:
    """Return sysplug's name of a GPU, which is only the chip's name."""
    chip = spec.key.split("-")
    return f"RTX {chip[1]}" if chip[0] == "rtx" else chip[0].upper()
