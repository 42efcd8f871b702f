"""What decoding with heads really gives: the acceptance length that simulations stand for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from treespec.decoder import TreeDecoder
from treespec.heads.base import DraftHeads
from treespec.heads.drafter import HeadDrafter
from treespec.stats import DecodeStats
from treespec.training.padding import left_padded
from treespec.training.passages import Passage
from treespec.training.results import TreeRates
from treespec.training.simulate import Walk
from treespec.tree.shapes import BestFirst, StaticTree


@dataclass(frozen=True, slots=True)
class Decoded:
    """Prompts and the target's own greedy answers to them.

    Attributes:
        passages: those with something to guess, in the order of the prompts.
        rates: what it took to decode all of them.
    """

    passages: tuple[Passage, ...]
    rates: TreeRates


def decode(
    target: PreTrainedModel,
    heads: DraftHeads,
    prompts: Sequence[Int[Tensor, " _L"]],
    shape: BestFirst | StaticTree,
    *,
    name: str,
    max_new_tokens: int,
    rows: int = 8,
    on_batch: Callable[[int], None] | None = None,
) -> Decoded:
    """Decode prompts greedily with heads; the text is what the target alone would say.

    Args:
        target: the model.
        heads: that draft for it.
        prompts: token ids, int64.
        shape: of the trees.
        name: of the shape.
        max_new_tokens: of every answer.
        rows: prompts that are decoded side by side.
        on_batch: called with the number of prompts done.
    """
    decoder = TreeDecoder(target, HeadDrafter(heads), tree=shape)
    passages: list[Passage] = []
    stats: list[DecodeStats] = []
    for start in range(0, len(prompts), rows):
        batch = [prompt.cpu() for prompt in prompts[start : start + rows]]
        block, mask = left_padded(batch)
        output = decoder.generate(
            block.to(target.device),
            attention_mask=mask.to(target.device),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            pad_token_id=0,  # rows end where their counts say, whatever stands behind
        )
        stats += output.stats
        answers = output.sequences[:, block.shape[1] :].cpu()
        for prompt, answer, counts in zip(batch, answers, output.stats, strict=True):
            text = torch.cat([prompt, answer[: counts.emitted]])
            if counts.emitted >= 2:
                ended = counts.finish_reason == "eos"
                passages.append(Passage(text, len(prompt), ended))
        if on_batch is not None:
            on_batch(len(batch))
    return Decoded(tuple(passages), _rates_of_stats(name, stats))


def rates_of(name: str, walks: Sequence[Walk]) -> TreeRates:
    """What walks through several passages come to."""
    accepted = [count for walk in walks for count in walk.accepted]
    return TreeRates(
        name=name,
        steps=len(accepted),
        tokens=sum(sum(walk.lengths) for walk in walks),
        drafted=sum(walk.drafted for walk in walks),
        accepted_by_depth=tuple(
            sum(one >= depth for one in accepted)
            for depth in range(1, max(accepted, default=0) + 1)
        ),
    )


def _rates_of_stats(name: str, stats: Sequence[DecodeStats]) -> TreeRates:
    by_depth = zip_longest(*(one.accepted_by_depth for one in stats), fillvalue=0)
    return TreeRates(
        name=name,
        steps=sum(one.steps for one in stats),
        tokens=sum(one.emitted - 1 for one in stats),
        drafted=sum(one.drafted for one in stats),
        accepted_by_depth=tuple(sum(counts) for counts in by_depth),
    )
