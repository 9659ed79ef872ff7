"""`python -m trainer.huggingface RUN --out DIR` writes a run's newest checkpoint for Hugging Face's transformers.

Each family has an architecture in that library that computes the same function. Names change, and rows move if the
layouts differ. JSON lines on stdout report `{"kind": "model", …}` and `{"kind": "written", "files": …}`, a `{"kind":
"message", …}` for what is left out, and for a failure `{"kind": "error", "text": …, "hint": …}`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from trainer.corpus import PrepareError
from trainer.model import ROTARY_BASE, Transformer
from trainer.publish import published, write_durably
from trainer.schema import ConfigError, ModelShape
from trainer.token_folder import SENTENCEPIECE_FILE, TOKENIZER_FILE, read_meta
from trainer.tokenizer import JsonTokenizer, TextTokenizer
from trainer.trained import NothingTrainedError, Trained, load_tokenizer, load_trained

MODEL_FILE, CONFIG_FILE, GENERATION_FILE = "model.safetensors", "config.json", "generation_config.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
# conversations in the form that `conversations.render` writes
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)

# Our names → theirs. A block's names follow `blocks.N.`. Names missing here are handled below.
_LLAMA_BLOCK = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
_LLAMA = {"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}
_GPT2 = {"embedding": "transformer.wte", "positions": "transformer.wpe", "final_norm": "transformer.ln_f"}
_GPT2_BLOCK = {
    "attention_norm": "ln_1",
    "attention.output": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """An architecture's names for its tensors; `{}` is the number of the block."""

    block: str
    names: Mapping[str, str]
    block_names: Mapping[str, str]


_LAYOUTS = {
    "llama": _Layout(block="model.layers.{}.", names=_LLAMA, block_names=_LLAMA_BLOCK),
    "nanochat": _Layout(
        block="model.layers.{}.", names=_LLAMA, block_names=_LLAMA_BLOCK | {"mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}
    ),
    "gpt2": _Layout(block="transformer.h.{}.", names=_GPT2, block_names=_GPT2_BLOCK),
}


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code: 0, or 1 with an error line."""
    parser = argparse.ArgumentParser(prog="python -m trainer.huggingface", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path)
    options = parser.parse_args(arguments)
    try:
        _export(options.run, options.out, options.tokenizer)
    except (NothingTrainedError, PrepareError) as error:
        _say("error", text=str(error), hint=error.hint)
        return 1
    except (ConfigError, OSError) as error:
        _say("error", text=str(error), hint=None)
        return 1
    return 0


def _export(run_dir: Path, out: Path, tokenizer_file: Path | None) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise NothingTrainedError(f"{out} is not empty", "name a new folder")
    trained = load_trained(run_dir, "cpu", lambda text: _say("message", text=text))
    tokenizer, end = None, None
    if tokenizer_file is None and trained.config.data.path is None:
        _say("message", text="the run was trained on synthetic tokens: it has no tokenizer, and none is written")
    else:
        tokenizer, end = load_tokenizer(trained.config, tokenizer_file)
    if tokenizer is not None and tokenizer.file_name == SENTENCEPIECE_FILE:
        _say("message", text=f"{SENTENCEPIECE_FILE} is read by the package sentencepiece, not by AutoTokenizer")
    parameters = sum(p.numel() for p in trained.model.parameters())
    _say(
        "model", step=trained.step, parameters=parameters, architecture=model_config(trained.model)["architectures"][0]
    )
    with published(out, 4 * parameters) as folder:
        path = trained.config.data.path
        write(trained, folder, tokenizer, end, chat=path is not None and read_meta(path).counted_tokens is not None)
        files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    _say("written", files=files)


def write(
    trained: Trained, folder: Path, tokenizer: TextTokenizer | None, end: int | None, *, chat: bool = False
) -> None:
    """Write every file of a model, and its tokenizer's if it has one. `chat` is true if it has learnt conversations."""
    # a document begins after the end of another one, so the end token is also the one to begin with
    marks = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": None}
    save_file(model_tensors(trained.model), folder / MODEL_FILE, metadata={"format": "pt"})
    _write_json(folder / CONFIG_FILE, model_config(trained.model) | marks)
    _write_json(folder / GENERATION_FILE, marks)
    if isinstance(tokenizer, JsonTokenizer):
        _write_tokenizer(folder, tokenizer, end, trained.config.model.seq_len, chat=chat)
    elif tokenizer is not None:
        write_durably(folder / tokenizer.file_name, tokenizer.content())


def _write_tokenizer(folder: Path, tokenizer: JsonTokenizer, end: int | None, seq_len: int, *, chat: bool) -> None:
    # tokens that other tokenizers add around a text never occurred in what this model has read
    _write_json(folder / TOKENIZER_FILE, json.loads(tokenizer.content()) | {"post_processor": None})
    name = None if end is None else tokenizer.tokenizer.id_to_token(end)
    _write_json(
        folder / TOKENIZER_CONFIG_FILE,
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": name,
            "eos_token": name,
            "model_max_length": seq_len,
            "clean_up_tokenization_spaces": False,
            **({"chat_template": CHAT_TEMPLATE} if chat else {}),
        },
    )


