"""Keyed randomness: reproducible, fine-grained, independent of everything else."""

import random
from fractions import Fraction

import pytest
import torch

from treespec.sampling import gumbel
from treespec.verify.laws import TableLaw
from treespec.verify.randomness import KeyedRandomness


class Constant(KeyedRandomness):
    """Always the same uniform number."""

    def __init__(self, value: float) -> None:
        super().__init__(0, 0)
        self.value = value

    def uniform(self) -> float:
        return self.value


def uniforms(count: int, *key) -> list[float]:
    """The first numbers of one stream."""
    stream = KeyedRandomness(*key)
    return [stream.uniform() for _ in range(count)]


def test_the_same_key_gives_the_same_numbers():
    assert uniforms(8, 3, 17) == uniforms(8, 3, 17)


@pytest.mark.parametrize("other", [(4, 17), (3, 18), (3, 17, "draft"), (-3, 17), (3 + 2**32, 17)])
def test_another_seed_position_or_purpose_gives_other_numbers(other: tuple):
    assert not set(uniforms(8, 3, 17)) & set(uniforms(8, *other))


def test_numbers_use_more_bits_than_a_float32_has():
    """2**24 u is an integer for every u of a coarser grid; 53 bits almost never give one."""
    assert not any((value * 2**24).is_integer() for value in uniforms(100, 1, 1))


def test_numbers_are_uniform_and_independent_of_their_neighbours():
    """Chi-squared over 8 x 8 cells of consecutive pairs; 63 degrees of freedom, 1 in 10**6: 125."""
    values = uniforms(12_800, 5, 9)
    counts = [[0] * 8 for _ in range(8)]
    for one, other in zip(values[::2], values[1::2], strict=True):
        counts[int(one * 8)][int(other * 8)] += 1
    statistic = sum((count - 100) ** 2 / 100 for row in counts for count in row)

    assert all(0 <= value < 1 for value in values)
    assert statistic < 125


def test_numbers_are_uncorrelated_with_the_shared_noise_of_the_same_position():
    """800 pairs have a correlation beyond 0.18 once in a million times."""
    seeds = range(800)
    ours = torch.tensor([KeyedRandomness(seed, 7).uniform() for seed in seeds])
    shared = torch.stack([gumbel(seed, 8, torch.tensor(0)) for seed in seeds])

    assert abs(torch.corrcoef(torch.stack([ours, shared]))[0, 1]) < 0.18


def test_what_is_impossible_is_never_accepted():
    assert not Constant(0.0).accept(0)
    assert not Constant(0.0).accept(0.0)


def test_what_is_certain_is_always_accepted():
    assert Constant(1 - 2.0**-53).accept(1)
    assert Constant(1 - 2.0**-53).accept(Fraction(7, 5))


def test_acceptance_and_choice_have_their_frequencies():
    """2,500 trials: six standard deviations are 0.06 at most."""
    law = TableLaw([Fraction(1, 5), Fraction(0), Fraction(4, 5)])
    stream = KeyedRandomness(random.Random(0).getrandbits(60), 12)
    accepted = sum(stream.accept(Fraction(3, 10)) for _ in range(2500))
    chosen = [stream.choose(law) for _ in range(2500)]

    assert accepted / 2500 == pytest.approx(0.3, abs=0.06)
    assert chosen.count(0) / 2500 == pytest.approx(0.2, abs=0.06)
    assert chosen.count(1) == 0
