"""Memory by part, a configuration at other depths, the data to fetch: sums, ratios, and what both commands print."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.calibration.profiles import load_profile
from advisor.prediction.batch import predict_batch
from advisor.prediction.depths import at_depths, download, memory_bill
from advisor.records import Adapters, Software, Workload
from advisor.store.store import Store
from tests.terminal import advisor, document
from trainer.schema import make_shape

PARTS = ("weights", "gradients", "gathered", "optimizer", "activations", "logits", "overhead")
GIB = 2**30


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    return load_profile("h100-80gb-sxm", Store(tmp_path_factory.mktemp("home")), family="nanochat", compile=True)


def workload(**changes):
    shape = make_shape("nanochat", depth=changes.pop("depth", 16), vocab_size=65536, seq_len=2048)
    return Workload(shape=shape, micro_batch=8, gpu="h100-80gb-sxm", compile=True, **{"gpus": 2, **changes})


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_part_is_below_nothing_and_all_sum_to_the_total(profile, data):
    """Regressions left -946 KiB of logits in a plan of 48 layers."""
    draw = data.draw
    family = draw(st.sampled_from(["nanochat", "gpt2", "llama"]))
    lora = draw(st.sampled_from([None, Software(state="16bit", adapters=Adapters(rank=8, targets="all"))]))
    gpus = draw(st.sampled_from([1, 2, 8, 64]))
    work = Workload(
        shape=make_shape(
            family,
            depth=draw(st.integers(1, 96)),
            vocab_size=draw(st.sampled_from([512, 32_000, 50_304, 262_144])),
            seq_len=draw(st.sampled_from([128, 1024, 8192])),
        ),
        micro_batch=draw(st.sampled_from([1, 3, 16, 128])),
        grad_accum=draw(st.sampled_from([1, 4])),
        gpu="h100-80gb-sxm",
        gpus=gpus,
        precision=draw(st.sampled_from(["bf16", "fp16", "fp32"])) if lora is None else "bf16",
        compile=draw(st.booleans()),
        activation_checkpointing=draw(st.sampled_from(["none", "selective", "full"])),
        optimizer=draw(st.sampled_from(["adamw", "muon"])) if lora is None else "adamw",
        sharding=draw(st.sampled_from(["none", "full"])) if gpus > 1 else "none",
        software=lora,
    )
    bill = memory_bill(profile, work)
    parts = [getattr(bill, f"{name}_bytes") for name in PARTS]
    assert sum(parts) == pytest.approx(bill.total.value) and min(parts) >= 0


def test_depths_are_held_against_the_configurations_own(profile):
    own = workload()
    options = at_depths(profile, own, (24, 32))
    assert [one.depth for one in options] == [16, 24, 32] and options[0].step_ratio == 1.0
    assert [one.parameters for one in options[:2]] == [335_544_320, 880_803_840]  # nanochat's own counts of both
    deeper = predict_batch(profile, [workload(depth=24)])[0]
    assert options[1].step_seconds == deeper.step_seconds
    assert options[1].step_ratio == pytest.approx(deeper.step_seconds.value / options[0].step_seconds.value)
    assert options[1].tokens == 20 * 880_803_840
    steps = -(-options[1].tokens // own.step_tokens)
    assert options[1].hours.value == pytest.approx(steps * deeper.step_seconds.value / 3600)
    assert options[2].memory.headroom_bytes < options[1].memory.headroom_bytes


def test_tokens_become_characters_shards_gigabytes_and_minutes():
    data = download(9.4e9, 65536, 100e6)
    # 4.8 bytes a token at 65,536 entries; 250 M characters in a shard of 100 MB
    assert data.characters == pytest.approx(9.4e9 * 4.8, rel=0.01)
    assert data.shards == -(-data.characters // 250e6) and data.download_bytes == pytest.approx(data.characters / 2.5)
    assert data.seconds.value == pytest.approx(data.download_bytes / 100e6) and data.seconds.low == data.seconds.high
    assert download(9.4e9, 65536).seconds.low < download(9.4e9, 65536).seconds.high


def test_both_commands_show_them_in_words_and_json():
    shape = ("--depth", "16", "--micro-batch", "8", "--seq-len", "2048", "--vocab-size", "65536")
    asked = (
        "predict",
        "--gpu",
        "h100-80gb-sxm",
        *shape,
        "--depths",
        "20,24",
        "--tokens",
        "9.4B",
        "--download-rate",
        "100MB",
    )
    shown, told = advisor(*asked, expect=0).stdout, document(*asked)
    for words in ("GPU memory at its peak, by part", "optimizer", "At other depths", "compressed shards", "0.1 GB/s"):
        assert words in shown, words
    assert [one["depth"] for one in told["depths"]] == [16, 20, 24] and told["memory_parts"]["weights_bytes"] > GIB
    assert told["data"]["shards"] == download(9.4e9, 65536).shards
    asked = (
        "plan",
        "--gpu",
        "h100-80gb-sxm",
        "--depth",
        "12",
        "--tokens",
        "1B",
        "--depths",
        "16",
        "--download-rate",
        "1GB",
    )
    shown, told = advisor(*asked, expect=0).stdout, document(*asked)
    assert "GPU memory at its peak, by part" in shown and "At other depths" in shown and "at 1 GB/s" in shown
    assert [one["depth"] for one in told["depths"]] == [12, 16]
    assert told["data_to_fetch"]["tokens"] == told["chosen"]["tokens"]
