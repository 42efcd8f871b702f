from itertools import pairwise

import pytest
import torch
from hypothesis import given

from tests.strategies import topologies
from treespec.errors import InvalidTreeError
from treespec.tree import TreeTopology


def test_ancestor_mask_of_a_binary_tree_marks_each_path_to_the_root():
    mask = TreeTopology([-1, 0, 0, 1, 1, 2, 2]).ancestor_mask

    expected = [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0, 0],
        [1, 1, 0, 1, 0, 0, 0],
        [1, 1, 0, 0, 1, 0, 0],
        [1, 0, 1, 0, 0, 1, 0],
        [1, 0, 1, 0, 0, 0, 1],
    ]
    assert torch.tensor(expected, dtype=torch.bool).equal(mask)


@given(topologies())
def test_ancestor_mask_equals_membership_in_the_path(topology):
    for node in range(len(topology)):
        path = topology.path_to(node)

        assert topology.ancestor_mask[node].nonzero().flatten().tolist() == sorted(path)


@given(topologies())
def test_paths_lead_from_the_root_down_to_the_node(topology):
    for node in range(len(topology)):
        path = topology.path_to(node)

        assert (path[0], path[-1]) == (0, node)
        assert all(topology.parent_list[b] == a for a, b in pairwise(path))


@given(topologies())
def test_depth_is_the_number_of_steps_from_the_root(topology):
    steps = [len(topology.path_to(node)) - 1 for node in range(len(topology))]

    assert topology.depths.tolist() == steps
    assert topology.max_depth == max(steps)


@given(topologies())
def test_every_node_but_the_root_is_listed_once_among_its_parents_children(topology):
    listed = [(child, node) for node, below in enumerate(topology.children) for child in below]

    assert sorted(listed) == list(enumerate(topology.parent_list))[1:]


@given(topologies())
def test_rank_is_the_place_among_the_siblings(topology):
    for node, parent in list(enumerate(topology.parent_list))[1:]:
        assert topology.children[parent][topology.ranks[node]] == node
    assert topology.ranks[0] == 0


@given(topologies())
def test_a_topology_can_be_made_again_from_its_tensor_and_from_its_repr(topology):
    assert TreeTopology(topology.parents) == topology
    assert eval(repr(topology)) == topology  # noqa: S307 (our own repr)


def test_topologies_with_the_same_parents_are_equal_and_hash_alike():
    assert TreeTopology((-1, 0, 1)) == TreeTopology([-1, 0, 1])
    assert hash(TreeTopology((-1, 0, 1))) == hash(TreeTopology([-1, 0, 1]))
    assert TreeTopology([-1, 0, 1]) != TreeTopology([-1, 0, 0])
    assert TreeTopology([-1]) != (-1,)


def test_parents_are_stored_as_int64_on_the_cpu():
    parents = TreeTopology(torch.tensor([-1, 0], dtype=torch.int32)).parents

    assert (parents.dtype, parents.device.type) == (torch.int64, "cpu")


@pytest.mark.usefixtures("_unchecked_types")
@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([], r"needs at least its root; give parents=\[-1\]"),
        ([0, 0], r"node 0 is the root and has parent -1, got 0"),
        ([-1, 2, 0], r"node 1 has parent 2, but a parent must come before its children"),
        ([-1, 1], r"node 1 has parent 1, but a parent must come before"),
        ([-1, -1], r"node 1 has parent -1, but a parent must come before"),
        ([-1, 0.5], r"flat sequence of integers, one per node, got \[-1, 0.5\]"),
        (torch.tensor([[-1, 0]]), r"flat sequence of integers, one per node, got \[\[-1, 0\]\]"),
    ],
)
def test_a_topology_that_is_no_tree_is_refused_with_the_reason(parents, message):
    with pytest.raises(InvalidTreeError, match=message):
        TreeTopology(parents)
