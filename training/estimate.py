"""What a run will take: one batch is tried, the rest is counted."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from treespec.heads.base import DraftHeads
from treespec.training.building import build_heads, hidden_size_of
from treespec.training.config import TrainConfig
from treespec.training.corpus import Corpus, prepare
from treespec.training.data import DataFolder
from treespec.training.features import FeatureSource, at_rest
from treespec.training.learner import Learner
from treespec.training.losses import chunk_of
from treespec.training.packing import Batch, BatchStream
from treespec.training.parallel import Processes

_FLOAT = 4  # bytes of a float32 number
_CHUNK_COPIES = 4  # logits, their logarithm, the gradient, and the target's logits


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run needs.

    Attributes:
        num_parameters: trained numbers.
        examples: that are learned from.
        held_out: that are set aside.
        unused: that have no label.
        tokens: labels of the first depth in one epoch.
        coverage: share of supervised tokens that the heads can propose.
        steps: optimiser steps.
        time_s: seconds of all steps, from one batch on this machine; looks at held-out examples
            come on top.
        memory_bytes: of target, heads, optimiser and one batch, in one process.
        disk_bytes: of heads and checkpoints.
        is_stored: whether hidden states come from the data folder rather than from the target.
    """

    num_parameters: int
    examples: int
    held_out: int
    unused: int
    tokens: int
    coverage: float
    steps: int
    time_s: float
    memory_bytes: int
    disk_bytes: int
    is_stored: bool


def estimate_run(target: PreTrainedModel, data: DataFolder, config: TrainConfig) -> Estimate:
    """What `train_heads` would need; nothing is written.

    Raises:
        ConfigError: see `train_heads`.
        DataError: see `train_heads`.
    """
    data.require_target(target)
    corpus = prepare(data, config)
    with at_rest(target):
        heads = build_heads(config, target, corpus.vocabulary)
        source = FeatureSource(
            target,
            heads.taps,
            needs_final=config.kl_share > 0,
            data=data,
            device=heads.device,
        )
        trial = _try(Learner(heads, config, source), corpus, config)
    plan = _plan(corpus, config)
    numbers = sum(one.numel() for one in heads.parameters())
    saved = numbers * (2 if config.dtype == "bfloat16" else _FLOAT)
    return Estimate(
        num_parameters=numbers,
        examples=len(corpus.train),
        held_out=len(corpus.held_out),
        unused=corpus.unused,
        tokens=plan.labels,
        coverage=corpus.coverage,
        steps=plan.steps,
        time_s=plan.tokens * trial.seconds_a_token / Processes.find().count,
        memory_bytes=_memory(target, heads, trial),
        # Weights and two moments, twice while a checkpoint is replaced, and the best weights.
        disk_bytes=saved + (2 * 3 + 1) * numbers * _FLOAT,
        is_stored=source.is_stored,
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """Steps, tokens with padding of all steps, and labels of one epoch."""

    steps: int
    tokens: int
    labels: int


def _plan(corpus: Corpus, config: TrainConfig) -> _Plan:
    stream = BatchStream(corpus.lengths, config.batch_tokens, config.seed)
    per_step = config.accumulation * Processes.find().count
    batches = [stream.batch(number).indices for number in range(stream.size(0))]
    epoch = sum(len(rows) * max(corpus.lengths[row] for row in rows) for rows in batches)
    labels = sum(int(one.supervised[2 : config.max_length].sum()) for one in corpus.train)
    if config.max_steps is None:
        steps = -(-len(batches) * config.epochs // per_step)
        return _Plan(steps, epoch * config.epochs, labels)
    return _Plan(config.max_steps, epoch * config.max_steps * per_step // len(batches), labels)


@dataclass(frozen=True, slots=True)
class _Trial:
    """What one batch took."""

    seconds_a_token: float
    saved_bytes: int


def _try(learner: Learner, corpus: Corpus, config: TrainConfig) -> _Trial:
    """Learn from one batch twice, the second time with a watch."""
    stream = BatchStream(corpus.lengths, config.batch_tokens, config.seed)
    rows = [corpus.train[index] for index in stream.batch(0).indices]
    batch = Batch.of(rows, config.max_length)
    counts = learner.counts(batch)
    with _saved_bytes(learner.heads) as sizes:
        learner.learn(batch, counts)
    began = time.monotonic()
    learner.learn(batch, counts)
    if learner.heads.device.type == "cuda":
        torch.cuda.synchronize(learner.heads.device)
    elapsed_s = time.monotonic() - began
    learner.heads.zero_grad(set_to_none=True)
    return _Trial(elapsed_s / batch.tokens.numel(), sum(sizes.values()))


@contextmanager
def _saved_bytes(heads: DraftHeads) -> Iterator[dict[int, int]]:
    """Bytes of every piece of memory that a forward keeps for its backward, weights left out."""
    weights = {one.untyped_storage().data_ptr() for one in heads.parameters()}
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield sizes


def _memory(target: PreTrainedModel, heads: DraftHeads, trial: _Trial) -> int:
    """Bytes at the busiest moment: weights, gradients and moments, what is kept, and a chunk."""
    theirs = sum(one.numel() * one.element_size() for one in target.parameters())
    own = 4 * _FLOAT * sum(one.numel() for one in heads.parameters())
    logits = chunk_of(heads.num_columns, hidden_size_of(target))
    chunk = _CHUNK_COPIES * _FLOAT * logits
    return theirs + own + trial.saved_bytes + chunk
