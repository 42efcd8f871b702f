import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tree.guessers import ROOT, same, sampled
from treespec.tree import TreeLimits, TreeTopology, grow

SAMPLED = ["iid", "swor", "iid_paths"]


class TestSampledSiblings:
    """Tokens that were drawn must stay: what competes for the budget is the place of a token."""

    @pytest.mark.parametrize("draw", SAMPLED)
    @given(seed=st.integers(0, 10**6), budget=st.integers(0, 12), width=st.integers(0, 3))
    def test_a_nodes_children_are_the_first_tokens_drawn_there(self, draw, seed, budget, width):
        guesser = sampled(seed)
        limits = TreeLimits(budget=budget, depth=4, width=width)
        tree = grow(guesser, [ROOT], [limits], draw=draw)[0].tree

        for node, below in enumerate(tree.topology.children):
            drawn = guesser.candidates(tree.path_tokens(node)[1:]).tokens
            assert [tree.token_list[child] for child in below] == list(drawn[: len(below)])

    @given(st.integers(0, 10**6), st.integers(0, 12), st.integers(0, 4), st.integers(0, 3))
    def test_budget_depth_and_width_are_kept(self, seed, budget, depth, width):
        limits = TreeLimits(budget=budget, depth=depth, width=width)
        tree = grow(sampled(seed), [ROOT], [limits], draw="swor")[0].tree

        assert len(tree) - 1 <= budget
        assert tree.topology.max_depth <= depth
        assert all(len(below) <= width for below in tree.topology.children)

    @given(st.integers(0, 10**6), st.integers(0, 12))
    def test_no_node_scores_above_its_parent(self, seed, budget):
        limits = TreeLimits(budget=budget, depth=4, width=3)
        tree = grow(sampled(seed), [ROOT], [limits], draw="swor")[0].tree

        parents = tree.scores[tree.topology.parents[1:]]
        assert (tree.scores[1:] <= parents).all()

    def test_a_place_does_not_compete_by_the_token_that_will_stand_there(self):
        """Two drafts that agree on what is drawn so far choose the same place next."""

        def shape(second):
            log_probs = [math.log(0.1), math.log(second)]
            limits = TreeLimits(budget=2, depth=2, width=2)
            return grow(same([1, 2], log_probs), [ROOT], [limits], draw="swor")[0].tree.topology

        assert shape(0.85) == shape(0.001)

    def test_mass_that_is_drawn_makes_the_next_place_less_worth(self):
        """After 0.9 of the mass is drawn at the root, its child's first place is worth more."""
        limits = TreeLimits(budget=2, depth=2, width=2)
        trees = [
            grow(same([1, 2], [math.log(p), math.log(0.05)]), [ROOT], [limits], draw="swor")[0].tree
            for p in (0.9, 0.1)
        ]

        assert [tree.topology for tree in trees] == [
            TreeTopology([-1, 0, 1]),
            TreeTopology([-1, 0, 0]),
        ]

    def test_nothing_is_drawn_where_no_mass_is_left(self):
        limits = TreeLimits(budget=9, depth=1, width=3)
        tree = grow(same([1, 2], [0.0, -5.0]), [ROOT], [limits], draw="swor")[0].tree

        assert tree.token_list == (ROOT, 1)

    def test_an_impossible_token_is_not_drawn(self):
        limits = TreeLimits(budget=9, depth=1, width=3)
        tree = grow(same([1, 2], [-0.5, -math.inf]), [ROOT], [limits], draw="swor")[0].tree

        assert tree.token_list == (ROOT, 1)

    def test_a_token_drawn_twice_stands_twice(self):
        limits = TreeLimits(budget=3, depth=1, width=3)
        tree = grow(same([4, 4, 4], [math.log(0.5)] * 3), [ROOT], [limits], draw="iid")[0].tree

        assert tree.token_list == (ROOT, 4, 4, 4)

    @pytest.mark.parametrize("draw", SAMPLED)
    def test_a_static_topology_is_filled_in_draw_order(self, draw):
        limits = TreeLimits(budget=2, depth=1, width=2, topology=TreeTopology([-1, 0, 0]))
        tree = grow(same([4, 7], [-2.0, -0.5]), [ROOT], [limits], draw=draw)[0].tree

        assert tree.token_list == (ROOT, 4, 7)
