"""Top-k, top-p and min-p at many nodes, without sorting the vocabulary.

Each of them keeps the best tokens down to some rank, so that a few hundred of the largest scores
decide: how far top-k and min-p reach is read off them, and top-p needs the sum over the rest
besides. Where the cut lies beyond them, or among equals of the last of them, the node is left
undecided, and transformers' own processors decide it if it is ever reached.
"""

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias, cast, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import LogitsProcessor
from transformers.generation import logits_process as hf

from treespec.scores import NodeScores

# Largest scores looked at; on text a nucleus is seldom wider.
CANDIDATES = 256
# A longer top-k list is left to transformers.
_LONGEST_TOP_K = 2048
# Numbers handled at a time where every logit counts.
_CHUNK = 1 << 20

Cut: TypeAlias = hf.TopKLogitsWarper | hf.TopPLogitsWarper | hf.MinPLogitsWarper


class Truncation:
    """The end of a list of processors, where all that happens is scaling and cutting.

    Args:
        processors: temperature, top-k, top-p and min-p in any order.
        candidates: how many of the largest scores to look at.
    """

    def __init__(
        self, processors: Sequence[LogitsProcessor], *, candidates: int = CANDIDATES
    ) -> None:
        self.processors = list(processors)
        longest = [one.top_k for one in processors if isinstance(one, hf.TopKLogitsWarper)]
        self._candidates = max([candidates, *(k + candidates for k in longest)])

    def __call__(self, logits: Float[Tensor, "N V"]) -> NodeScores:
        """Scale and cut; what the processors would do wherever a node is not undecided."""
        values, ids = _largest(logits, min(self._candidates, logits.shape[1]))
        whole = values.shape[1] == logits.shape[1]
        undecided = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
        scale = 1.0
        for processor in self.processors:
            if isinstance(processor, hf.TemperatureLogitsWarper):
                values = values / processor.temperature
                scale *= processor.temperature
                continue
            total = _log_total(values, 1.0) if whole else _log_total(logits, scale)
            kept = _kept(cast(Cut, processor), values, total)
            if not whole:
                # Equals of the last candidate may stand outside of them.
                last = values[:, -1:]
                undecided |= (kept & (values == last) & (last > -torch.inf)).any(dim=-1)
            values = values.masked_fill(~kept, -torch.inf)
            whole = True
        return NodeScores(values, ids, logits.shape[1], undecided, partial(self._exact, logits))

    def _exact(self, logits: Float[Tensor, "N V"], node: int) -> Float[Tensor, " V"]:
        """One node as transformers' processors leave it; these look at no history."""
        scores, no_history = logits[node : node + 1].float(), torch.empty(1, 0, dtype=torch.int64)
        for processor in self.processors:
            scores = processor(cast(torch.LongTensor, no_history), scores)
        return scores[0]


def split_truncation(
    processors: Sequence[LogitsProcessor],
) -> tuple[list[LogitsProcessor], Truncation | None]:
    """The processors before the final scaling and cutting, and that; None if nothing is cut."""
    end = len(processors)
    while end > 0 and _is_scaling_or_cut(processors[end - 1]):
        end -= 1
    tail = processors[end:]
    if not any(isinstance(one, Cut) for one in tail):
        return list(processors), None
    return list(processors[:end]), Truncation(tail)


def _is_scaling_or_cut(processor: LogitsProcessor) -> bool:
    """Whether it is one of transformers' own four, set as `generate` sets them."""
    if type(processor) is hf.TemperatureLogitsWarper:
        return True
    if not isinstance(processor, Cut) or type(processor) not in get_args(Cut):
        return False
    longest = processor.top_k if isinstance(processor, hf.TopKLogitsWarper) else 0
    return processor.filter_value == -torch.inf and longest <= _LONGEST_TOP_K


def _largest(
    logits: Float[Tensor, "N V"], count: int
) -> tuple[Float[Tensor, "N K"], Int[Tensor, "N K"]]:
    """The largest logits in float32 and their ids, equals in order of id."""
    ids = logits.topk(count, dim=-1, sorted=False).indices.sort(dim=-1).values
    values, order = logits.gather(1, ids).float().sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _log_total(logits: Float[Tensor, "N K"], temperature: float) -> Float[Tensor, "N 1"]:
    """Logarithm of the summed weight of every row, in float32.

    A few rows at a time: on a CPU a copy of all of them in float32 costs more in fresh memory than
    the sums do.
    """
    rows = max(_CHUNK // logits.shape[1], 1)
    parts = [
        (part.float() / temperature).logsumexp(dim=-1, keepdim=True) for part in logits.split(rows)
    ]
    return torch.cat(parts)


def _kept(
    processor: Cut, values: Float[Tensor, "N K"], total: Float[Tensor, "N 1"]
) -> Bool[Tensor, "N K"]:
    """Which candidates a processor keeps, given the logarithm of the whole weight."""
    if isinstance(processor, hf.TopKLogitsWarper):
        place = min(processor.top_k, values.shape[1]) - 1
        return values >= values[:, place : place + 1]
    least = processor.min_tokens_to_keep
    if isinstance(processor, hf.TopPLogitsWarper):
        probs = (values - total).exp()
        kept = probs.cumsum(dim=-1) - probs < processor.top_p
    else:
        kept = (values - values[:, :1]).exp() >= processor.min_p
    kept[:, :least] = True
    return kept
