"""The default rule: draft and target share one noise, so that tree output equals plain output.

At every node the target's choice is `argmax(logits + G)` with the noise G of that position; the
walk goes down while a child carries its parent's choice. What is emitted is a function of the
target and the noise alone, whatever the tree. Greedy decoding is the case of zero noise.
Source: docs/math/shared_noise.md; Daliri, Musco, Suresh 2024 (arXiv 2408.07978) for the coupling.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.sampling import RowNoise
from treespec.scores import NodeScores
from treespec.tree.token_tree import DRAWS, TokenTree
from treespec.verify.acceptance import Acceptance

_BLOCKS = 64
# In place of the choice of an undecided node; no token has this id.
_UNDECIDED = -1


class Gumbel:
    """Walk along the target's own noisy choices; exact for every tree and every draw."""

    name = "gumbel"
    lossless = True
    draws: tuple[str, ...] = DRAWS

    def accept(
        self,
        trees: Sequence[TokenTree],
        scores: Sequence[NodeScores],
        noises: Sequence[RowNoise],
        root_positions: Sequence[int],
    ) -> list[Acceptance]:
        """See `treespec.verify.acceptance.Verifier.accept`.

        The device is read once for all rows, and once more for every node on a path that the
        scores leave undecided.
        """
        rows = list(zip(trees, scores, noises, root_positions, strict=True))
        chosen = torch.cat([choices(*row) for row in rows]).tolist()
        accepted, start = [], 0
        for tree, row_scores, noise, root_position in rows:
            own = chosen[start : start + len(tree)]
            start += len(tree)
            acceptance = walk(tree, own)
            while acceptance.next_token == _UNDECIDED:
                node = acceptance.path[-1]
                own[node] = choice_at(node, tree, row_scores, noise, root_position)
                acceptance = walk(tree, own)
            accepted.append(acceptance)
        return accepted


def choices(
    tree: TokenTree, scores: NodeScores, noise: RowNoise, root_position: int
) -> Int[Tensor, " N"]:
    """The target's choice after every node; ties go to the lowest id, -1 stands for undecided.

    A node at depth d chooses the token of position `root_position + d + 1`; nodes at one depth
    share that position's noise.
    """
    depths = tree.topology.depth_list
    if scores.ids is not None:
        positions = [root_position + depth + 1 for depth in depths]
        perturbed = scores.values + noise.at_each(positions, scores.ids)
        best = scores.ids.gather(1, perturbed.argmax(dim=-1, keepdim=True)).squeeze(1)
        return best if scores.undecided is None else best.masked_fill(scores.undecided, _UNDECIDED)
    if noise.is_zero:
        return best_token(scores.values)
    chosen = torch.empty(len(tree), dtype=torch.int64, device=scores.values.device)
    for depth in sorted(set(depths)):
        nodes = torch.tensor([node for node, d in enumerate(depths) if d == depth])
        nodes = nodes.to(scores.values.device)
        row = noise.row(root_position + depth + 1, scores.vocab_size, scores.values.device)
        chosen[nodes] = best_token(scores.values[nodes] + row)
    return chosen


def choice_at(
    node: int, tree: TokenTree, scores: NodeScores, noise: RowNoise, root_position: int
) -> int:
    """The target's choice after one node, from the scores of all tokens there."""
    row = scores.row(node)
    position = root_position + tree.topology.depth_list[node] + 1
    if not noise.is_zero:
        row = row + noise.row(position, scores.vocab_size, row.device)
    return int(row.argmax())


def best_token(scores: Float[Tensor, "N V"]) -> Int[Tensor, " N"]:
    """Lowest id of a largest score, as `argmax` gives it.

    On a CPU a maximum without its index is found several times faster, most of all in bfloat16, so
    the block that holds it is found first, and the index inside that block only.
    """
    size = scores.shape[1]
    if scores.device.type != "cpu" or size < _BLOCKS**2:
        return scores.argmax(dim=-1)
    width = size // _BLOCKS
    peaks = scores[:, : width * _BLOCKS].unflatten(1, (_BLOCKS, width)).amax(dim=-1)
    if size > width * _BLOCKS:
        rest = scores[:, width * _BLOCKS :].amax(dim=-1, keepdim=True)
        peaks = torch.cat([peaks, rest], dim=1)
    ids: Tensor = peaks.argmax(dim=-1, keepdim=True) * width + torch.arange(width)
    ids.clamp_(max=size - 1)
    best: Tensor = ids.gather(1, scores.gather(1, ids).argmax(dim=-1, keepdim=True))
    return best.squeeze(1)


def walk(tree: TokenTree, chosen: Sequence[int]) -> Acceptance:
    """Follow the choices from the root while a child carries them."""
    node, path = 0, [0]
    while True:
        matches = (
            child
            for child in tree.topology.children[node]
            if tree.token_list[child] == chosen[node]
        )
        following = next(matches, None)
        if following is None:
            return Acceptance(tuple(path), chosen[node])
        node = following
        path.append(node)
