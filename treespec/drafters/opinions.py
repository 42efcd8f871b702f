"""The target's opinion after a node: its most probable next tokens, brought to the host cheaply."""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Tokens that an opinion names.
TOP = 8
# A row is cut into groups of this many logits, whose maxima tell where the largest ones are.
_GROUP = 32
# Below this size of vocabulary grouping does not pay.
_SMALL_VOCAB = 4096


class Opinion(NamedTuple):
    """The most probable next tokens, most probable first, and their probabilities."""

    tokens: Sequence[int]
    probs: Sequence[float]


def opinions_of(
    logits: Sequence[Float[Tensor, "_N V"]], *, vocab_size: int, temperature: float
) -> list[list[Opinion]]:
    """Opinions at every row of each logits tensor, with one transfer to the host.

    Args:
        logits: one tensor a row of the batch, with a row for each node.
        vocab_size: logits from here on are padding.
        temperature: of the target; 0 for greedy decoding, where probabilities at 1 are told.
    """
    parts = [_top(each[:, :vocab_size], temperature or 1.0) for each in logits]
    packed = torch.cat([torch.cat([ids.double(), probs.double()], dim=1) for ids, probs in parts])
    rows = iter(packed.tolist())
    kept = packed.shape[1] // 2
    return [
        [
            Opinion([int(token) for token in row[:kept]], row[kept:])
            for row in islice(rows, each.shape[0])
        ]
        for each in logits
    ]


def _top(
    logits: Float[Tensor, "N V"], temperature: float
) -> tuple[Int[Tensor, "N K"], Float[Tensor, "N K"]]:
    """Ids and probabilities of the most probable tokens.

    The maxima of groups are found in one pass over contiguous memory, and the groups with the best
    maxima hold the best tokens: several times faster on a CPU than selecting from whole rows. The
    normaliser counts every token of those groups, but only the largest of each other group.
    """
    size = logits.shape[1]
    if size < _SMALL_VOCAB:
        probs = torch.softmax(logits.float() / temperature, dim=-1)
        top = probs.topk(min(TOP, size), dim=-1)
        return top.indices, top.values
    stride = size // _GROUP  # members of a group stand this far apart
    whole = stride * _GROUP
    peaks = logits[:, :whole].unflatten(1, (_GROUP, stride)).amax(dim=1)
    best = peaks.topk(TOP, dim=-1).indices
    offsets = torch.arange(0, whole, stride, device=logits.device)
    rest = torch.arange(whole, size, device=logits.device).expand(logits.shape[0], -1)
    ids = torch.cat([(best[:, :, None] + offsets).flatten(1), rest], dim=1)
    values = logits.gather(1, ids).float() / temperature
    scaled_peaks = (peaks.float() / temperature).scatter(1, best, -torch.inf)
    log_mass = torch.logaddexp(scaled_peaks.logsumexp(dim=-1), values.logsumexp(dim=-1))
    top = values.topk(TOP, dim=-1)
    return ids.gather(1, top.indices), (top.values - log_mass[:, None]).exp()
