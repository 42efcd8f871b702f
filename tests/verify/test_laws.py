"""Laws as tensors and as plain numbers: the same operations, the same answers."""

import math
import random
from fractions import Fraction

import pytest
import torch

from tests.verify.tables import fractions, random_law
from treespec.verify.laws import Law, TableLaw, TensorLaw

LEFT, RIGHT = fractions("1/2 0 1/3 1/6"), fractions("1/4 1/4 1/2 0")


def tensor_law(weights: list[Fraction]) -> TensorLaw:
    """The same law as a tensor."""
    return TensorLaw(torch.tensor([float(w) for w in weights], dtype=torch.float64))


def numbers(law: Law) -> list[float]:
    """All weights as floats."""
    return [float(law[token]) for token in range(4)]


OPERATIONS = {
    "minus": lambda a, b: a.minus(b),
    "minus, the other way": lambda a, b: b.minus(a),
    "minimum": lambda a, b: a.minimum(b),
    "scaled": lambda a, b: a.scaled(Fraction(1, 3)),
    "without": lambda a, b: a.without(2),
    "normalized": lambda a, b: a.without(2).normalized(),
    "point": lambda a, b: a.point(3),
    "nothing left": lambda a, b: a.minus(a).normalized(),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_both_kinds_of_law_agree(operation):
    table = operation(TableLaw(LEFT), TableLaw(RIGHT))
    tensor = operation(tensor_law(LEFT), tensor_law(RIGHT))

    assert numbers(table) == pytest.approx(numbers(tensor))
    assert float(table.total()) == pytest.approx(tensor.total())
    assert [token for token, _ in table.support()] == [token for token, _ in tensor.support()]


def test_operations_leave_their_operands_alone():
    law, other = tensor_law(LEFT), tensor_law(RIGHT)
    for made in (law.minus(other), law.without(0), law.scaled(2), law.minimum(other)):
        made.weights.fill_(7.0)

    assert numbers(tensor_law(LEFT)) == numbers(law)
    assert numbers(tensor_law(RIGHT)) == numbers(other)


@pytest.mark.parametrize("kind", [TableLaw, tensor_law])
def test_quantiles_cut_the_unit_interval_by_weight(kind):
    law = kind(LEFT)
    found = {level: law.quantile(level) for level in (0.0, 0.49, 0.51, 0.83, 0.84, 0.999)}

    assert found == {0.0: 0, 0.49: 0, 0.51: 2, 0.83: 2, 0.84: 3, 0.999: 3}


@pytest.mark.parametrize("kind", [TableLaw, tensor_law])
def test_quantile_never_gives_a_token_without_weight(kind):
    law = kind([Fraction(0), Fraction(1, 3), Fraction(0), Fraction(2, 3), Fraction(0)])
    highest = math.nextafter(1.0, 0.0)

    assert {1, 3} == {law.quantile(k / 30 if k < 30 else highest) for k in range(31)}


@pytest.mark.parametrize("kind", [TableLaw, tensor_law])
def test_quantile_does_not_need_weights_that_add_up_to_one(kind):
    doubled = kind([2 * weight for weight in LEFT])

    assert kind(LEFT).quantile(0.6) == doubled.quantile(0.6)


def test_tensor_law_of_logits_is_their_softmax_in_double_precision():
    logits = torch.tensor([0.0, -math.inf, math.log(3.0)])
    law = TensorLaw.from_logits(logits)

    assert law.weights.dtype is torch.float64
    assert law.weights.tolist() == pytest.approx([0.25, 0.0, 0.75], abs=1e-7)
    assert law[1] == 0


def test_declared_probabilities_are_normalised_in_double_precision_over_the_targets_vocabulary():
    law = TensorLaw.from_probs(torch.tensor([0.3, 0.1]), 4, torch.device("cpu"))

    assert law.weights.tolist() == pytest.approx([0.75, 0.25, 0.0, 0.0], abs=1e-7)
    assert law.total() == pytest.approx(1.0, abs=1e-15)


def test_table_law_of_ints_stays_rational():
    assert Fraction(1, 3) == TableLaw([1, 2]).normalized()[0]


@pytest.mark.parametrize("seed", range(3))
def test_entropy_is_that_of_the_definition(seed: int):
    law = random_law(random.Random(seed), 4, zeros=0.3)
    expected = -sum(float(w) * math.log(w) for w in law if w > 0)

    assert TableLaw(law).entropy() == pytest.approx(expected)
    assert tensor_law(law).entropy() == pytest.approx(expected)


def test_rounding_finds_the_simple_fraction_that_a_float_stands_for():
    assert Fraction(7, 5) == TableLaw(LEFT).rounded(1.4 + 1e-15)
