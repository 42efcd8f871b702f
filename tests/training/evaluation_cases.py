"""Heads whose ranks are known at every place of a text, texts of tiny targets, and real heads."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.families import VOCAB, build, family, tiny_model
from tests.heads.eagle_cases import head_of
from tests.heads.reference import randomise, tiny_layer
from tests.heads.scripted import ScriptedHeads
from tests.rig import plain_greedy, random_prompts
from treespec import BestFirst, Chain, StaticTree
from treespec.heads import DraftHeads, HydraConfig, HydraHeads, MedusaConfig, MedusaHeads
from treespec.training.passages import Passage

SMALL_VOCAB = 31  # few tokens, so that trees of random heads are often right by chance
NEW = 30
SHAPES = {
    "chain": Chain(3),
    "tree": BestFirst(budget=24, depth=3, width=6),
    "static": StaticTree([[0], [1], [2], [0, 0], [1, 0], [1, 1], [2, 0], [1, 1, 0]]),
}
KINDS = ("medusa", "hydra", "1", "3", "3_repeated_taps")


class KnownHeads(ScriptedHeads):
    """Heads that rank the token behind a place where `rank_at` says; None for never."""

    def __init__(
        self,
        target: PreTrainedModel,
        texts: Sequence[Sequence[int]],
        rank_at: Callable[[int], int | None],
    ) -> None:
        super().__init__(target, texts, [None] * len(texts))
        self.rank_at = rank_at

    def say(self, row: int, position: int) -> Tensor:
        self.ranks[row] = self.rank_at(position)
        return super().say(row, position)


def known_heads(passages: Sequence[Passage], rank_at: Callable[[int], int | None]) -> KnownHeads:
    """Heads that know these passages."""
    return KnownHeads(llama(), [one.tokens.tolist() for one in passages], rank_at)


def llama() -> PreTrainedModel:
    """A target of 97 tokens; shared, so do not change it."""
    return tiny_model(family("llama"), "sdpa")


@lru_cache(maxsize=1)
def small_target() -> PreTrainedModel:
    """A target of 31 tokens; shared, so do not change it."""
    return build(family("llama"), "sdpa", vocab_size=SMALL_VOCAB)


def random_passages(lengths: Sequence[int], start: int = 4, *, ended: bool = False):
    """Random texts for scripted heads; whose they are does not matter."""
    generator = torch.Generator().manual_seed(3)
    return [
        Passage(torch.randint(1, VOCAB, (length,), generator=generator), start, ended)
        for length in lengths
    ]


@lru_cache(maxsize=4)
def greedy_passages(
    lengths: tuple[int, ...] = (7, 1, 5, 12, 3, 9, 6, 4), new: int = NEW
) -> list[Passage]:
    """What the small target says to prompts of these lengths."""
    texts = plain_greedy(small_target(), random_prompts(lengths, SMALL_VOCAB), new)
    return [
        Passage(torch.tensor(text.tokens), length, False)
        for text, length in zip(texts, lengths, strict=True)
    ]


def real_heads(kind: str, target: PreTrainedModel | None = None) -> DraftHeads:
    """Heads with random weights for the small target."""
    target = target or small_target()
    if kind == "medusa":
        heads: DraftHeads = MedusaHeads(
            MedusaConfig(num_heads=3, hidden_size=32, lm_head="each"), target
        )
    elif kind == "hydra":
        sizes = HydraConfig(
            num_heads=3,
            num_layers=2,
            hidden_size=32,
            prefix=tiny_layer(),
            lm_head="each",
            lm_head_bias=True,
        )
        heads = HydraHeads(sizes, target)
    else:
        return head_of(kind, target)
    randomise(heads)
    return heads
