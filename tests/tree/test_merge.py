import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import token_trees
from treespec.errors import ConfigError, InvalidTreeError
from treespec.tree import TokenTree, TreeTopology, merge

ROOT = 3
HUGE = 10**9

inputs = st.lists(token_trees(root=ROOT, max_size=8), min_size=1, max_size=3)
budgets = st.integers(0, 20)


def tree_of(parents, tokens, scores, **rest) -> TokenTree:
    """A tree below the common root, from its nodes without the root."""
    return TokenTree.from_lists([-1, *parents], [ROOT, *tokens], scores=[0.0, *scores], **rest)


def paths_of(tree: TokenTree) -> list[tuple[int, ...]]:
    """Path of tokens of each node."""
    return [tree.path_tokens(node) for node in range(len(tree))]


def scores_of(tree: TokenTree) -> dict[tuple[int, ...], float]:
    """Score of each path of tokens."""
    return dict(zip(paths_of(tree), tree.scores.tolist(), strict=True))


# "the" -> "cat" -> "sat", against "the" -> "dog", and "the" -> "cat" -> "ran"
LONG = tree_of([0, 1], [10, 11], [-0.5, -1.0])
BROAD = tree_of([0, 0, 1], [10, 20, 12], [-0.75, -1.5, -2.0])


class TestNodes:
    def test_the_same_token_below_the_same_parent_becomes_one_node(self):
        tree = merge([LONG, BROAD], budget=HUGE).tree

        assert paths_of(tree) == [(ROOT,), (ROOT, 10), (ROOT, 10, 11), (ROOT, 20), (ROOT, 10, 12)]

    def test_the_same_token_below_different_parents_stays_apart(self):
        left = tree_of([0, 1], [10, 12], [-0.5, -1.0])
        right = tree_of([0, 1], [11, 12], [-0.5, -1.0])

        assert len(merge([left, right], budget=HUGE).tree) == 5

    @given(inputs)
    def test_a_budget_for_all_gives_the_union(self, trees):
        merged = merge(trees, budget=HUGE).tree

        assert len(merged) == len(set(paths_of(merged)))
        assert set(paths_of(merged)) == {path for tree in trees for path in paths_of(tree)}

    @given(inputs)
    def test_a_node_scores_what_its_most_confident_source_says(self, trees):
        scores = scores_of(merge(trees, budget=HUGE).tree)

        for path, score in scores.items():
            assert score == max(scores_of(t)[path] for t in trees if path in scores_of(t))

    @given(inputs)
    def test_sources_tell_which_inputs_proposed_a_node(self, trees):
        merged = merge(trees, budget=HUGE).tree

        for path, bits in list(zip(paths_of(merged), merged.sources.tolist(), strict=True))[1:]:
            proposed = [path in paths_of(tree) for tree in trees]
            assert bits == sum(1 << source for source, does in enumerate(proposed) if does)
        assert merged.sources[0] == 0

    @given(token_trees())
    def test_a_tree_merged_with_itself_is_the_same_tree(self, tree):
        merged = merge([tree, tree], budget=len(tree) - 1).tree

        assert scores_of(merged) == scores_of(tree)
        assert set(merged.sources.tolist()[1:]) <= {0b11}

    @given(inputs)
    def test_the_order_of_the_inputs_does_not_change_the_nodes(self, trees):
        forwards = merge(trees, budget=HUGE).tree
        backwards = merge(trees[::-1], budget=HUGE).tree

        assert scores_of(forwards) == scores_of(backwards)

    def test_the_inputs_own_sources_are_not_mixed_in(self):
        inner = tree_of([0], [10], [-0.5], source=0b10)

        assert merge([LONG, inner], budget=HUGE).tree.sources.tolist() == [0, 0b11, 0b01]


