"""A decoder known by its weights, and the house's law as the fit of its step time."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from advisor.adopt.decoder import Weights, decoder_of
from advisor.adopt.fit import Batch, Seen, choose_fit, fit_law, fit_time, hold_each_out, seen_times, workload
from advisor.adopt.plan import batch_options
from advisor.laws import flops
from advisor.records import Basis
from advisor.report.adoption import adoption_lines
from advisor.store.adopted import Adopted, Knob, Recipe, Setting
from advisor.workflows.adopt import configured_model
from tests.engines.adopted_runs import adopted_of, burst_of
from trainer.schema import ModelShape


def llama(depth: int, width: int, ffn: int, vocab: int, keys: int, prefix: str = "model.") -> list[Weights]:
    """As Hugging Face's LlamaForCausalLM names its weights, with an untied head."""
    block = f"{prefix}layers.#."
    two = {
        "self_attn.q_proj": (width, width), "self_attn.k_proj": (keys, width), "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, width), "mlp.gate_proj": (ffn, width), "mlp.up_proj": (ffn, width),
        "mlp.down_proj": (width, ffn),
    }  # fmt: skip
    norms = [Weights(name=f"{block}{n}.weight", shape=(width,), count=depth) for n in ("input_layernorm", "post")]
    return [
        Weights(name=f"{prefix}embed_tokens.weight", shape=(vocab, width)),
        *(Weights(name=f"{block}{name}.weight", shape=shape, count=depth) for name, shape in two.items()),
        *norms,
        Weights(name=f"{prefix}norm.weight", shape=(width,)),
        Weights(name="lm_head.weight", shape=(vocab, width)),
    ]


def gpt2() -> list[Weights]:
    """GPT-2 small as nanoGPT names its weights; the head is tied, so that it is not a weight of its own."""
    names = {"attn.c_attn": (2304, 768), "attn.c_proj": (768, 768), "mlp.c_fc": (3072, 768), "mlp.c_proj": (768, 3072)}
    biases = [Weights(name=f"transformer.h.#.{n}.bias", shape=(s[0],), count=12) for n, s in names.items()]
    norms = [Weights(name=f"transformer.h.#.{n}", shape=(768,), count=12) for n in ("a", "b", "c", "d")]
    return [
        Weights(name="transformer.wte.weight", shape=(50257, 768)),
        Weights(name="transformer.wpe.weight", shape=(1024, 768)),
        *(Weights(name=f"transformer.h.#.{n}.weight", shape=s, count=12) for n, s in names.items()),
        *biases,
        *norms,
        Weights(name="transformer.ln_f.weight", shape=(768,)),
        Weights(name="transformer.ln_f.bias", shape=(768,)),
    ]


@pytest.mark.parametrize(
    ("weights", "trained", "family", "sizes"),
    [
        # parameters as published: LLaMA-7B 6.738e9, Llama 3 8B 8.030e9, GPT-2 small 124,439,808
        (llama(32, 4096, 11008, 32000, 4096), 6_738_415_616, "llama", (32, 4096, 11008, 32000, 4096)),
        (llama(32, 4096, 14336, 128256, 1024, "module.model."), 8_030_261_248, "llama",
         (32, 4096, 14336, 128256, 1024)),
        (gpt2(), 124_439_808, "gpt2", (12, 768, 3072, 50257, 768)),
    ],
)  # fmt: skip
def test_published_models_are_known_by_their_weights(weights, trained, family, sizes):
    assert sum(each.elements * each.count for each in weights) == trained
    found = decoder_of(weights, trained, 1024)
    keys = found.kv_heads * found.width // found.heads
    assert (found.family, (found.depth, found.width, found.ffn_width, found.vocab_size, keys)) == (family, sizes)
    assert found.seq_len == 1024 and flops.parameters(found) == pytest.approx(trained, rel=0.01)


SMALL = llama(4, 256, 688, 512, 256)
TRAINED = sum(each.elements * each.count for each in SMALL)


def swapped(part: str, **changes) -> list[Weights]:
    return [replace(each, **changes) if part in each.name else each for each in SMALL]


