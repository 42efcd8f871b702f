"""Small models given as tables of rational laws, and the shapes that rules are tried on."""

import itertools
import json
import random
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from treespec.tree import TreeTopology
from treespec.verify.enumeration import LawTable
from treespec.verify.laws import Number

DATA = Path(__file__).parent / "data"

SHAPES: Mapping[str, TreeTopology] = {
    "single": TreeTopology([-1]),
    "chain1": TreeTopology([-1, 0]),
    "chain2": TreeTopology([-1, 0, 1]),
    "chain3": TreeTopology([-1, 0, 1, 2]),
    "bin1": TreeTopology([-1, 0, 0]),
    "triple": TreeTopology([-1, 0, 0, 0]),
    "2x1": TreeTopology([-1, 0, 0, 1, 2]),
    "2x2": TreeTopology([-1, 0, 0, 1, 2, 3, 4]),
    "3x1": TreeTopology([-1, 0, 0, 0, 1, 2, 3]),
    "bin2": TreeTopology([-1, 0, 0, 1, 1, 2, 2]),
    "root2_first_deep": TreeTopology([-1, 0, 0, 1]),
    "root2_second_deep": TreeTopology([-1, 0, 0, 2]),
    "ragged": TreeTopology([-1, 0, 0, 1, 1, 3]),
}


def load(name: str) -> dict[str, Any]:
    """One of the files of worked cases."""
    return json.loads((DATA / name).read_text(encoding="utf-8"))


def fractions(text: str) -> list[Fraction]:
    """A law written as fractions with blanks between them."""
    return [Fraction(weight) for weight in text.split()]


class SameEverywhere(dict[tuple[int, ...], Sequence[Number]]):
    """A table with one law for every prefix."""

    def __init__(self, law: Sequence[Number]) -> None:
        super().__init__()
        self.law = law

    def __missing__(self, prefix: tuple[int, ...]) -> Sequence[Number]:
        return self.law


def table(written: Mapping[str, str]) -> LawTable:
    """A table written as {prefix: law}, where "*" stands for every prefix."""
    if "*" in written:
        return SameEverywhere(fractions(written["*"]))
    return {tuple(map(int, prefix.split())): fractions(law) for prefix, law in written.items()}


def prefixes(vocab_size: int, depth: int) -> list[tuple[int, ...]]:
    """All prefixes of at most `depth` tokens."""
    return [
        prefix
        for length in range(depth + 1)
        for prefix in itertools.product(range(vocab_size), repeat=length)
    ]


def random_law(generator: random.Random, vocab_size: int, *, zeros: float = 0.0) -> list[Fraction]:
    """A law with a small denominator; each entry is 0 with probability `zeros`."""
    while True:
        weights = [
            0 if generator.random() < zeros else generator.randint(1, 6) for _ in range(vocab_size)
        ]
        if any(weights):
            return [Fraction(weight, sum(weights)) for weight in weights]


KINDS = ("plain", "zeros", "ties", "sure", "apart")


def random_pair(
    generator: random.Random, vocab_size: int, kind: str
) -> tuple[list[Fraction], list[Fraction]]:
    """A target's and a draft's law.

    Kinds: "plain", both everywhere positive; "zeros" in both; "ties", half the time the same law;
    "sure", laws of one token among others; "apart", mostly without a token in common.
    """
    zeros = {"plain": 0.0, "zeros": 0.4, "ties": 0.2, "sure": 0.5, "apart": 0.3}[kind]
    target = random_law(generator, vocab_size, zeros=zeros)
    draft = random_law(generator, vocab_size, zeros=zeros)
    if kind == "ties" and generator.random() < 0.5:
        draft = target
    if kind == "sure":
        sure = [Fraction(int(i == generator.randrange(vocab_size))) for i in range(vocab_size)]
        if sum(sure) == 1:
            target, draft = (sure, draft) if generator.random() < 0.5 else (target, sure)
    if kind == "apart" and generator.random() < 0.7:
        split = generator.randrange(1, vocab_size)
        target = random_law(generator, split) + [Fraction(0)] * (vocab_size - split)
        draft = [Fraction(0)] * split + random_law(generator, vocab_size - split)
    return target, draft


def random_tables(
    seed: int, vocab_size: int, depth: int, kind: str = "plain"
) -> tuple[LawTable, LawTable]:
    """A target and a draft model whose laws depend on the whole prefix."""
    generator = random.Random(f"{seed} {vocab_size} {kind}")
    pairs = {
        prefix: random_pair(generator, vocab_size, kind) for prefix in prefixes(vocab_size, depth)
    }
    return {k: p for k, (p, _) in pairs.items()}, {k: q for k, (_, q) in pairs.items()}