class TestBudget:
    @given(inputs, budgets)
    def test_the_budget_is_kept_and_used(self, trees, budget):
        everything = merge(trees, budget=HUGE).tree

        assert len(merge(trees, budget=budget).tree) == min(budget + 1, len(everything))

    @given(inputs, budgets)
    def test_no_node_left_out_scores_above_one_kept(self, trees, budget):
        everything = merge(trees, budget=HUGE).tree
        kept = merge(trees, budget=budget).tree

        dropped = scores_of(everything).keys() - scores_of(kept).keys()
        worst = min(kept.scores.tolist())
        assert all(scores_of(everything)[path] <= worst for path in dropped)

    @given(inputs, budgets)
    def test_a_smaller_budget_gives_the_first_nodes_of_a_larger_one(self, trees, budget):
        everything = merge(trees, budget=HUGE).tree
        kept = merge(trees, budget=budget).tree

        assert paths_of(kept) == paths_of(everything)[: budget + 1]

    @given(inputs, budgets)
    def test_every_kept_node_keeps_its_ancestors(self, trees, budget):
        """Also where a child scores exactly what its parent does."""
        kept = set(paths_of(merge(trees, budget=budget).tree))

        assert all(path[:-1] in kept for path in kept if len(path) > 1)

    def test_among_equals_the_shallower_and_then_the_earlier_node_is_kept(self):
        deep = tree_of([0, 1], [10, 11], [0.0, 0.0])
        flat = tree_of([0, 0], [20, 21], [0.0, 0.0])

        paths = paths_of(merge([deep, flat], budget=3).tree)
        assert paths[1:] == [(ROOT, 10), (ROOT, 20), (ROOT, 21)]

    def test_nothing_but_the_root_is_left_without_budget(self):
        assert paths_of(merge([LONG, BROAD], budget=0).tree) == [(ROOT,)]

    def test_impossible_nodes_come_last(self):
        tree = tree_of([0, 1, 0], [10, 11, 12], [-math.inf, -math.inf, -1.0])

        assert paths_of(merge([tree], budget=2).tree) == [(ROOT,), (ROOT, 12), (ROOT, 10)]


class TestOrder:
    @given(inputs)
    def test_nodes_stand_most_promising_first(self, trees):
        scores = merge(trees, budget=HUGE).tree.scores.tolist()

        assert scores == sorted(scores, reverse=True)

    @given(inputs)
    def test_siblings_stand_most_promising_first(self, trees):
        tree = merge(trees, budget=HUGE).tree

        for below in tree.topology.children:
            scores = [float(tree.scores[node]) for node in below]
            assert scores == sorted(scores, reverse=True)


class TestWidth:
    @given(inputs, budgets, st.integers(0, 3))
    def test_no_node_has_more_children(self, trees, budget, width):
        tree = merge(trees, budget=budget, width=width).tree

        assert all(len(below) <= width for below in tree.topology.children)

    def test_the_best_siblings_stay_and_the_others_go_with_their_descendants(self):
        first = tree_of([0, 1], [10, 11], [-2.0, -2.0])
        second = tree_of([0, 0], [20, 21], [-1.0, -3.0])

        paths = paths_of(merge([first, second], budget=9, width=1).tree)
        assert paths == [(ROOT,), (ROOT, 20)]

    @given(inputs, budgets)
    def test_a_wide_bound_changes_nothing(self, trees, budget):
        free, bound = merge(trees, budget=budget), merge(trees, budget=budget, width=99)

        assert paths_of(free.tree) == paths_of(bound.tree)
        assert (free.positions, free.origins) == (bound.positions, bound.origins)


