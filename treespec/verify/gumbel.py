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
from treespec.tree.token_tree import DRAWS, TokenTree
from treespec.verify.acceptance import Acceptance

_BLOCKS = 64


class Gumbel:
    """Walk along the target's own noisy choices; exact for every tree and every draw."""

    name = "gumbel"
    lossless = True
    draws: tuple[str, ...] = DRAWS

    def accept(
        self,
        trees: Sequence[TokenTree],
        scores: Sequence[Float[Tensor, "_N V"]],
        noises: Sequence[RowNoise],
        root_positions: Sequence[int],
    ) -> list[Acceptance]:
        """See `treespec.verify.acceptance.Verifier.accept`; reads the device once for all rows."""
        chosen = torch.cat(
            [
                choices(row_scores, tree.topology.depth_list, noise, position)
                for tree, row_scores, noise, position in zip(
                    trees, scores, noises, root_positions, strict=True
                )
            ]
        ).tolist()
        accepted, start = [], 0
        for tree in trees:
            accepted.append(walk(tree, chosen[start : start + len(tree)]))
            start += len(tree)
        return accepted


def choices(
    scores: Float[Tensor, "N V"], depths: Sequence[int], noise: RowNoise, root_position: int
) -> Int[Tensor, " N"]:
    """The target's choice after every node; ties go to the lowest id.

    A node at depth d chooses the token of position `root_position + d + 1`; nodes at one depth
    share that position's noise.
    """
    if noise.is_zero:
        return best_token(scores)
    chosen = torch.empty(scores.shape[0], dtype=torch.int64, device=scores.device)
    for depth in sorted(set(depths)):
        nodes = torch.tensor(
            [node for node, d in enumerate(depths) if d == depth], device=scores.device
        )
        row = noise.row(root_position + depth + 1, scores.shape[1], scores.device)
        chosen[nodes] = best_token(scores[nodes] + row)
    return chosen


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
