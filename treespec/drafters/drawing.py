"""How children are drawn from a draft model's logits, under each draw of the contract."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.sampling import RowNoise, gumbel, node_seed
from treespec.tree.growth import Candidates
from treespec.tree.shapes import TreeLimits
from treespec.tree.topology import TreeTopology


@dataclass(frozen=True, slots=True)
class Drawn:
    """Possible children of F nodes.

    Attributes:
        candidates: for each node its candidates.
        laws: what they were drawn from, `[F, V]`; None where the draw needs none.
    """

    candidates: list[Candidates]
    laws: Float[Tensor, "F V"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the nodes to be expanded stand.

    Attributes:
        noise: the row's noise.
        root_position: absolute position of the row's root.
        nodes: the nodes' indices while the tree grows.
        depths: their depths.
    """

    noise: RowNoise
    root_position: int
    nodes: Sequence[int]
    depths: Sequence[int]


def draw_children(
    logits: Float[Tensor, "F V"],
    place: Place,
    *,
    draw: str,
    temperature: float,
    width: int,
    ids: Int[Tensor, " V"] | None = None,
) -> Drawn:
    """Draw up to `width` children of every node.

    Greedy decoding knows one draw only, the most probable tokens. "shared" ranks them by
    log-probability plus the noise that the target will use at that position; "topk" by probability.
    "swor" samples without replacement by ranking with noise of its own (Kool, van Hoof, Welling
    2019, arXiv 1903.06059), "iid" and "iid_paths" with replacement by inverting the distribution
    function; both return candidates in draw order, and the law they came from.

    Args:
        logits: what the draft says at every node.
        place: where the nodes stand.
        draw: how to draw.
        temperature: the target's; 0 when greedy.
        width: most children of a node.
        ids: the target's id of every column of a reduced vocabulary; None if they are the same.
    """
    values = logits.float()
    width = min(width, values.shape[1])
    if place.noise.seed is None or draw == "topk":
        return Drawn(_best(values / (temperature or 1.0), width, ids))
    values = values / temperature
    if draw == "shared":
        return Drawn(_best(_with_shared_noise(values, place, ids), width, ids))
    laws = values.softmax(dim=-1)
    seeds = [node_seed(place.noise.seed, place.root_position, node) for node in place.nodes]
    tokens = (
        _without_replacement(laws, seeds, width)
        if draw == "swor"
        else _independent(laws, seeds, width)
    )
    log_probs = laws.gather(1, tokens).log()
    tokens = tokens if ids is None else ids[tokens]
    candidates = [Candidates(*row) for row in zip(tokens.tolist(), log_probs.tolist(), strict=True)]
    return Drawn(candidates, laws)


def _best(
    values: Float[Tensor, "F V"], width: int, ids: Int[Tensor, " V"] | None
) -> list[Candidates]:
    """Highest values first, with their share of the whole as estimates."""
    best = values.topk(width, dim=-1)
    log_probs = best.values - values.logsumexp(dim=-1, keepdim=True)
    tokens = best.indices if ids is None else ids[best.indices]
    return [Candidates(*row) for row in zip(tokens.tolist(), log_probs.tolist(), strict=True)]


def _with_shared_noise(
    values: Float[Tensor, "F V"], place: Place, ids: Int[Tensor, " V"] | None
) -> Float[Tensor, "F V"]:
    noisy = torch.empty_like(values)
    for depth in set(place.depths):
        rows = [row for row, d in enumerate(place.depths) if d == depth]
        position = place.root_position + depth + 1
        noise = (
            place.noise.row(position, values.shape[1], values.device)
            if ids is None
            else place.noise.at(position, ids)
        )
        noisy[rows] = values[rows] + noise
    return noisy


def _without_replacement(laws: Float[Tensor, "F V"], seeds: Sequence[int], width: int) -> Tensor:
    ids = torch.arange(laws.shape[1], device=laws.device)
    noise = torch.stack([gumbel(seed, 0, ids) for seed in seeds])
    return (laws.log() + noise).topk(width, dim=-1).indices


def _independent(laws: Float[Tensor, "F V"], seeds: Sequence[int], width: int) -> Tensor:
    """Tokens whose share of the distribution function holds a uniform number.

    The uniform numbers are those behind `gumbel`; a token of probability 0 has no share.
    """
    ids = torch.arange(width, device=laws.device)
    levels = torch.stack([gumbel(seed, 0, ids) for seed in seeds]).double()
    levels = levels.neg().exp().neg().exp()
    summed = laws.double().cumsum(dim=-1)
    found = torch.searchsorted(summed, levels * summed[:, -1:], right=True)
    last = laws.shape[1] - 1 - laws.flip(-1).gt(0).int().argmax(dim=-1, keepdim=True)
    return found.minimum(last)


def paths_topology(limits: TreeLimits) -> TreeTopology:
    """As many whole paths as the limits allow, all of full depth, parting at the root."""
    depth = min(limits.depth, limits.budget)
    paths = max(min(limits.width, limits.budget // max(depth, 1)), 1)
    parents = [-1] + [0] * paths
    parents += [node - paths for node in range(paths + 1, paths * depth + 1)]
    return TreeTopology(parents)
