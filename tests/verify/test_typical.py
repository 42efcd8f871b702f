"""Typical acceptance: its thresholds, the path it keeps, and what it reports."""

import math
from fractions import Fraction

import pytest
import torch

from tests.verify.tables import SHAPES, SameEverywhere, fractions
from treespec.errors import ConfigError
from treespec.sampling import RowNoise
from treespec.scores import NodeScores
from treespec.tree import TokenTree
from treespec.verify import Typical
from treespec.verify.enumeration import Draft
from treespec.verify.exact import law_of_drafts, output_law
from treespec.verify.laws import TableLaw


@pytest.mark.parametrize(
    ("law", "threshold", "passing"),
    [
        ([0.6, 0.3, 0.1], 0.09, [0, 1, 2]),
        ([0.25, 0.25, 0.25, 0.25], 0.075, [0, 1, 2, 3]),
        ([0.9, 0.05, 0.05], 0.09, [0]),
    ],
)
def test_threshold_is_epsilon_or_less_where_the_target_is_unsure(
    law: list[float], threshold: float, passing: list[int]
):
    found = Typical().threshold(TableLaw(law))

    assert found == pytest.approx(threshold)
    assert passing == [token for token, weight in enumerate(law) if weight > found]


def decide(tree: TokenTree, rows: list[list[float]]):
    """The acceptance of one tree with these target laws."""
    scores = torch.tensor(rows).log()
    (found,) = Typical().accept([tree], [NodeScores.of_all(scores)], [RowNoise(3)], [0])
    return found


def test_the_longest_plausible_path_is_kept_with_its_distance_from_sampling():
    tree = TokenTree.from_lists([-1, 0, 0, 2], [0, 0, 1, 1])
    found = decide(tree, [[0.6, 0.4], [0.5, 0.5], [0.3, 0.7], [0.5, 0.5]])

    assert found.path == (0, 2, 3)
    assert found.deviations == pytest.approx((0.6, 0.3))


def test_among_paths_of_one_length_the_most_probable_is_kept():
    tree = TokenTree.from_lists([-1, 0, 0], [0, 0, 1])

    assert decide(tree, [[0.4, 0.6], [0.5, 0.5], [0.5, 0.5]]).path == (0, 2)


def test_nothing_below_an_implausible_token_is_kept():
    tree = TokenTree.from_lists([-1, 0, 1], [0, 0, 1])
    found = decide(tree, [[0.05, 0.95], [0.1, 0.9], [0.5, 0.5]])

    assert (found.path, found.deviations) == ((0,), ())


def test_reported_deviation_is_the_bias_of_the_position():
    p_table = SameEverywhere(fractions("3/5 2/5"))
    tree = TokenTree.from_lists([-1, 0], [0, 0])
    found = law_of_drafts("typical", [Draft(tree, 1)], p_table, p_table, length=1)

    assert found.law == {(0,): 1}
    assert Fraction(2, 5) == found.total_variation(
        law_of_drafts("gumbel", [Draft(tree, 1)], p_table, p_table, length=1)
    )


def test_more_is_accepted_than_any_lossless_rule_could():
    p_table, q_table = SameEverywhere(fractions("3/5 2/5")), SameEverywhere(fractions("4/5 1/5"))
    found = output_law("typical", p_table, q_table, SHAPES["chain2"], draw="topk")

    assert found.expected_accepted == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be in"),
        ({"epsilon": 1.5}, "epsilon must be in"),
        ({"delta": 0.0}, "delta must be positive"),
        ({"delta": math.inf}, "delta must be positive"),
    ],
    ids=["no epsilon", "epsilon above 1", "no delta", "infinite delta"],
)
def test_settings_outside_their_range_are_refused(settings: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        Typical(**settings)
