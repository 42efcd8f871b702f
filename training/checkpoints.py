"""Checkpoints of a run: everything that its continuation depends on, in one file that is whole.

A run is a function of its settings, its data and the number of the step: batches and learning rate
have no state of their own. What is left are weights, the optimiser's moments and the state of
torch's random numbers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from treespec.errors import CheckpointError
from treespec.heads.base import DraftHeads
from treespec.training.config import TrainConfig
from treespec.training.files import unfinished
from treespec.training.metrics import Metrics

LAST, BEST = "last.safetensors", "best.safetensors"
_ENTRY = "treespec_training"
_HEADS, _OPTIMISER = "heads.", "optimiser."
_CPU_RANDOM, _CUDA_RANDOM = "random.cpu", "random.cuda"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come.

    Attributes:
        step: optimiser steps taken.
        tokens: labels of the first depth seen.
        best_step: step of the best weights; None before the first look at held-out examples.
        best: how good they were.
    """

    step: int = 0
    tokens: int = 0
    best_step: int | None = None
    best: Metrics | None = None

    def after(self, tokens: int) -> "Progress":
        """One step later."""
        return replace(self, step=self.step + 1, tokens=self.tokens + tokens)

    def judged(self, held_out: Metrics) -> "Progress":
        """After a look at the held-out examples; the lowest loss is the best."""
        if self.best is not None and not held_out.loss < self.best.loss:
            return self
        return replace(self, best_step=self.step, best=held_out)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was read.

    Attributes:
        progress: how far the run had come.
        config: its settings.
        data: digest of what it is trained on.
        tensors: weights, moments and random states by name.
    """

    progress: Progress
    config: TrainConfig
    data: str
    tensors: Mapping[str, Tensor]

    def restore(self, heads: DraftHeads, optimiser: torch.optim.Optimizer | None = None) -> None:
        """Put weights, moments and the random state back in place."""
        weights = {
            name.removeprefix(_HEADS): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(_HEADS)
        }
        heads.load_state_dict(weights)
        if optimiser is None:
            return
        for name, parameter in heads.named_parameters():
            prefix = f"{_OPTIMISER}{name}:"
            # AdamW counts steps on the CPU and has its moments beside the weights.
            state = {
                key.removeprefix(prefix): tensor.to(parameter.device) if tensor.ndim else tensor
                for key, tensor in self.tensors.items()
                if key.startswith(prefix)
            }
            if state:
                optimiser.state[parameter] = state
        torch.set_rng_state(self.tensors[_CPU_RANDOM])
        if _CUDA_RANDOM in self.tensors and heads.device.type == "cuda":
            torch.cuda.set_rng_state(self.tensors[_CUDA_RANDOM], heads.device)


def write_checkpoint(
    path: Path,
    heads: DraftHeads,
    optimiser: torch.optim.Optimizer | None,
    *,
    progress: Progress,
    config: TrainConfig,
    data: str,
) -> None:
    """Write a checkpoint under another name, and give it its own when it is whole.

    Args:
        path: of the file.
        heads: their weights are stored.
        optimiser: its moments and the random state are stored; None for weights alone.
        progress: how far the run has come.
        config: its settings.
        data: digest of what it is trained on.
    """
    tensors = {_HEADS + name: tensor for name, tensor in heads.state_dict().items()}
    if optimiser is not None:
        for name, parameter in heads.named_parameters():
            for part, tensor in optimiser.state.get(parameter, {}).items():
                tensors[f"{_OPTIMISER}{name}:{part}"] = tensor
        tensors[_CPU_RANDOM] = torch.get_rng_state()
        if heads.device.type == "cuda":
            tensors[_CUDA_RANDOM] = torch.cuda.get_rng_state(heads.device)
    entry = {
        "step": progress.step,
        "tokens": progress.tokens,
        "best_step": progress.best_step,
        "best": None if progress.best is None else progress.best.as_dict(),
        "config": config.as_dict(),
        "data": data,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with unfinished(path) as work:
        save_file(stored, work, metadata={_ENTRY: json.dumps(entry)})


def read_checkpoint(path: Path) -> Checkpoint:
    """What `write_checkpoint` wrote.

    Raises:
        CheckpointError: if it is anything else.
    """
    try:
        with safe_open(path, framework="pt") as file:
            entry = json.loads((file.metadata() or {})[_ENTRY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        best = entry["best"]
        progress = Progress(
            step=int(entry["step"]),
            tokens=int(entry["tokens"]),
            best_step=entry["best_step"],
            best=None if best is None else Metrics.from_dict(best),
        )
        config = TrainConfig.from_values(entry["config"])
        return Checkpoint(progress, config, str(entry["data"]), tensors)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is no checkpoint of a training run ({error}); remove it to begin anew"
        ) from error
