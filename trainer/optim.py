"""Builds the optimizers and computes the learning rate of each step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from trainer.model import Transformer
from trainer.schema import OptimizerConfig, ScheduleConfig
from trainer.split import first_row, is_split, like, local_rows, whole

_ADAM_EPS = 1e-8
_MUON_MOMENTUM = 0.95  # Keller Jordan's Muon, Nesterov; nanochat too


def build_optimizers(model: Transformer, config: OptimizerConfig, device: torch.device) -> list[Optimizer]:
    """Return AdamW for everything, or with "muon" Muon for the blocks' matrices and AdamW for the rest.

    AdamW uses the fused kernel unless configured otherwise: one pass over weights, gradients and moments, and no
    temporary copies. Weight decay is only on matrices, including embeddings (as in nanoGPT). `set_learning_rate` scales
    the peak rates given here.
    """
    muon = [] if config.name != "muon" else [p for p in model.blocks.parameters() if p.dim() == 2]
    taken = {id(p) for p in muon}
    rest = [p for p in model.parameters() if id(p) not in taken]
    groups = [
        {"params": [p for p in rest if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in rest if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizers: list[Optimizer] = [
        torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=_ADAM_EPS,
            fused=config.fused and device.type in ("cpu", "cuda"),
        )
    ]
    if muon:
        rate = config.muon_learning_rate
        optimizers.append(Muon(muon, lr=rate, weight_decay=config.weight_decay, momentum=_MUON_MOMENTUM, nesterov=True))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_learning_rate"] = group["lr"]
    return optimizers


class Muon(torch.optim.Muon):
    """torch's Muon, also for matrices whose rows are split over processes.

    Orthogonalising needs the whole matrix. So each process gathers the update in 16 bits (the precision of the
    iterations), orthogonalises it and keeps its own rows. The momentum stays split.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Step all matrices. In a split model all of them are split, and all processes step together."""
        if not any(is_split(p) for group in self.param_groups for p in group["params"]):
            return super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self._step_split(parameter, group)
        return None

    def _step_split(self, parameter: Tensor, group: dict[str, Any]) -> None:
        assert parameter.grad is not None and group["nesterov"]
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter.grad)
        gradient, momentum = local_rows(parameter.grad), local_rows(state["momentum_buffer"])
        momentum.lerp_(gradient, 1 - group["momentum"])
        update = gradient.lerp(momentum, group["momentum"]).bfloat16()
        change = _orthogonalised(whole(like(parameter, update)), group["lr"])
        rows, first = local_rows(parameter), first_row(parameter)
        rows.mul_(1 - group["lr"] * group["weight_decay"]).add_(change[first : first + len(rows)])


def _orthogonalised(update: Tensor, learning_rate: float) -> Tensor:
    """Return what torch's Muon would add to a whole matrix for this update: one step from zero, without momentum."""
    matrix = torch.nn.Parameter(torch.zeros(update.shape, device=update.device))
    matrix.grad = update.float()
    torch.optim.Muon([matrix], lr=learning_rate, weight_decay=0.0, momentum=0.0, nesterov=False).step()
    return matrix.detach()


def set_learning_rate(optimizers: list[Optimizer], factor: float) -> None:
    """Set every group's learning rate to `factor` times its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_learning_rate"] * factor


def learning_rate_factor(schedule: ScheduleConfig, step: int, steps: int) -> float:
    """Return the share of the peak learning rate at a step (counted from 0) of a run with `steps` steps.

    Linear warm-up to the peak; then either half a cosine down to `final_fraction` (Loshchilov and Hutter 2016), or
    constant with a linear descent over the last `decay_fraction` of the steps (warmup-stable-decay, Hu et al. 2024).
    """
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    if schedule.name == "wsd":
        decay_steps = max(1, round(schedule.decay_fraction * steps))
        remaining = min(1.0, max(0.0, (steps - step) / decay_steps))
        return schedule.final_fraction + (1 - schedule.final_fraction) * remaining
    progress = min(1.0, (step - schedule.warmup_steps) / max(1, steps - schedule.warmup_steps))
    return schedule.final_fraction + (1 - schedule.final_fraction) * 0.5 * (1 + math.cos(math.pi * progress))
