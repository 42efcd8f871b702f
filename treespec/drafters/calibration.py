"""Correction of a drafter's own estimates by what came of them."""

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from treespec.tree.token_tree import TokenTree

# Bins of the estimate that a node is accepted if its parent is.
_EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.96)
# Expected acceptances for which the drafter's own word is taken.
_TRUST = 4.0


class Calibration:
    """Ratio of acceptances that came to those a drafter expected, by size of its estimate.

    Drafters that are too sure of themselves would crowd the others out of a merged tree.
    """

    def __init__(self) -> None:
        """Believe the drafter."""
        self._came = [_TRUST] * (len(_EDGES) + 1)
        self._expected = [_TRUST] * (len(_EDGES) + 1)

    def corrected(self, tree: TokenTree) -> TokenTree:
        """The tree with corrected scores; one without scores stays as it is."""
        if tree.scores is None:
            return tree
        given: list[float] = tree.scores.tolist()
        scores = [0.0]
        for node, parent in enumerate(tree.topology.parent_list[1:], start=1):
            estimate = _estimate(given, node, parent)
            place = bisect(_EDGES, estimate)
            ratio = self._came[place] / self._expected[place]
            gain = min(estimate * ratio, 1.0)
            scores.append(scores[parent] + (math.log(gain) if gain > 0 else -math.inf))
        return replace(tree, scores=torch.from_numpy(np.array(scores, dtype=np.float32)))

    def learn(self, tree: TokenTree, emitted: Sequence[int]) -> None:
        """Compare the tree, as the drafter scored it, with the tokens that came after its root."""
        if tree.scores is None:
            return
        given: list[float] = tree.scores.tolist()
        node: int | None = 0
        for token in emitted:
            if node is None:
                return
            following = None
            for child in tree.topology.children[node]:
                estimate = _estimate(given, child, node)
                place = bisect(_EDGES, estimate)
                self._expected[place] += estimate
                if tree.token_list[child] == token and following is None:
                    self._came[place] += 1.0
                    following = child
            node = following


def _estimate(scores: Sequence[float], node: int, parent: int) -> float:
    """Estimate that a node is accepted if its parent is."""
    if scores[parent] == -math.inf:
        return 0.0
    return math.exp(min(scores[node] - scores[parent], 0.0))
