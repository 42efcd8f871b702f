from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import acceptance_rows, acceptance_tables, topologies
from treespec.errors import ConfigError, InvalidTreeError
from treespec.tree import TreeTopology, calibrated, chain, from_paths, kary, sequoia, to_paths

MONOTONE = [
    (["1/2", "1/5", "1/10"], 2, "1 3/2 7/4 39/20 41/20 43/20 9/4 23/10"),
    (["1/2", "1/5", "1/10"], 8, "1 3/2 7/4 39/20 83/40 87/40 91/40 19/8"),
    (["3/5", "3/20", "1/20"], 4, "1 8/5 49/25 272/125 1163/500 6139/2500 1591/625 6589/2500"),
]
ANY_ORDER = [
    (["3/10", "1/20", "9/10"], 2, "1 13/10 139/100 9/4 63/25 261/100 27/8 693/200"),
    (["3/10", "1/20", "9/10"], 8, "1 13/10 139/100 9/4 63/25 261/100 27/8 1809/500"),
]
EXACT_VALUES = [
    pytest.param(
        [Fraction(a) for a in row], depth, size, Fraction(value), id=f"{row}-{depth}-{size}"
    )
    for row, depth, values in MONOTONE + ANY_ORDER
    for size, value in enumerate(values.split(), start=1)
]


def value_of(table, paths):
    """1 for the next token, and for each node the product of the acceptances on its path."""
    total = Fraction(1)
    for path in paths:
        worth = Fraction(1)
        for row, rank in zip(table, path, strict=False):
            worth *= row[rank]
        total += worth
    return total


def best_value(table, budget):
    """The most that any tree of at most `budget` draft tokens is worth, by trying them all."""
    trees = reached = {frozenset()}
    for _ in range(budget):
        reached = {tree | {path} for tree in reached for path in additions(table, tree)}
        trees = trees | reached
    return max(value_of(table, tree) for tree in trees)


def additions(table, tree):
    """Paths that may join a tree: below a node, next in rank, and known to the table."""
    for parent in [(), *tree]:
        rank = sum(path[:-1] == parent for path in tree)
        if len(parent) < len(table) and rank < len(table[len(parent)]):
            yield (*parent, rank)


class TestPaths:
    def test_nodes_stand_by_depth_then_by_path(self):
        topology = from_paths([[1, 0], [0], [0, 1], [1], [0, 0], [0, 0, 0]])

        assert topology == TreeTopology([-1, 0, 0, 1, 1, 2, 3])

    def test_no_paths_leave_the_root_alone(self):
        assert from_paths([]) == TreeTopology([-1])

    @pytest.mark.parametrize(
        ("paths", "message"),
        [
            ([[3, 0]], r"path \[3, 0\] has no parent: add \[3\]"),
            ([[0], [1], [1, 0], [1, 2]], r"path \[1, 2\] skips a rank: add \[1, 1\]"),
            ([[1]], r"path \[1\] skips a rank: add \[0\]"),
            ([[0], [0]], r"path \[0\] stands twice; remove one"),
            ([[], [0]], r"an empty path stands for the root, .* leave it out"),
            ([[0], [-1]], r"path \[-1\] has a negative rank; ranks count from 0"),
        ],
    )
    def test_paths_that_are_no_tree_are_refused_with_the_remedy(self, paths, message):
        with pytest.raises(InvalidTreeError, match=message):
            from_paths(paths)

    @given(topologies())
    def test_the_paths_of_a_topology_have_the_depths_and_last_ranks_of_its_nodes(self, topology):
        paths = to_paths(topology)

        assert [len(path) for path in paths] == list(topology.depth_list[1:])
        assert [path[-1] for path in paths] == list(topology.ranks[1:])

    @given(topologies())
    def test_a_topology_made_from_its_own_paths_has_those_paths(self, topology):
        paths = to_paths(topology)

        assert to_paths(from_paths(paths)) == sorted(paths, key=lambda path: (len(path), path))


class TestRegularShapes:
    @pytest.mark.parametrize("length", [0, 1, 5])
    def test_a_chain_is_one_path(self, length):
        assert chain(length) == TreeTopology(range(-1, length))

    @pytest.mark.parametrize(
        ("width", "depth", "size"), [(2, 3, 15), (3, 2, 13), (4, 1, 5), (2, 0, 1), (0, 9, 1)]
    )
    def test_a_kary_tree_is_complete(self, width, depth, size):
        topology = kary(width, depth)

        assert len(topology) == size
        assert {len(below) for below in topology.children} == {
            (0 if level == depth else width) for level in range(min(depth, size - 1) + 1)
        }

    def test_a_kary_tree_is_numbered_like_its_paths(self):
        assert kary(3, 3) == from_paths(to_paths(kary(3, 3)))

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: chain(-1), "length must be an integer of at least 0, got -1"),
            (lambda: kary(-2, 1), "width must be an integer of at least 0, got -2"),
            (lambda: kary(2, -1), "depth must be an integer of at least 0, got -1"),
            (lambda: kary(True, 1), "width must be an integer of at least 0, got True"),
            (lambda: kary(8, 31), "width 8 and depth 31 has more than 65536 nodes; lower one"),
        ],
    )
    def test_numbers_out_of_range_are_refused_by_name(self, make, message):
        with pytest.raises(ConfigError, match=message):
            make()


