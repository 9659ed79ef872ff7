"""The words of one prediction."""

from __future__ import annotations

from dataclasses import replace

from advisor.hardware.catalog import require_gpu
from advisor.prediction.batch import predict_batch
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Prediction, Workload
from advisor.report import prediction as words
from tests.advisor.devices import small_cpu
from trainer.schema import make_shape


def predicted() -> Prediction:
    shape = make_shape("nanochat", depth=12, vocab_size=32768, seq_len=1024)
    workload = Workload(shape=shape, micro_batch=8, gpu="l4", precision="bf16", compile=True)
    return predict_batch(prior_profile(require_gpu("l4")), [workload])[0]


def test_what_is_not_predicted_says_why():
    unjoined = replace(
        predicted(), step_seconds=None, tokens_per_second=None, mfu=None, fits=None, fit_probability=None
    )
    unjoined = replace(unjoined, device_memory_bytes=None, workload=replace(unjoined.workload, gpus=3))
    why = "the link between 3 GPUs of type l4 is not in the catalog"
    assert words.time_unknown(unjoined) == f"time is unknown: {why}" and words.time_unknown(predicted()) is None
    assert ("step time", "unknown", "-") in words.quantities(unjoined).rows
    assert words.verdict(unjoined) == "how much memory the GPU has is unknown"


def test_memory_is_called_as_in_a_plan():
    assert {"peak memory, reserved", "peak memory, allocated"} < {row[0] for row in words.quantities(predicted()).rows}
    cpu = small_cpu()
    shape = make_shape("nanochat", depth=2, vocab_size=256, seq_len=128)
    workload = Workload(shape=shape, micro_batch=4, gpu="cpu", precision="fp32", compile=False)
    names = {row[0] for row in words.quantities(predict_batch(cpu, [workload])[0]).rows}
    assert "process memory" in names and "peak memory, reserved" not in names
    assert words.heading(predicted()) == (
        "nanochat of depth 12, width 768, 135 M parameters: micro-batches of 8 x 1024 tokens on 1 x l4 (bf16, "
        "compiled), by this project's trainer"
    )


def test_the_verdict_says_how_sure_it_is():
    sure, open_ = predicted(), replace(predicted(), fits=None, fit_probability=0.62)
    assert words.verdict(sure).startswith("fits in 22") and "99 %" in words.verdict(sure)
    assert words.verdict(open_).startswith("may not fit") and "62 %" in words.verdict(open_)
    assert words.verdict(replace(sure, fits=False, fit_probability=0.03)).startswith("does NOT fit")
