"""An EAGLE head while it decodes: its cache, and what it has predicted for the nodes of trees."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.drafters.expansion import new_nodes
from treespec.heads.layer import Attend, LayerRunner
from treespec.tree.growth import GrowingTree

if TYPE_CHECKING:
    from treespec.heads.eagle import EagleHead


class EagleSession:
    """See `HeadSession`.

    The cache holds the pairs (f_t, x_(t+1)) at position t. A root at position p ends the pair of
    position p - 1, so a node of depth d is read at position p + d - 1, together with what the head
    gave for its parent in place of f.

    Args:
        head: the head.
        batch: number of rows.
    """

    def __init__(self, head: "EagleHead", batch: int) -> None:
        self._head = head
        self._runner = LayerRunner(batch, head.rotary, self._step)
        none = torch.empty(0, head.config.layer.hidden_size, dtype=head.dtype, device=head.device)
        # Per row what children are fed: of the root first, then of every node that ran.
        self._states = [none] * batch
        # Per row growing node -> its place among those that ran since the last read.
        self._ran: list[dict[int, int]] = [{} for _ in range(batch)]

    @property
    def lengths(self) -> list[int]:
        """Committed pairs of each row."""
        return list(self._runner.cache.lengths)

    def committed(self, row: int) -> tuple[Float[Tensor, "heads P K"], Float[Tensor, "heads P K"]]:
        """Keys and values of a row's committed pairs, as views."""
        return self._runner.cache.layer(0, row)

    def read(
        self,
        features: Sequence[Float[Tensor, "_L F"]],
        tokens: Sequence[Int[Tensor, " _L"]],
    ) -> list[Float[Tensor, "_M D"]]:
        """See `HeadSession.read`."""
        counts = [len(row) for row in tokens]
        hidden = self._head.fuse(torch.cat(list(features)))
        outputs = self._runner.read(self._inputs(hidden, torch.cat(list(tokens)), counts))
        self._ran = [{} for _ in counts]
        ends = [
            output[-1:] if count else states[:0]
            for output, count, states in zip(outputs, counts, self._states, strict=True)
        ]
        self._states = [
            self._head.feedback(end) if len(end) else states[:1]
            for end, states in zip(ends, self._states, strict=True)
        ]
        return self._logits(ends)

    def extend(
        self, trees: Sequence[GrowingTree], frontiers: Sequence[Sequence[int]]
    ) -> list[Float[Tensor, "_F D"]]:
        """See `HeadSession.extend`."""
        counts = [len(frontier) for frontier in frontiers]
        if not any(counts):
            return self._logits([states[:0] for states in self._states])
        nodes = [
            new_nodes(tree, frontier, ran)
            for tree, frontier, ran in zip(trees, frontiers, self._ran, strict=True)
        ]
        hidden = torch.cat(
            [self._parents(row, trees[row], frontier) for row, frontier in enumerate(frontiers)]
        )
        tokens = torch.cat([node.tokens for node in nodes])
        outputs = self._runner.run(self._inputs(hidden, tokens, counts), nodes)
        for row, frontier in enumerate(frontiers):
            ran = self._ran[row]
            ran.update({node: len(ran) + place for place, node in enumerate(frontier)})
            if frontier:
                fed = self._head.feedback(outputs[row])
                self._states[row] = torch.cat([self._states[row], fed])
        return self._logits(outputs)

    def keep(self, rows: Sequence[int]) -> None:
        """See `HeadSession.keep`."""
        self._runner.keep(rows)
        self._states = [self._states[row] for row in rows]
        self._ran = [self._ran[row] for row in rows]

    def _step(self, inputs: Float[Tensor, "B N X"], attend: Attend) -> Float[Tensor, "B N H"]:
        embeddings, hidden = inputs.chunk(2, dim=-1)
        return self._head.step(hidden, embeddings, attend)

    def _inputs(
        self, hidden: Float[Tensor, "A H"], tokens: Int[Tensor, " A"], counts: Sequence[int]
    ) -> list[Tensor]:
        """Embeddings and hidden states of all rows side by side, row by row."""
        inputs = torch.cat([self._head.embed(tokens), hidden], dim=-1)
        return list(inputs.split(list(counts)))

    def _parents(
        self, row: int, tree: GrowingTree, frontier: Sequence[int]
    ) -> Float[Tensor, "_F H"]:
        """What the head gave for the parents of frontier nodes."""
        ran, states = self._ran[row], self._states[row]
        parents = (tree.parents[node] for node in frontier)
        places = [0 if parent == 0 else 1 + ran[parent] for parent in parents]
        return states[torch.tensor(places, dtype=torch.int64, device=states.device)]

    def _logits(self, outputs: Sequence[Float[Tensor, "_M H"]]) -> list[Float[Tensor, "_M D"]]:
        """Logits of all rows' outputs at once."""
        logits = self._head.logits(torch.cat(list(outputs)))
        return list(logits.split([len(output) for output in outputs]))
