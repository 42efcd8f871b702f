"""Masks: who sees whom, in slots and in positions, and how each implementation is told."""

import pytest
import torch

from treespec.attention import LayerKind, NewNodes, build_masks, encode, visibility
from treespec.tree.token_tree import TokenTree

FULL = LayerKind("full_attention")


def nodes_of(parents: list[int]) -> NewNodes:
    tree = TokenTree.from_lists(parents, [1] * len(parents))
    return NewNodes(tree.tokens, tree.topology.depths, tree.topology.ancestor_mask)


def test_a_node_sees_the_prefix_its_ancestors_and_itself():
    mask = visibility([nodes_of([-1, 0, 0, 2])], [3], 7, FULL)[0]

    assert mask.int().tolist() == [
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0, 1, 0],
        [1, 1, 1, 1, 0, 1, 1],
    ]


def test_a_shorter_row_sees_nothing_behind_its_own_nodes():
    mask = visibility([nodes_of([-1, 0]), nodes_of([-1])], [4, 1], 6, FULL)

    assert mask[1, 0].int().tolist() == [1, 1, 0, 0, 0, 0]


def test_padding_queries_see_one_slot_so_that_no_softmax_is_empty():
    mask = visibility([nodes_of([-1, 0, 1]), nodes_of([-1])], [0, 0], 3, FULL)

    assert mask.any(dim=-1).all()
    assert mask[1, 1:].int().tolist() == [[1, 0, 0], [1, 0, 0]]


def test_a_window_is_measured_by_position_and_not_by_slot():
    # Three siblings at position 4 stand in slots 5 to 7: each sees the two positions before it.
    mask = visibility([nodes_of([-1, 0, 0, 0])], [4], 8, LayerKind("sliding_attention", window=3))

    assert mask[0, 3].int().tolist() == [0, 0, 0, 1, 1, 0, 0, 1]


def test_a_chunk_hides_positions_of_earlier_chunks():
    mask = visibility([nodes_of([-1, 0, 1])], [3], 6, LayerKind("chunked_attention", chunk=4))

    assert mask[0].int().tolist() == [
        [1, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1, 1],
    ]


def test_nodes_on_top_of_scratch_see_their_ancestors_there():
    later = NewNodes(
        tokens=torch.tensor([9]),
        depths=torch.tensor([0, 1, 1, 2]),
        visible=torch.tensor([[True, False, True, True]]),
    )

    assert visibility([later], [2], 6, FULL)[0].int().tolist() == [[1, 1, 1, 0, 1, 1]]
    assert later.positions.tolist() == [2]


def test_eager_gets_an_additive_mask_without_infinities():
    mask = encode(torch.tensor([[[True, False]]]), "eager", torch.bfloat16, torch.device("cpu"))

    assert mask.shape == (1, 1, 1, 2)
    assert mask.flatten().tolist() == [0.0, torch.finfo(torch.bfloat16).min]


def test_sdpa_gets_a_boolean_mask():
    mask = encode(torch.tensor([[[True, False]]]), "sdpa", torch.float32, torch.device("cpu"))

    assert mask.dtype == torch.bool
    assert mask.flatten().tolist() == [True, False]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [((FULL,), "Tensor"), ((FULL, LayerKind("sliding_attention", window=2)), "dict")],
)
def test_one_layer_type_gets_one_mask_and_several_get_one_each(kinds, expected):
    masks = build_masks(
        [nodes_of([-1, 0])],
        [2],
        4,
        kinds=kinds,
        implementation="sdpa",
        dtype=torch.float32,
        device=torch.device("cpu"),
    )

    assert type(masks).__name__ == expected
