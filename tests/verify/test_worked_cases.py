"""Worked cases: acceptance and mean accepted length known as exact fractions."""

from fractions import Fraction

import pytest

from tests.verify.tables import SHAPES, fractions, load, table
from treespec.verify.exact import acceptance, optimal_acceptance, output_law, target_law

pytestmark = pytest.mark.usefixtures("plain_calls")

ONE_POSITION = load("one_position.json")
SEVERAL = load("several_positions.json")


def label(case: list[object]) -> str:
    """Everything but the result."""
    return "-".join(map(str, case[:4]))


def is_exact(value: str) -> bool:
    """Whether a case gives a fraction; the others are optima that are irrational."""
    return "." not in value


@pytest.mark.parametrize("case", ONE_POSITION["cases"], ids=label)
def test_acceptance_of_one_position_is_the_worked_one(case: list):
    name, rule, draw, candidates, expected = case[:5]
    law = ONE_POSITION["laws"][name]
    p, q = fractions(law["p"]), fractions(law["q"])
    if rule == "optimal":
        found = optimal_acceptance(p, q, candidates=candidates, draw=draw)
    else:
        found = acceptance(rule, p, q, candidates=candidates, draw=draw)

    if is_exact(expected):
        assert Fraction(expected) == found
    else:
        assert float(expected) == pytest.approx(float(found), abs=1e-9)


@pytest.mark.parametrize("case", SEVERAL["cases"], ids=label)
def test_mean_accepted_length_is_the_worked_one_and_the_output_is_the_targets(case: list):
    name, rule, draw, shape, expected = case
    p_table = table(SEVERAL["laws"][name]["p"])
    q_table = table(SEVERAL["laws"][name]["q"])
    topology = SHAPES[shape]
    found = output_law(rule, p_table, q_table, topology, draw=draw)

    assert Fraction(expected) == found.expected_accepted
    assert target_law(p_table, topology.max_depth + 1).law == found.law
