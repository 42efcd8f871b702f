"""The default rule: choices at nodes, and the walk along them."""

import pytest
import torch

from treespec.sampling import RowNoise
from treespec.scores import NodeScores
from treespec.tree.token_tree import DRAWS, TokenTree
from treespec.verify.gumbel import Gumbel, best_token, choices, walk

TREE = TokenTree.from_lists([-1, 0, 0, 0, 2, 2, 5], [9, 1, 2, 3, 4, 5, 6])
ROOT = TokenTree.root_only(9)
TREE_OF_TWO = TokenTree.from_lists([-1, 0], [9, 1])
FORK = TokenTree.from_lists([-1, 0, 0], [9, 1, 2])


@pytest.mark.parametrize(
    ("chosen", "path", "next_token"),
    [
        ([7, 0, 0, 0, 0, 0, 0], (0,), 7),
        ([1, 8, 0, 0, 0, 0, 0], (0, 1), 8),
        ([2, 0, 5, 0, 0, 6, 3], (0, 2, 5, 6), 3),
        ([2, 0, 4, 0, 0, 6, 3], (0, 2, 4), 0),
        ([0, 0, 0, 0, 0, 0, 0], (0,), 0),
    ],
)
def test_walk_follows_the_choices_and_ends_at_the_first_that_no_child_carries(
    chosen, path, next_token
):
    acceptance = walk(TREE, chosen)

    assert acceptance.path == path
    assert acceptance.next_token == next_token
    assert acceptance.num_accepted == len(path) - 1


def test_walk_takes_the_first_of_equal_siblings():
    tree = TokenTree.from_lists([-1, 0, 0, 1], [9, 1, 1, 4])

    assert walk(tree, [1, 4, 0, 2]).path == (0, 1, 3)


def test_greedy_choices_take_the_lowest_id_of_a_tie():
    scores = torch.tensor([[0.0, 2.0, 2.0], [3.0, 3.0, 1.0]], dtype=torch.bfloat16)

    assert choices(TREE_OF_TWO, NodeScores.of_all(scores), RowNoise(None), 5).tolist() == [1, 0]


def test_nodes_at_one_depth_share_the_noise_of_their_position():
    noise = RowNoise(4)
    scores = torch.zeros(3, 50)

    chosen = choices(FORK, NodeScores.of_all(scores), noise, root_position=10).tolist()

    cpu = torch.device("cpu")
    assert chosen[0] == int(noise.row(11, 50, cpu).argmax())
    assert chosen[1] == chosen[2] == int(noise.row(12, 50, cpu).argmax())


def test_nodes_at_one_depth_share_it_too_where_few_tokens_are_left():
    noise = RowNoise(4)
    ids = torch.arange(50).expand(3, -1)

    chosen = choices(FORK, NodeScores(torch.zeros(3, 50), ids, 50), noise, root_position=10)

    everything = choices(FORK, NodeScores.of_all(torch.zeros(3, 50)), noise, root_position=10)
    assert torch.equal(chosen, everything)


def test_a_forbidden_token_is_never_chosen():
    scores = torch.full((1, 50), -torch.inf)
    scores[0, 13] = -5.0

    def chosen(seed: int) -> list[int]:
        return choices(ROOT, NodeScores.of_all(scores), RowNoise(seed), 0).tolist()

    assert all(chosen(seed) == [13] for seed in range(20))


def test_choices_follow_the_law_of_the_scores():
    law = torch.tensor([0.5, 0.3, 0.15, 0.05])
    scores = NodeScores.of_all(law.log()[None])
    drawn = [int(choices(ROOT, scores, RowNoise(1), place)) for place in range(4000)]

    shares = torch.bincount(torch.tensor(drawn), minlength=4) / 4000

    assert (shares - law).abs().sum() / 2 < 0.025  # total variation; about .008 expected


def test_accept_decides_every_row_with_its_own_noise():
    trees = [TokenTree.root_only(1), TREE]
    scores = [NodeScores.of_all(torch.zeros(1, 30)), NodeScores.of_all(torch.zeros(7, 30))]
    noises = [RowNoise(1), RowNoise(2)]

    together = Gumbel().accept(trees, scores, noises, [3, 8])
    alone = [
        Gumbel().accept([tree], [score], [noise], [place])[0]
        for tree, score, noise, place in zip(trees, scores, noises, [3, 8], strict=True)
    ]

    assert together == alone


def test_every_draw_is_taken():
    assert Gumbel.lossless
    assert Gumbel.draws == DRAWS


@pytest.mark.parametrize("size", [5, 4096, 4100, 5000, 12_345])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_best_token_is_the_first_of_the_largest(size, dtype):
    # Few distinct values, so that most rows have many ties.
    scores = torch.randint(-3, 3, (20, size), generator=torch.Generator().manual_seed(1)).to(dtype)
    scores[3] = -torch.inf
    scores[4, -1] = 9

    assert torch.equal(best_token(scores), scores.argmax(dim=-1))
