"""The matrix of greedy decoding: families, attention implementations, drafters and layouts."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import torch

from tests.families import VOCAB, Family, tiny_model
from tests.rig import DRAFTERS, SHAPES, Batch, NearTies, Plain, plain_greedy, random_prompts
from treespec import BestFirst, DecodeStats, StaticTree, TreeDecoder

NEW_TOKENS = 64
# The longest is longer than every family's window, the shortest is shorter.
PROMPTS = random_prompts([19, 12, 7, 3], VOCAB)
LAYOUTS = ("single", "left", "right")
TREES: dict[str, StaticTree | BestFirst] = {
    **SHAPES,
    "best_first": BestFirst(budget=11, depth=5, width=3),
}
# One case in so many runs by default.
SHARE = 10


@dataclass(frozen=True)
class Case:
    """One entry of the matrix.

    Attributes:
        family: whose tiny model is the target.
        attention: its attention implementation.
        drafter: one of `DRAFTERS`.
        layout: one prompt, or all of them with their padding on this side.
    """

    family: Family
    attention: str
    drafter: str
    layout: str

    @property
    def name(self) -> str:
        """A name that no other case has."""
        return f"{self.family.name}-{self.attention}-{self.drafter}-{self.layout}"

    @property
    def digest(self) -> int:
        """A number that depends on the name only."""
        return zlib.crc32(self.name.encode())

    @property
    def tree(self) -> StaticTree | BestFirst:
        """Each case has one of the shapes, so that every family meets several."""
        return list(TREES.values())[self.digest // SHARE % len(TREES)]

    @property
    def batch(self) -> Batch:
        """The prompts."""
        if self.layout == "single":
            return Batch(PROMPTS.prompts[:1])
        return Batch(PROMPTS.prompts, self.layout)


def cases_of(family: Family, attentions: tuple[str, ...]) -> list[Case]:
    """All cases of a family on these attention implementations."""
    return [
        Case(family, attention, drafter, layout)
        for attention, drafter, layout in product(attentions, DRAFTERS, LAYOUTS)
    ]


def default_share(cases: list[Case]) -> Iterator[Case]:
    """A fixed tenth of a family's cases, and at least one."""
    chosen = [case for case in cases if case.digest % SHARE == 0]
    yield from chosen or [min(cases, key=lambda case: case.digest)]


@lru_cache(maxsize=8)
def plain_texts(family: Family, attention: str) -> list[Plain]:
    """What the family's tiny model says to the prompts."""
    return plain_greedy(tiny_model(family, attention), PROMPTS, NEW_TOKENS)


def run_case(case: Case, near_ties: NearTies) -> list[DecodeStats]:
    """Decode with trees and compare with plain decoding.

    Raises:
        AssertionError: if the text differs anywhere but at a near-tie, or the prompt block was
            not returned as given.
    """
    batch = case.batch
    plain = plain_texts(case.family, case.attention)[: len(batch.prompts)]
    drafter = DRAFTERS[case.drafter]([one.tokens for one in plain])
    decoder = TreeDecoder(tiny_model(case.family, case.attention), drafter, tree=case.tree)
    output = decoder.generate(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
    )
    assert torch.equal(output.sequences[:, : batch.width], batch.input_ids)
    for row, one in enumerate(plain):
        near_ties.check(one, output.sequences[row, batch.width :].tolist(), f"row {row}")
    return output.stats
