import pytest

from treespec.errors import ConfigError, InvalidTreeError
from treespec.tree import BestFirst, Chain, StaticTree, TreeLimits, TreeTopology

PATHS = [[0], [1], [0, 0], [0, 1], [0, 0, 0]]


@pytest.mark.usefixtures("_unchecked_types")
@pytest.mark.parametrize("name", ["budget", "depth", "width"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True, None])
def test_best_first_refuses_bounds_that_are_no_positive_integers(name, value):
    with pytest.raises(ConfigError, match=f"{name} must be an integer of at least 1, got"):
        BestFirst(**{name: value})


def test_a_step_may_go_down_no_further_than_the_shape_and_the_step_allow():
    shape = BestFirst(budget=9, depth=4, width=2)

    assert shape.limits(depth=10) == TreeLimits(budget=9, depth=4, width=2)
    assert shape.limits(depth=3) == TreeLimits(budget=9, depth=3, width=2)


@pytest.mark.parametrize("depth", [0, -1])
@pytest.mark.parametrize("shape", [BestFirst(), Chain(3), StaticTree(PATHS)])
def test_a_step_without_levels_asks_for_the_root_alone(shape, depth):
    limits = shape.limits(depth=depth)

    assert (limits.budget, limits.depth) == (0, 0)


def test_a_chain_is_a_best_first_tree_of_width_one():
    assert Chain(5) == BestFirst(budget=5, depth=5, width=1)


def test_a_static_tree_asks_for_exactly_its_topology():
    limits = StaticTree(PATHS).limits(depth=31)

    expected = TreeLimits(budget=5, depth=3, width=2, topology=TreeTopology([-1, 0, 0, 1, 1, 3]))
    assert limits == expected


def test_a_static_tree_near_the_end_keeps_the_levels_that_fit():
    limits = StaticTree(PATHS).limits(depth=1)

    assert limits == TreeLimits(budget=2, depth=1, width=2, topology=TreeTopology([-1, 0, 0]))


def test_a_static_tree_does_not_change_with_the_list_it_was_made_from():
    paths = [[0], [1]]
    shape = StaticTree(paths)
    paths[0].append(0)

    assert shape == StaticTree([[0], [1]])


def test_a_static_tree_refuses_paths_that_are_no_tree():
    with pytest.raises(InvalidTreeError, match=r"path \[0, 0\] has no parent: add \[0\]"):
        StaticTree([[0, 0]])


class TestCut:
    LIMITS = TreeLimits(budget=9, depth=4, width=2)

    @pytest.mark.parametrize("depth", [4, 5])
    def test_limits_that_are_shallow_enough_stay(self, depth):
        assert self.LIMITS.cut(depth) == self.LIMITS

    def test_only_the_depth_of_a_growing_tree_changes(self):
        assert self.LIMITS.cut(3) == TreeLimits(budget=9, depth=3, width=2)

    @pytest.mark.parametrize("limits", [LIMITS, StaticTree(PATHS).limits(depth=9)])
    @pytest.mark.parametrize("depth", [0, -1])
    def test_without_levels_the_root_is_left_alone(self, limits, depth):
        cut = limits.cut(depth)

        assert (cut.budget, cut.depth, cut.topology) == (0, 0, None)

    def test_a_topology_keeps_its_upper_levels(self):
        cut = StaticTree(PATHS).limits(depth=9).cut(2)

        assert cut.topology == TreeTopology([-1, 0, 0, 1, 1])
        assert (cut.budget, cut.depth) == (4, 2)

    def test_a_topology_that_is_not_ordered_by_level_is_cut_alike(self):
        deep_first = TreeLimits(budget=4, depth=3, width=2, topology=TreeTopology([-1, 0, 1, 2, 0]))

        assert deep_first.cut(2).topology == TreeTopology([-1, 0, 1, 0])
