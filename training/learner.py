"""What heads learn from one batch."""

import torch
from jaxtyping import Int
from torch import Tensor

from treespec.heads.base import DraftHeads
from treespec.training.config import TrainConfig
from treespec.training.features import Features, FeatureSource
from treespec.training.labels import Columns, Labels, ahead
from treespec.training.losses import Lesson, Objective, score
from treespec.training.metrics import Metrics, Tally
from treespec.training.packing import Batch
from treespec.training.unroll import Unrolled, unroll


class Learner:
    """Heads, and how their guesses become a loss.

    Args:
        heads: to be trained; their vocabulary decides which labels count.
        config: depths, losses and their weights.
        source: of the target's hidden states.

    Attributes:
        heads: the same heads.
    """

    def __init__(self, heads: DraftHeads, config: TrainConfig, source: FeatureSource) -> None:
        self.heads = heads
        self._config = config
        self._source = source
        self._columns = Columns(heads.vocabulary)
        self._objective = Objective(config.kl_share, config.kl_top_k)
        self._weights = [config.head_decay**depth for depth in range(config.depth)]

    def counts(self, batch: Batch) -> Int[Tensor, "2 K"]:
        """Labels that count, and all labels, by depth.

        Those of every batch of a step together are what `learn` divides by, so that it does not
        matter how the step's examples are spread over batches and processes.
        """
        labels = self._labels(batch)
        return torch.stack(
            [
                torch.stack([one.counted.sum() for one in labels]),
                torch.stack([one.supervised.sum() for one in labels]),
            ]
        )

    def learn(self, batch: Batch, counts: Int[Tensor, "2 K"]) -> Tally:
        """Add the batch's share of a step to the gradients.

        Args:
            batch: on the CPU.
            counts: of all batches of the step.
        """
        batch = batch.to(self.heads.device)
        features = self._source.of(batch)
        with self._arithmetic():
            losses, distances, tally = self._passed(batch, features)
            total = torch.zeros((), device=self.heads.device)
            for depth, weight in enumerate(self._weights):
                total = total + losses[depth] * (weight / max(1, int(counts[0, depth])))
                if distances:
                    share = self._config.feature_share * weight / max(1, int(counts[1, depth]))
                    total = total + distances[depth] * share
        if total.requires_grad:
            total.backward()
        return tally

    @torch.no_grad()
    def examine(self, batch: Batch) -> Tally:
        """How good the heads are on a batch."""
        batch = batch.to(self.heads.device)
        features = self._source.of(batch)
        with self._arithmetic():
            return self._passed(batch, features)[2]

    def metrics(self, tally: Tally) -> Metrics:
        """Means of a tally."""
        return tally.metrics(self._weights, self._config.feature_share)

    def _labels(self, batch: Batch) -> list[Labels]:
        return [self._columns.labels(batch, depth) for depth in range(self._config.depth)]

    def _arithmetic(self) -> torch.autocast:
        is_mixed = self._config.precision == "bfloat16"
        return torch.autocast(self.heads.device.type, torch.bfloat16, enabled=is_mixed)

    def _passed(self, batch: Batch, features: Features) -> tuple[list[Tensor], list[Tensor], Tally]:
        """Summed losses and distances of every depth, and the tally."""
        labels = self._labels(batch)
        counted = [one.counted for one in labels]
        losses, distances = [], []
        correct = torch.zeros(len(labels), *batch.tokens.shape, dtype=torch.bool)
        correct = correct.to(batch.tokens.device)
        for depth, unrolled in enumerate(unroll(self.heads, batch, features, counted)):
            where = counted[depth]
            scored = score(
                unrolled.guess,
                self._lesson(depth, labels[depth], features),
                self._objective,
                num_columns=self.heads.num_columns,
            )
            losses.append(scored.loss)
            correct[depth, where] = scored.correct
            if self._config.feature_share:
                distances.append(_distance(depth, unrolled, features, labels[depth]))
        supervised = torch.stack([one.supervised for one in labels])
        tally = Tally.of(
            losses,
            distances,
            supervised=supervised,
            counted=torch.stack(counted),
            correct=correct,
        )
        return losses, distances, tally

    def _lesson(self, depth: int, labels: Labels, features: Features) -> Lesson:
        """The labels of one depth; the target's law of x_(t+2+k) comes from f_(t+1+k)."""
        columns = labels.columns[labels.counted]
        if features.final is None or not self._objective.needs_teacher:
            return Lesson(columns)
        states = ahead(features.final, 1 + depth)[labels.counted]
        return Lesson(columns, states, self.heads.borrowed.logits)


def _distance(depth: int, unrolled: Unrolled, features: Features, labels: Labels) -> Tensor:
    """Smooth L1 distance between the features that were predicted and the target's own, summed."""
    if unrolled.predicted is None:
        return torch.zeros(())
    truth = ahead(features.inputs, 1 + depth)[labels.supervised]
    predicted = unrolled.predicted[labels.supervised].float()
    distances = torch.nn.functional.smooth_l1_loss(predicted, truth, reduction="none")
    return distances.mean(dim=-1).sum()