def model_config(model: Transformer) -> dict[str, Any]:
    """Return the content of config.json without the numbers of special tokens."""
    shape = model.shape
    if shape.family == "gpt2":
        return _gpt2_config(model)
    config = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.width,
        "intermediate_size": shape.ffn_width,
        "num_hidden_layers": shape.depth,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": shape.seq_len,
        "rms_norm_eps": model.final_norm.eps,
        # two names: transformers 4 reads the first, transformers 5 the second
        "rope_theta": ROTARY_BASE,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROTARY_BASE},
        "attention_bias": False,
        "tie_word_embeddings": model.head is None,
        "dtype": "float32",
    }
    if shape.family == "llama":
        own = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "mlp_bias": False}
        return own | config | {"head_dim": shape.head_dim}
    own = {"architectures": ["NanoChatForCausalLM"], "model_type": "nanochat", "hidden_act": "relu2"}
    return own | config | {"final_logit_softcapping": model.softcap}


def _gpt2_config(model: Transformer) -> dict[str, Any]:
    shape = model.shape
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": shape.vocab_size,
        "n_positions": shape.seq_len,
        "n_embd": shape.width,
        "n_layer": shape.depth,
        "n_head": shape.heads,
        "n_inner": shape.ffn_width,
        "activation_function": "gelu_new",  # the tanh form
        "layer_norm_epsilon": model.final_norm.eps,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }


def model_tensors(model: Transformer) -> dict[str, Tensor]:
    """Return the weights under the names and in the layout of the family's architecture."""
    layout = _LAYOUTS[model.shape.family]
    rest = {name: tensor.detach() for name, tensor in model.named_parameters()}
    found: dict[str, Tensor] = {}
    for number in range(model.shape.depth):
        own = f"blocks.{number}."
        block = {name.removeprefix(own): rest.pop(name) for name in list(rest) if name.startswith(own)}
        theirs = _gpt2_block(block, model.shape) if model.shape.family == "gpt2" else _rotary_block(block, model.shape)
        found |= {layout.block.format(number) + _renamed(name, layout.block_names): t for name, t in theirs.items()}
    found |= {_renamed(name, layout.names): tensor for name, tensor in rest.items()}
    return {name: tensor.contiguous() for name, tensor in found.items()}


def _renamed(name: str, names: Mapping[str, str]) -> str:
    part, kind = name.rsplit(".", 1)  # kind: weight or bias
    return f"{names.get(part, part)}.{kind}"


def _rotary_block(block: dict[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """Return nanochat's block with each head's halves exchanged, since transformers rotates in the other direction.

    The products of queries and keys, and the norms of both, are the same for any order of a head's components.
    """
    if shape.family == "llama":
        return block
    return block | {
        name: _halves_exchanged(block[name], shape.head_dim)
        for name in ("attention.query.weight", "attention.key.weight")
    }


def _halves_exchanged(matrix: Tensor, head_dim: int) -> Tensor:
    """Return each head's rows with the second half before the first; matrix (heads · head_dim, width)."""
    first, second = matrix.view(-1, head_dim, matrix.shape[1]).chunk(2, dim=1)
    return torch.cat((second, first), dim=1).flatten(0, 1)


def _gpt2_block(block: dict[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """Return a block as GPT-2 has it: query, key and value in one matrix, one set per head, all matrices transposed."""
    repeats = shape.heads // shape.kv_heads
    found = {
        name: t
        for name, t in block.items()
        if not name.startswith(("attention.query", "attention.key", "attention.value"))
    }
    for kind in ("weight", "bias"):
        key, value = (
            _heads_repeated(block[f"attention.{part}.{kind}"], shape.head_dim, repeats) for part in ("key", "value")
        )
        found[f"attn.c_attn.{kind}"] = torch.cat((block[f"attention.query.{kind}"], key, value))
    return {name: t.t() if t.dim() == 2 else t for name, t in found.items()}


def _heads_repeated(tensor: Tensor, head_dim: int, repeats: int) -> Tensor:
    """Repeat each head's rows for every query head that shares them, so that there are no groups."""
    return tensor.unflatten(0, (-1, head_dim)).repeat_interleave(repeats, dim=0).flatten(0, 1)


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    write_durably(file, json.dumps(content, indent=1, ensure_ascii=False).encode())


def _say(kind: str, **fields: Any) -> None:
    print(json.dumps({"kind": kind, **fields}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
