import pytest
import torch
from hypothesis import given

from tests.strategies import token_trees
from treespec.errors import InvalidTreeError
from treespec.tree import DRAWS, TokenTree, TreeTopology

PAIR = TreeTopology([-1, 0])


def parts(**changed):
    """Arguments of a valid tree of two nodes, with some exchanged."""
    return {
        "topology": PAIR,
        "tokens": torch.tensor([7, 8]),
        "sources": torch.tensor([0, 1]),
        "draw": "topk",
    } | changed


@given(token_trees())
def test_path_tokens_are_the_tokens_along_the_path(tree):
    for node in range(len(tree)):
        along = tree.tokens[list(tree.topology.path_to(node))]

        assert list(tree.path_tokens(node)) == along.tolist()


def test_one_source_marks_every_node_but_the_root():
    tree = TokenTree.from_lists([-1, 0, 0], [5, 6, 7], source=4)

    assert tree.sources.tolist() == [0, 4, 4]


def test_sources_can_differ_between_nodes():
    tree = TokenTree.from_lists([-1, 0, 0], [5, 6, 7], source=[0, 3, 2])

    assert tree.sources.tolist() == [0, 3, 2]


def test_lists_become_tensors_of_the_documented_types():
    tree = TokenTree.from_lists([-1, 0], [5, 6], scores=[0.0, -1.0])

    assert (tree.tokens.dtype, tree.sources.dtype) == (torch.int64, torch.int64)
    assert tree.scores.dtype == torch.float32


def test_the_root_only_tree_proposes_nothing():
    tree = TokenTree.root_only(5, draw="shared")

    assert (len(tree), tree.token_list, tree.draw) == (1, (5,), "shared")
    assert tree.scores.tolist() == [0.0]


@pytest.mark.parametrize("draw", DRAWS)
def test_every_documented_draw_is_accepted(draw):
    assert TokenTree(**parts(draw=draw)).draw == draw


@pytest.mark.usefixtures("_unchecked_types")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tokens": torch.tensor([7])}, r"tokens has shape \(1,\), but the topology has 2 nodes"),
        ({"sources": torch.zeros(2, 1, dtype=torch.int64)}, r"sources has shape \(2, 1\)"),
        ({"scores": torch.zeros(3)}, r"scores has shape \(3,\).*give \[2\]"),
        ({"draft_probs": torch.zeros(2)}, r"draft_probs has shape \(2,\).*give \[2, vocabulary\]"),
        ({"tokens": torch.tensor([7, 8], dtype=torch.int32)}, r"tokens is torch.int32 on cpu"),
        ({"sources": torch.zeros(2, dtype=torch.int64, device="meta")}, r"sources .* on meta"),
        ({"draw": "beam"}, r"draw is 'beam'; it must be one of shared, topk, iid, swor, iid_paths"),
    ],
)
def test_parts_that_do_not_fit_are_refused_by_name(changed, message):
    with pytest.raises(InvalidTreeError, match=message):
        TokenTree(**parts(**changed))