class TestSequoia:
    @pytest.mark.parametrize(("row", "depth", "size", "value"), EXACT_VALUES)
    def test_the_value_of_the_best_tree_is_reproduced_exactly(self, row, depth, size, value):
        assert sequoia(row, size, depth).acceptance_length == value

    @pytest.mark.parametrize(("row", "depth", "size", "value"), EXACT_VALUES)
    def test_the_tree_has_the_promised_size_depth_and_value(self, row, depth, size, value):
        topology = sequoia(row, size, depth).topology

        assert (len(topology), topology.max_depth <= depth) == (size, True)
        assert value_of([row] * depth, to_paths(topology)) == value

    @given(acceptance_rows(), st.integers(1, 5), st.integers(0, 3))
    def test_no_tree_is_worth_more(self, row, size, depth):
        table = [row] * depth

        assert sequoia(row, size, depth).acceptance_length == best_value(table, size - 1)

    def test_without_a_depth_limit_a_sure_token_makes_a_chain(self):
        assert sequoia([1.0], 41).topology == chain(40)

    def test_a_late_sibling_worth_its_elders_is_reached_through_them(self):
        plan = sequoia([Fraction(0), Fraction(9, 10)], 3)

        assert plan.topology == TreeTopology([-1, 0, 0])

    def test_a_tree_that_the_bounds_keep_small_stays_below_its_size(self):
        assert sequoia([0.5, 0.25], 99, 1).topology == TreeTopology([-1, 0, 0])

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (([0.5, 1.5], 4), "acceptance_by_rank holds 1.5 at rank 1; acceptances lie between"),
            (([float("nan")], 4), "acceptance_by_rank holds nan at rank 0"),
            (([0.5], 0), "size must be an integer of at least 1, got 0"),
            (([0.5], 4, -1), "max_depth must be an integer of at least 0, got -1"),
        ],
    )
    def test_arguments_out_of_range_are_refused_by_name(self, arguments, message):
        with pytest.raises(ConfigError, match=message):
            sequoia(*arguments)


class TestCalibrated:
    @given(acceptance_tables(), st.integers(0, 4))
    def test_no_tree_is_worth_more(self, table, budget):
        assert calibrated(table, budget).acceptance_length == best_value(table, budget)

    @given(acceptance_tables(), st.integers(0, 6))
    def test_the_tree_keeps_to_its_budget_and_is_worth_what_it_promises(self, table, budget):
        plan = calibrated(table, budget)

        assert len(plan.topology) <= budget + 1
        assert plan.acceptance_length == value_of(table, to_paths(plan.topology))

    @given(acceptance_tables(), st.integers(0, 6), st.integers(0, 3))
    def test_a_depth_limit_is_the_same_as_a_shorter_table(self, table, budget, depth):
        assert calibrated(table, budget, depth) == calibrated(table[:depth], budget)

    @given(acceptance_tables(), st.integers(0, 8))
    def test_nodes_that_are_worth_nothing_are_left_out(self, table, budget):
        topology = calibrated(table, budget).topology
        paths = to_paths(topology)

        for leaf in (node for node, below in enumerate(topology.children) if not below and node):
            last = topology.ranks[leaf] == len(topology.children[topology.parent_list[leaf]]) - 1
            path = paths[leaf - 1]
            rest = [other for other in paths if other != path]
            assert not last or value_of(table, rest) < value_of(table, paths)

    @pytest.mark.parametrize("row", [[0.9, 0.3, 0.0], [0.3, 0.9, 0.0]])
    def test_a_rank_that_is_never_accepted_is_not_planned_for(self, row):
        assert calibrated([row], 3).topology == TreeTopology([-1, 0, 0])

    def test_levels_may_differ_in_what_they_accept(self):
        table = [[0.5, 0.25], [0.9], [0.125, 0.0625]]

        assert calibrated(table, 4).topology == TreeTopology([-1, 0, 0, 1, 2])

    def test_among_equals_the_shallower_node_and_then_the_elder_branch_is_taken(self):
        ones = [[Fraction(1)] * 2] * 3

        assert to_paths(calibrated(ones, 5).topology) == [[0], [1], [0, 0], [0, 1], [1, 0]]

    def test_floats_in_give_a_float_out(self):
        assert calibrated([[0.5], [0.5]], 5).acceptance_length == pytest.approx(1.75)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (([[0.5], [0.5, -0.1]], 4), "row 1 of the table holds -0.1 at rank 1"),
            (([[0.5]], -1), "budget must be an integer of at least 0, got -1"),
            (([[0.5]], 4, -1), "depth must be an integer of at least 0, got -1"),
        ],
    )
    def test_arguments_out_of_range_are_refused_by_name(self, arguments, message):
        with pytest.raises(ConfigError, match=message):
            calibrated(*arguments)
