"""Loads a model from a run folder: the weights of its newest sound checkpoint, and its tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from trainer.checkpoint_files import CHECKPOINTS, DamagedError, list_checkpoints, verify
from trainer.checkpoint_parts import StoredTensors
from trainer.corpus import PrepareError
from trainer.device import DeviceContext, resolve_device
from trainer.model import Transformer, build_model
from trainer.schema import CONFIG, RunConfig, load_config
from trainer.token_folder import TOKENIZER_FILE, DataError, read_meta, tokenizer_file
from trainer.tokenizer import TextTokenizer, load_tokenizer_file


class NothingTrainedError(Exception):
    """Says that a folder has nothing that can be used. `hint` is the next step."""

    def __init__(self, message: str, hint: str):
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model that is ready for use, without gradients."""

    model: Transformer
    config: RunConfig
    context: DeviceContext
    step: int

    @property
    def dtype(self) -> torch.dtype:
        """Return the type in which the model computes."""
        return self.context.dtype or torch.float32


def load_trained(run_dir: Path, device: str = "auto", on_message: Callable[[str], None] = lambda text: None) -> Trained:
    """Load the newest checkpoint in which every byte is undamaged.

    Raises NothingTrainedError if there is none, and ConfigError, OSError and DeviceError.
    """
    if not (run_dir / CONFIG).exists():
        raise NothingTrainedError(f"{run_dir} has no {CONFIG}: what its model looks like is not known", "advisor runs")
    config = load_config(run_dir / CONFIG)
    precision = config.precision if device == config.device else "auto"
    context = resolve_device(device, precision, tf32=config.tf32)
    with torch.device("meta"):
        model = build_model(config.model)
    model.to_empty(device=context.device)
    for path in reversed(list_checkpoints(run_dir / CHECKPOINTS)):
        try:
            step = _load(path, model)
        except DamagedError as error:
            on_message(f"{path} is damaged: {error}; trying the one before it")
            continue
        model.requires_grad_(False).eval()
        return Trained(model=model, config=config, context=context, step=step)
    raise NothingTrainedError(
        f"{run_dir} has no checkpoint that can be used", f"go on with it: advisor resume {run_dir}"
    )


def load_tokenizer(config: RunConfig, file: Path | None) -> tuple[TextTokenizer, int | None]:
    """Return the tokenizer of a run's data or of a file, and its end-of-document token. Raises NothingTrainedError."""
    if file is None and config.data.path is None:
        raise NothingTrainedError(
            "the run was trained on synthetic tokens, which mean nothing", "name a tokenizer: --tokenizer FILE"
        )
    path, end = file, None
    if path is None:
        folder = str(config.data.path)
        try:
            end = read_meta(folder).end_of_text
        except DataError as error:
            raise NothingTrainedError(
                f"the run's data are not here: {error.message}", "name its tokenizer: --tokenizer FILE"
            ) from error
        path = tokenizer_file(folder) or Path(folder) / TOKENIZER_FILE
    try:
        tokenizer = load_tokenizer_file(path)
    except PrepareError as error:
        raise NothingTrainedError(error.message, error.hint or "--tokenizer FILE") from error
    if tokenizer.vocab_size > config.model.vocab_size:
        raise NothingTrainedError(
            f"{path} has {tokenizer.vocab_size:,} tokens, the model {config.model.vocab_size:,}",
            "name the tokenizer that it was trained with",
        )
    return tokenizer, tokenizer.end_of_text if end is None else end


def _load(path: Path, model: Transformer) -> int:
    state = verify(path)
    stored = StoredTensors(path, state["files"], "model")
    for name, parameter in model.named_parameters():
        if stored.shapes.get(name) != tuple(parameter.shape):
            raise DamagedError(f"{name} has shape {stored.shapes.get(name)} instead of {tuple(parameter.shape)}")
        parameter.data.copy_(stored.rows(name, 0, parameter.shape[0]))
    model.renew_rotary()
    return state["step"]
