import pytest
from hypothesis import given

from tests.strategies import token_trees
from treespec.errors import InvalidTreeError
from treespec.tree import TokenTree, render

WORDS = {1: "The", 2: " cat", 3: " sat", 4: " dog", 5: " ran", 6: "\n"}
TREE = TokenTree.from_lists(
    [-1, 0, 0, 1, 1],
    [1, 2, 4, 3, 6],
    scores=[0.0, -0.5, -1.5, -1.0, -3.0],
    source=[0, 3, 2, 1, 1],
)


def test_branches_show_who_is_whose_child():
    assert render(TREE).splitlines() == [
        "1",
        "├─ 2  0.61",
        "│  ├─ 3  0.37",
        "│  └─ 6  0.05",
        "└─ 4  0.22",
    ]


def test_decoded_text_is_quoted_so_that_every_node_keeps_to_its_line():
    assert render(TREE, decode=WORDS.__getitem__).splitlines() == [
        "'The'",
        "├─ ' cat'  0.61",
        "│  ├─ ' sat'  0.37",
        "│  └─ '\\n'  0.05",
        "└─ ' dog'  0.22",
    ]


def test_the_accepted_path_and_the_next_token_are_marked():
    lines = render(TREE, decode=WORDS.__getitem__, path=(0, 1), next_token=5).splitlines()

    assert lines == [
        "● 'The'",
        "├─ ● ' cat'  0.61",
        "│  ├─ ○ ' sat'  0.37",
        "│  ├─ ○ '\\n'  0.05",
        "│  └─ ▸ ' ran'",
        "└─ ○ ' dog'  0.22",
    ]


def test_a_next_token_after_a_leaf_opens_a_branch():
    assert render(TREE, path=(0, 2), next_token=5).splitlines()[-2:] == [
        "└─ ● 4  0.22",
        "   └─ ▸ 5",
    ]


def test_a_next_token_after_the_root_alone_stands_below_it():
    assert render(TokenTree.root_only(1), path=(0,), next_token=5) == "● 1\n└─ ▸ 5"


def test_names_tell_who_proposed_a_node():
    assert render(TREE, names=["lookup", "recycle"]).splitlines() == [
        "1",
        "├─ 2  0.61  lookup+recycle",
        "│  ├─ 3  0.37  lookup",
        "│  └─ 6  0.05  lookup",
        "└─ 4  0.22  recycle",
    ]


def test_a_tree_without_scores_shows_tokens_only():
    assert render(TokenTree.from_lists([-1, 0], [1, 2])) == "1\n└─ 2"


def test_siblings_are_shown_in_draw_order_whatever_their_scores():
    tree = TokenTree.from_lists([-1, 0, 0], [1, 4, 2], scores=[0.0, -9.0, 0.0])

    assert render(tree) == "1\n├─ 4  0.00\n└─ 2  1.00"


@given(token_trees())
def test_every_node_gets_one_line_indented_by_its_depth(tree):
    lines = render(tree).splitlines()
    depths = [len(line) - len(line.lstrip("│├└─ ")) for line in lines]

    assert sorted(depths) == sorted(3 * depth for depth in tree.topology.depth_list)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": (0, 3)}, r"path \[0, 3\] .* node 3 is not a child of node 0"),
        ({"path": (1,)}, r"path \[1\] .* node 1 is not the root"),
        ({"path": (0, 9)}, r"node 9 is not a child of node 0"),
        ({"path": (0, -1)}, r"node -1 is not a child of node 0"),
        ({"next_token": 5}, r"a next token follows an accepted path; give path=\[0, ...\] too"),
    ],
)
def test_a_path_that_does_not_lead_down_is_refused(arguments, message):
    with pytest.raises(InvalidTreeError, match=message):
        render(TREE, **arguments)