class TestWayBack:
    @given(inputs, budgets)
    def test_positions_lead_to_the_node_with_the_same_path(self, trees, budget):
        merged = merge(trees, budget=budget)
        kept = paths_of(merged.tree)

        for tree, positions in zip(trees, merged.positions, strict=True):
            expected = [kept.index(p) if p in kept else None for p in paths_of(tree)]
            assert list(positions) == expected

    @given(inputs, budgets)
    def test_origins_undo_positions(self, trees, budget):
        merged = merge(trees, budget=budget)

        for positions, origins in zip(merged.positions, merged.origins, strict=True):
            back = {place: own for own, place in enumerate(positions) if place is not None}
            assert [back.get(node) for node in range(len(merged.tree))] == list(origins)

    @given(st.data(), inputs, budgets)
    def test_each_source_is_told_the_part_of_a_path_that_it_drafted(self, data, trees, budget):
        merged = merge(trees, budget=budget)
        node = data.draw(st.integers(0, len(merged.tree) - 1))
        path = merged.tree.topology.path_to(node)
        tokens = merged.tree.path_tokens(node)

        for source, tree in enumerate(trees):
            own = merged.own_path(source, path)
            longest = max(
                n for n in range(len(tokens) + 1) if tokens[:n] in paths_of(tree) or not n
            )
            assert own == tree.topology.path_to(own[-1])
            assert tree.path_tokens(own[-1]) == tokens[:longest]

    def test_a_token_twice_below_one_parent_becomes_one_node(self):
        tree = tree_of([0, 0, 1, 2], [10, 10, 11, 12], [-0.5, -1.0, -1.5, -2.0])
        merged = merge([tree], budget=9)

        assert paths_of(merged.tree) == [(ROOT,), (ROOT, 10), (ROOT, 10, 11), (ROOT, 10, 12)]
        assert merged.positions == ((0, 1, 1, 2, 3),)
        # what hangs below the second twin is not on any path of nodes through the first
        assert merged.own_path(0, (0, 1, 3)) == (0, 1)


class TestDraw:
    @pytest.mark.parametrize(
        ("draws", "expected"),
        [
            (["topk", "topk"], "topk"),
            (["shared", "shared"], "shared"),
            (["topk", "shared"], "shared"),
        ],
    )
    def test_one_part_that_depends_on_the_noise_makes_the_whole_depend_on_it(self, draws, expected):
        trees = [tree_of([0], [10], [-0.5], draw=draw) for draw in draws]

        assert merge(trees, budget=9).tree.draw == expected

    @pytest.mark.parametrize("draw", ["iid", "swor", "iid_paths"])
    def test_sampled_siblings_are_refused_by_name(self, draw):
        with pytest.raises(InvalidTreeError, match=f"tree 1 was drawn '{draw}'"):
            merge([LONG, tree_of([0], [10], [-0.5], draw=draw)], budget=9)


class TestRefusals:
    def test_nothing_to_merge(self):
        with pytest.raises(InvalidTreeError, match="nothing to merge; give at least one tree"):
            merge([], budget=9)

    def test_roots_that_differ(self):
        with pytest.raises(
            InvalidTreeError, match=r"different tokens, \[3, 4\]; only trees of one"
        ):
            merge([LONG, TokenTree.root_only(4)], budget=9)

    def test_a_tree_without_scores(self):
        bare = TokenTree.from_lists([-1, 0], [ROOT, 10])
        with pytest.raises(InvalidTreeError, match="tree 1 has no scores, by which merging ranks"):
            merge([LONG, bare], budget=9)

    @pytest.mark.parametrize("score", [math.nan, -0.25, 1.0])
    def test_a_node_that_outscores_its_parent(self, score):
        with pytest.raises(InvalidTreeError, match=r"tree 1 scores node 2 .* parent 1 with -0.5"):
            merge([LONG, tree_of([0, 1], [10, 11], [-0.5, score])], budget=9)

    def test_rounding_is_no_reason_to_refuse(self):
        tree = merge([tree_of([0, 1], [10, 11], [-0.5, -0.4999999])], budget=9).tree

        assert tree.scores.tolist() == [0.0, -0.5, -0.5]

    @pytest.mark.parametrize("bound", ["budget", "width"])
    def test_negative_bounds(self, bound):
        with pytest.raises(ConfigError, match=f"{bound} must be at least 0, got -1"):
            merge([LONG], **{"budget": 9, bound: -1})


def test_the_inputs_are_left_as_they_were():
    tree = TokenTree(
        TreeTopology([-1, 0]),
        tokens=torch.tensor([ROOT, 10]),
        sources=torch.tensor([0, 1]),
        draw="topk",
        scores=torch.tensor([-0.5, 0.0]),
    )
    merge([tree, tree], budget=9)

    assert (tree.scores.tolist(), tree.sources.tolist()) == ([-0.5, 0.0], [0, 1])