@pytest.mark.parametrize(
    ("weights", "trained"),
    [
        (SMALL, TRAINED // 20),  # adapters alone are trained
        (SMALL, TRAINED * 3),  # it is a part of what is trained
        (swapped("up_proj", name="model.layers.#.mlp.experts.#.w1"), TRAINED),
        (swapped("gate_proj", count=2), TRAINED),  # blocks that are not alike
        (swapped("gate_proj", shape=(688, 128)), TRAINED),
        ([each for each in SMALL if len(each.shape) == 1], TRAINED),  # sharded into flat pieces
        ([each for each in SMALL if "#" not in each.name], TRAINED),  # no blocks
        ([each for each in SMALL if "self_attn" not in each.name], TRAINED),
        ([], TRAINED),
    ],
)
def test_what_is_no_plain_decoder_is_left_unknown(weights, trained):
    assert decoder_of(weights, trained, 128) is None


def test_gate_and_up_in_one_matrix_are_told_from_two_matrices():
    fused = [each for each in swapped("gate_proj", shape=(2 * 688, 256)) if "up_proj" not in each.name]
    assert decoder_of(fused, TRAINED, 128) == decoder_of(SMALL, TRAINED, 128)


MODEL = decoder_of(SMALL, TRAINED, 128)
TRIED = ((4, 2, 128), (8, 2, 128), (4, 4, 128), (4, 2, 64), (2, 2, 128), (8, 2, 64), (16, 2, 128))
GRID = [Batch(rows=rows, calls=calls, length=length) for rows, calls, length in TRIED]


def seconds_of(batch: Batch) -> float:
    """A machine of 50 GFLOP/s: six FLOPs a token and weight, twelve a token, layer, lane and token that it sees."""
    tokens = batch.calls * batch.rows * batch.length
    weights = 4 * (4 * 256 * 256 + 3 * 256 * 688) + 512 * 256
    return 0.004 + tokens * (6 * weights + 12 * 4 * 256 * batch.length) / 5e10


def test_the_law_goes_beyond_the_lengths_that_were_measured():
    rng = random.Random(3)
    seen = [Seen(batch=b, value=seconds_of(b) * rng.gauss(1, 0.02)) for b in (*GRID, GRID[0])]
    law = fit_law(MODEL, seen)
    far = Batch(rows=4, calls=2, length=256)
    found = law.estimate(far)
    assert found.value == pytest.approx(seconds_of(far), rel=0.06) and found.contains(seconds_of(far))
    assert found.basis is Basis.EXTRAPOLATED and law.estimate(GRID[0]).basis is Basis.MEASURED
    assert law.estimate(Batch(rows=6, calls=2, length=128)).basis is Basis.INTERPOLATED
    with pytest.raises(ValueError, match="no burst"):
        fit_law(MODEL, [])


def test_rows_that_are_laid_end_to_end_are_one_long_row():
    packed = workload(MODEL, Batch(rows=4, calls=2, length=128, end_to_end=True))
    assert (packed.micro_batch, packed.shape.seq_len, packed.grad_accum) == (1, 512, 2)
    apart = workload(MODEL, Batch(rows=4, calls=2, length=128))
    assert (apart.micro_batch, apart.shape.seq_len) == (4, 128)


def adopted(model: ModelShape | None, seconds=seconds_of, processes: int = 1) -> Adopted:
    recipe = Recipe(name="toy", knobs=(Knob(name="micro_batch", key="--b", value=4),))
    bursts = [burst_of(b.rows, round(b.calls), b.length, seconds(b), processes,
                       **({} if b == GRID[0] else {"micro_batch": b.rows})) for b in GRID]  # fmt: skip
    known = (replace(burst, model=model, elements=TRAINED) for burst in bursts)
    return adopted_of(recipe, *known, works=("micro_batch",), gpus=processes)


def test_the_law_is_taken_where_it_predicts_the_bursts_no_worse():
    subject = adopted(MODEL)
    chosen, terms = choose_fit(subject), hold_each_out(seen_times(subject.bursts), fit_time)
    assert chosen.by_law and chosen.held_out.median <= terms.median
    [own] = batch_options(subject)
    assert own.step_seconds.value == pytest.approx(seconds_of(GRID[0]), rel=0.03)
    said = "\n".join(adoption_lines(subject))
    assert "a decoder of 4 blocks, 256 wide" in said and "fitted by the law for decoders" in said


def test_it_is_not_taken_of_another_model_of_several_processes_or_where_it_is_worse():
    assert not choose_fit(adopted(None)).by_law
    assert not choose_fit(adopted(MODEL, processes=2)).by_law
    one = adopted(MODEL)
    two = replace(one.bursts[0], processes=2, values=(Setting(name="gpus", value=2),), step_seconds=(0.3,) * 8)
    both = replace(one, bursts=(*one.bursts, two))
    assert choose_fit(both).by_law and choose_fit(both).held_out == choose_fit(one).held_out  # of one process

    def by_rows(batch: Batch) -> float:
        """A program that waits for its rows, whatever their length."""
        return 0.01 + batch.calls * (0.5 + 0.05 * batch.rows * batch.length)

    waiting = adopted(MODEL, by_rows)
    chosen, terms = choose_fit(waiting), hold_each_out(seen_times(waiting.bursts), fit_time)
    assert chosen.held_out.median <= terms.median + 1e-12  # whichever it is, never the worse


CONFIG = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
          "intermediate_size": 688, "vocab_size": 512}  # fmt: skip


def test_a_configuration_that_the_command_names_says_what_was_not_seen(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    seen = replace(adopted(None).bursts[0], elements=None, source="log")
    for words in (("--model", str(tmp_path / "model")), (f"--model={tmp_path}/model/config.json",)):
        found = configured_model(("python", "t.py", "--json", '{"a": "' + "x" * 400 + '"}', *words), seen)
        assert (found.depth, found.width, found.ffn_width, found.vocab_size) == (4, 256, 688, 512)
    command = ("python", "t.py", str(tmp_path / "model"))
    # 4 blocks of 4 x 256^2 + 3 x 256 x 688 and two norms, twice 512 x 256, and a norm at the end
    assert configured_model(command, replace(seen, elements=3_426_560)) is not None
    assert configured_model(command, replace(seen, elements=50_000)) is None  # adapters
    assert configured_model(("python", "t.py", str(tmp_path)), seen) is None
    (tmp_path / "model" / "config.json").write_text("{torn")
    assert configured_model(command, seen) is None
    assert configured_model(command, replace(seen, shape=None)) is None
