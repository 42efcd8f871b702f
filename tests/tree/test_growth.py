import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tree.guessers import (
    ROOT,
    Guesser,
    grown,
    imagined,
    listed,
    nodes_of,
    path_of,
    same,
)
from treespec.tree import BestFirst, Candidates, TreeLimits, TreeTopology, grow


def universe(guesser: Guesser, *, depth: int, width: int) -> dict[tuple[int, ...], float]:
    """Score of every path within the limits."""
    scores = {(): 0.0}
    paths = [()]
    for path in paths:  # grows while it is walked
        if len(path) < depth:
            found = guesser.candidates(path)
            for token, log_prob in list(zip(found.tokens, found.log_probs, strict=True))[:width]:
                scores[*path, token] = scores[path] + log_prob
                paths.append((*path, token))
    return scores


def best_sum(scores: Mapping[tuple[int, ...], float], budget: int) -> float:
    """The most expected accepted tokens of any connected subtree, by trying them all."""
    trees = reached = {frozenset({()})}
    for _ in range(budget):
        reached = {
            tree | {path}
            for tree in reached
            for path in scores
            if path not in tree and path[:-1] in tree
        }
        trees = trees | reached
    return max(sum(math.exp(scores[path]) for path in tree) for tree in trees)


class TestBestFirst:
    @given(st.integers(0, 10**6), st.integers(0, 4), st.integers(0, 3), st.integers(0, 3))
    def test_no_connected_subtree_within_the_limits_is_worth_more(self, seed, budget, depth, width):
        guesser = imagined(seed)
        tree = grown(guesser, budget=budget, depth=depth, width=width)

        best = best_sum(universe(guesser, depth=depth, width=width), budget)
        assert sum(map(math.exp, tree.scores.tolist())) == pytest.approx(best)

    @given(st.integers(0, 10**6), st.integers(0, 20), st.integers(0, 4), st.integers(0, 3))
    def test_budget_depth_and_width_are_kept_and_the_budget_is_used(
        self, seed, budget, depth, width
    ):
        guesser = imagined(seed)
        tree = grown(guesser, budget=budget, depth=depth, width=width)

        available = len(universe(guesser, depth=depth, width=width)) - 1
        assert len(tree) - 1 == min(budget, available)
        assert tree.topology.max_depth <= depth
        assert all(len(below) <= width for below in tree.topology.children)

    @given(st.integers(0, 10**6), st.integers(0, 20))
    def test_scores_add_up_along_the_path(self, seed, budget):
        guesser = imagined(seed)
        tree = grown(guesser, budget=budget, depth=4)

        everything = universe(guesser, depth=4, width=3)
        assert all(everything[path] == score for path, score in nodes_of(tree).items())

    @given(st.integers(0, 10**6), st.integers(0, 20))
    def test_a_smaller_budget_gives_a_part_of_the_larger_tree(self, seed, budget):
        smaller = grown(imagined(seed), budget=budget, depth=4)
        larger = grown(imagined(seed), budget=budget + 1, depth=4)

        assert nodes_of(smaller).items() <= nodes_of(larger).items()

    @given(st.integers(0, 10**6), st.integers(0, 20))
    def test_nodes_stand_level_by_level_and_siblings_as_they_were_ranked(self, seed, budget):
        tree = grown(imagined(seed), budget=budget, depth=4)

        assert list(tree.topology.depth_list) == sorted(tree.topology.depth_list)
        for below in tree.topology.children:
            scores = [float(tree.scores[node]) for node in below]
            assert scores == sorted(scores, reverse=True)

    def test_sure_tokens_are_taken_in_order_of_creation(self):
        """Ties must not let a child in without its parent."""
        tree = grown(same([1, 2], [0.0, 0.0]), budget=5)

        assert tree.topology == TreeTopology([-1, 0, 0, 1, 1, 2])
        assert tree.token_list == (ROOT, 1, 2, 1, 2, 1)

    def test_a_sure_chain_goes_as_deep_as_the_budget(self):
        assert grown(same([1], [0.0]), budget=31).topology.parents.tolist() == list(range(-1, 31))

    def test_a_deep_node_beats_a_shallow_one_that_is_less_likely(self):
        tree = grown(same([1, 2], [-0.1, -1.0]), budget=3)

        assert nodes_of(tree).keys() - {()} == {(1,), (1, 1), (1, 1, 1)}

    @pytest.mark.parametrize("limit", ["budget", "depth", "width"])
    def test_a_limit_of_zero_gives_the_root_alone(self, limit):
        tree = grown(same([1], [-0.5]), **{"budget": 5, "depth": 5, "width": 5, limit: 0})

        assert tree.token_list == (ROOT,)

    @pytest.mark.parametrize("limit", ["budget", "depth"])
    def test_without_anything_to_grow_nothing_is_asked(self, limit):
        guesser = same([1], [-0.5])
        grown(guesser, **{limit: 0})

        assert guesser.frontiers == []

    def test_a_chain_asks_no_further_than_its_budget(self):
        """A node that can have no child that fits must not cost a draft forward."""
        guesser = same([1, 2], [-0.5, -1.0])
        grown(guesser, budget=4, width=1)

        assert guesser.frontiers == [[[0]], [[1]], [[2]], [[3]]]

    def test_nodes_that_cannot_lead_into_the_tree_are_not_expanded(self):
        guesser = same([1, 2], [-0.5, -1.0])
        grown(guesser, budget=2)

        # of the root's two children the second is the worst of the best two
        assert guesser.frontiers == [[[0]], [[1]]]

    def test_limits_beyond_what_there_is_take_everything(self):
        words = {(): Candidates([1, 2], [-1.0, -2.0]), (2,): Candidates([3], [-1.0])}

        assert nodes_of(grown(listed(words))).keys() == {(), (1,), (2,), (2, 3)}

    @pytest.mark.parametrize("end", [-math.inf, math.nan])
    def test_an_impossible_candidate_ends_the_list(self, end):
        tree = grown(same([1, 2, 3], [-0.5, end, end]), depth=1)

        assert tree.token_list == (ROOT, 1)

    def test_an_estimate_above_certainty_counts_as_certainty(self):
        """Rounding may lift a probability above 1; no child may outscore its parent."""
        tree = grown(same([1], [1e-6]), budget=2)

        assert tree.scores.tolist() == [0.0, 0.0, 0.0]


