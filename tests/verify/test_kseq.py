"""K-SEQ's damping: the least that leaves a residual, for every number of candidates."""

import random
from fractions import Fraction

import pytest
import torch

from tests.verify.tables import SHAPES, SameEverywhere, fractions, load, random_law
from treespec.verify.exact import output_law
from treespec.verify.kseq import smallest_rho
from treespec.verify.laws import TableLaw, TensorLaw

pytestmark = pytest.mark.usefixtures("plain_calls")

WORKED = load("one_position.json")
WITH_RHO = [case for case in WORKED["cases"] if case[1] == "kseq" and len(case) == 6]


def one_passes(p: TableLaw, q: TableLaw, count: int, rho: Fraction) -> tuple[Fraction, Fraction]:
    """Probability that one of the candidates passes, and beta."""
    beta = q.minimum(p.scaled(1 / rho)).total()
    return 1 - (1 - beta) ** count, beta


@pytest.mark.parametrize("case", WITH_RHO, ids=lambda case: case[0])
def test_least_damping_is_the_worked_one(case: list):
    name, _, _, count, _, expected = case
    p, q = (TableLaw(fractions(WORKED["laws"][name][law])) for law in "pq")
    found = smallest_rho(p, q, count)

    if "." in expected:
        assert float(found) == pytest.approx(float(expected), abs=1e-9)
    else:
        assert Fraction(expected) == found


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(6))
def test_damping_leaves_a_residual_and_no_less_would(seed: int, count: int):
    generator = random.Random(seed)
    p, q = (TableLaw(random_law(generator, 4, zeros=0.2)) for _ in range(2))
    rho = smallest_rho(p, q, count)
    passes, beta = one_passes(p, q, count, rho)
    less = rho - Fraction(1, 10**6)
    passes_less, beta_less = one_passes(p, q, count, less)

    assert 1 <= rho <= count or beta == 0
    assert passes <= rho * beta
    assert rho == 1 or beta == 0 or passes_less > less * beta_less


@pytest.mark.parametrize("count", [2, 4, 8])
def test_damping_of_a_large_vocabulary_is_found_on_tensors(count: int):
    generator = torch.Generator().manual_seed(count)
    p, q = (
        TensorLaw.from_logits(3 * torch.randn(5000, generator=generator, dtype=torch.float64))
        for _ in range(2)
    )
    rho = smallest_rho(p, q, count)
    beta = q.minimum(p.scaled(1 / rho)).total()

    assert 1 <= rho <= count
    assert 1 - (1 - beta) ** count == pytest.approx(rho * beta, rel=1e-12)


def test_equal_laws_need_no_damping():
    law = TableLaw(fractions("1/2 1/3 1/6"))

    assert smallest_rho(law, law, 4) == 1


def test_damping_is_found_anew_for_the_paths_that_still_agree():
    """Two paths, one of which has left: the other is judged like a single candidate."""
    p, q = fractions("1/3 2/3"), fractions("2/3 1/3")
    p_table, q_table = SameEverywhere(p), SameEverywhere(q)
    found = output_law("kseq", p_table, q_table, SHAPES["2x1"], draw="iid_paths")
    first = output_law("kseq", p_table, q_table, SHAPES["bin1"], draw="iid_paths")

    # acceptance of one candidate is 2/3, of two what `first` says, whatever came before
    single, double = Fraction(2, 3), first.expected_accepted
    agree = agreeing_first_step(p, q)
    expected = double + agree * double + (double - agree) * single
    assert float(found.expected_accepted) == pytest.approx(float(expected), abs=1e-12)


def agreeing_first_step(p: list[Fraction], q: list[Fraction]) -> Fraction:
    """Probability that both paths draw the same first token and it is accepted."""
    rho = smallest_rho(TableLaw(p), TableLaw(q), 2)
    passing = [min(Fraction(1), weight / (rho * drawn)) for weight, drawn in zip(p, q, strict=True)]
    return sum(drawn**2 * (1 - (1 - passes) ** 2) for passes, drawn in zip(passing, q, strict=True))
