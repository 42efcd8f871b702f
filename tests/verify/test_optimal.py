"""The bounds: scans over ordered sets find what trying all sets finds."""

import itertools
import random
from fractions import Fraction

import numpy as np
import pytest

from tests.verify.tables import SHAPES, SameEverywhere, fractions, random_pair, random_tables
from treespec.errors import ConfigError
from treespec.tree import TreeTopology
from treespec.verify.enumeration import every_draft, law_lookup
from treespec.verify.exact import fixed_tree_bound, optimal_acceptance
from treespec.verify.optimal import _inside_by_races, _inside_by_sets

pytestmark = pytest.mark.usefixtures("plain_calls")


def dual_over_all_sets(
    p: list[Fraction], q: list[Fraction], candidates: int, draw: str
) -> Fraction:
    """Min over H of 1 + p(H) - Pr[all candidates lie in H], by listing draws and sets."""
    topology = TreeTopology([-1] + [0] * candidates)
    drafts = [
        (set(draft.tree.token_list[1:]), draft.probability)
        for draft in every_draft(law_lookup({(): q}, "q"), topology, draw)
    ]
    tokens = range(len(p))
    return min(
        1 + sum(p[x] for x in chosen) - sum(w for drawn, w in drafts if drawn <= set(chosen))
        for size in range(len(p) + 1)
        for chosen in itertools.combinations(tokens, size)
    )


@pytest.mark.parametrize("kind", ["plain", "zeros", "ties", "apart"])
@pytest.mark.parametrize("draw", ["iid", "swor"])
@pytest.mark.parametrize(("size", "candidates"), [(2, 2), (3, 2), (4, 2), (4, 3)])
def test_the_scan_finds_the_minimum_over_all_sets(size: int, candidates: int, draw: str, kind: str):
    p, q = random_pair(random.Random(f"{size} {candidates}"), size, kind)

    expected = dual_over_all_sets(p, q, candidates, draw)
    assert expected == optimal_acceptance(p, q, candidates=candidates, draw=draw)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_the_scan_finds_the_minimum_over_all_sets_of_larger_laws(seed: int):
    generator = random.Random(seed)
    p, q = random_pair(generator, 5, generator.choice(["plain", "zeros", "ties"]))
    for candidates, draw in itertools.product((2, 3, 4), ("iid", "swor")):
        expected = dual_over_all_sets(p, q, candidates, draw)
        assert expected == optimal_acceptance(p, q, candidates=candidates, draw=draw)


@pytest.mark.parametrize("candidates", [1, 2, 4])
@pytest.mark.parametrize("sharpness", [0.5, 4.0])
def test_the_integral_over_arrival_times_is_the_sum_over_sets(candidates: int, sharpness: float):
    weights = np.random.default_rng(candidates).gamma(1 / sharpness, size=9) + 1e-6
    drawn = [Fraction(float(weight)) / Fraction(float(weights.sum())) for weight in weights]
    drawn = [weight / sum(drawn) for weight in drawn]
    exact = [float(chance) for chance in _inside_by_sets(drawn, candidates)]

    assert _inside_by_races([float(w) for w in drawn], candidates) == pytest.approx(
        exact, abs=1e-12
    )


@pytest.mark.parametrize("draw", ["iid", "swor"])
def test_floats_give_the_bound_of_the_fractions(draw: str):
    p, q = fractions("2/5 2/5 1/10 1/10"), fractions("1/10 1/5 3/10 2/5")
    exact = optimal_acceptance(p, q, candidates=2, draw=draw)
    found = optimal_acceptance([*map(float, p)], [*map(float, q)], candidates=2, draw=draw)

    assert found == pytest.approx(float(exact), abs=1e-12)


def test_the_bound_of_a_large_vocabulary_is_found():
    """Without replacement it is above that of independent draws, and below 1."""
    generator = np.random.default_rng(0)
    p, q = (generator.dirichlet(np.full(400, 0.1)).tolist() for _ in range(2))
    independent, distinct = (
        optimal_acceptance(p, q, candidates=4, draw=draw) for draw in ("iid", "swor")
    )

    assert sum(map(min, p, q)) < independent < distinct < 1


def test_more_candidates_than_the_draft_has_tokens_cover_its_support():
    p, q = fractions("1/2 1/4 1/4"), fractions("0 1/2 1/2")

    assert Fraction(1, 2) == optimal_acceptance(p, q, candidates=3, draw="swor")


@pytest.mark.parametrize(
    ("p", "q", "candidates", "draw", "message"),
    [
        ("1/2 1/2", "1", 1, "iid", "p has 2 entries and q 1"),
        ("1/2 1/3", "1/2 1/2", 1, "iid", r"adding up to 5/6; a law has no negative entry"),
        ("1/2 1/2", "3/2 -1/2", 1, "iid", r"q is \['3/2', '-1/2'\]"),
        ("1/2 1/2", "1/2 1/2", 0, "iid", "candidates must be at least 1, got 0"),
        ("1/2 1/2", "1/2 1/2", 1, "topk", "draws iid and swor, not for 'topk'"),
    ],
)
def test_what_is_no_question_is_refused(p: str, q: str, candidates: int, draw: str, message: str):
    with pytest.raises(ConfigError, match=message):
        optimal_acceptance(fractions(p), fractions(q), candidates=candidates, draw=draw)


def test_bound_of_a_tree_is_the_probability_of_its_paths():
    p_table, _ = random_tables(0, 2, 2)
    expected = p_table[()][0] + p_table[()][1] + p_table[()][0] * p_table[(0,)][1]

    assert expected == fixed_tree_bound(p_table, SHAPES["root2_first_deep"], [0, 0, 1, 1])


def test_bound_of_a_tree_counts_the_same_path_once():
    p_table = SameEverywhere(fractions("1/2 1/2"))

    assert Fraction(1, 2) == fixed_tree_bound(p_table, SHAPES["bin1"], [0, 1, 1])


def test_bound_of_a_tree_needs_no_law_below_what_is_impossible():
    p_table = {(): fractions("0 1")}

    assert fixed_tree_bound(p_table, SHAPES["chain2"], [0, 0, 1]) == 0


def test_bound_of_a_tree_wants_a_token_for_every_node():
    with pytest.raises(ConfigError, match="got 2 tokens for a topology of 3 nodes"):
        fixed_tree_bound(SameEverywhere(fractions("1")), SHAPES["bin1"], [0, 0])
