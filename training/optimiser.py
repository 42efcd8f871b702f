"""AdamW and the learning rate of every step."""

import math

import torch

from treespec.heads.base import DraftHeads
from treespec.training.config import TrainConfig


def optimiser_of(heads: DraftHeads, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW over the heads' own weights; norms and biases do not decay."""
    matrices = [one for one in heads.parameters() if one.ndim > 1]
    others = [one for one in heads.parameters() if one.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=config.lr)


def learning_rate(step: int, steps: int, config: TrainConfig) -> float:
    """Of one step: a straight line up to `lr`, then half a cosine down.

    Args:
        step: its number, from 0.
        steps: how many there are.
        config: the highest rate, the share of steps that it rises in, and where it ends.
    """
    rising = round(config.warmup_ratio * steps)
    if step < rising:
        return config.lr * (step + 1) / rising
    passed = (step - rising) / max(1, steps - rising)
    height = (1 + math.cos(math.pi * passed)) / 2
    return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * height)