class TestRows:
    def test_rows_grow_together_each_within_its_own_limits(self):
        guesser = same([1, 2], [-0.5, -1.0])
        limits = [
            TreeLimits(budget=2, depth=2, width=1),
            TreeLimits(budget=0, depth=9, width=9),
            TreeLimits(budget=9, depth=1, width=2),
        ]
        results = grow(guesser, [5, 6, 7], limits, draw="shared")

        assert [result.tree.token_list for result in results] == [(5, 1, 1), (6,), (7, 1, 2)]
        assert guesser.frontiers == [[[0], [], [0]], [[1], [], []]]

    def test_a_row_does_not_depend_on_its_neighbours(self):
        limits = [BestFirst(budget=budget).limits(depth=4) for budget in (3, 8, 1)]
        together = grow(imagined(7), [1, 2, 3], limits, draw="topk")
        alone = [
            grow(imagined(7), [root], [limit], draw="topk")[0]
            for root, limit in zip([1, 2, 3], limits, strict=True)
        ]

        assert [nodes_of(r.tree) for r in together] == [nodes_of(r.tree) for r in alone]

    def test_draw_and_source_are_written_into_the_tree(self):
        limits = BestFirst(budget=2).limits(depth=2)
        tree = grow(same([1], [0.0]), [ROOT], [limits], draw="shared", source=4)[0].tree

        assert (tree.draw, tree.sources.tolist()) == ("shared", [0, 4, 4])

    @given(st.integers(0, 10**6), st.integers(0, 12))
    def test_origins_say_which_growing_node_each_node_was(self, seed, budget):
        watched = []
        guesser = imagined(seed)

        class Watching:
            def expand(self, trees, frontiers):
                watched[:] = trees
                return guesser.expand(trees, frontiers)

        limits = TreeLimits(budget=budget, depth=4, width=3)
        result = grow(Watching(), [ROOT], [limits], draw="topk")[0]

        for node, origin in enumerate(result.origins) if watched else []:
            assert result.tree.path_tokens(node)[1:] == path_of(watched[0], origin)
