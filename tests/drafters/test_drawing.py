"""Draws: what comes out follows the law that is declared, in the order that is declared."""

import pytest
import torch

from treespec.drafters.drawing import Place, draw_children, paths_topology
from treespec.sampling import RowNoise
from treespec.tree.shapes import TreeLimits

LAW = torch.tensor([0.5, 0.25, 0.15, 0.1, 0.0])


def draw(kind: str, step: int, *, seed: int | None = 3, width: int = 2):
    place = Place(noise=RowNoise(seed), root_position=step, nodes=[1], depths=[1])
    return draw_children(LAW.log()[None], place, draw=kind, temperature=1.0, width=width)


@pytest.mark.parametrize("kind", ["iid", "swor"])
def test_first_siblings_follow_the_declared_law(kind):
    firsts = [draw(kind, step).candidates[0].tokens[0] for step in range(1500)]

    shares = torch.bincount(torch.tensor(firsts), minlength=5) / 1500

    assert (shares - LAW).abs().sum() / 2 < 0.05


def test_second_siblings_without_replacement_follow_what_is_left():
    pairs = [draw("swor", step).candidates[0].tokens for step in range(2500)]

    after_first = torch.tensor([second for first, second in pairs if first == 0])
    shares = torch.bincount(after_first, minlength=5) / len(after_first)

    assert all(first != second for first, second in pairs)
    assert (shares - torch.tensor([0, 0.5, 0.3, 0.2, 0])).abs().sum() / 2 < 0.05


def test_independent_siblings_may_be_equal():
    pairs = [draw("iid", step).candidates[0].tokens for step in range(1500)]

    equal = sum(first == second for first, second in pairs) / 1500

    assert equal == pytest.approx(float((LAW**2).sum()), abs=0.05)


def test_a_token_of_probability_zero_is_never_drawn_independently():
    drawn = [
        token for step in range(300) for token in draw("iid", step, width=5).candidates[0].tokens
    ]

    assert 4 not in drawn


@pytest.mark.parametrize("kind", ["iid", "swor"])
def test_sampled_draws_declare_the_law_they_came_from(kind):
    drawn = draw(kind, 0)

    torch.testing.assert_close(drawn.laws[0], LAW)
    assert drawn.candidates[0].log_probs == pytest.approx(
        [float(LAW[token].log()) for token in drawn.candidates[0].tokens]
    )


@pytest.mark.parametrize("kind", ["iid", "swor"])
def test_the_declared_law_is_that_of_the_temperature(kind):
    place = Place(noise=RowNoise(3), root_position=0, nodes=[1], depths=[1])

    drawn = draw_children(LAW.log()[None], place, draw=kind, temperature=0.5, width=2)

    torch.testing.assert_close(drawn.laws[0], LAW**2 / (LAW**2).sum())


def test_the_most_probable_come_first_under_topk_and_when_greedy():
    assert draw("topk", 0, width=3).candidates[0].tokens == [0, 1, 2]
    assert draw("swor", 0, seed=None, width=3).candidates[0].tokens == [0, 1, 2]


def test_shared_noise_ranks_by_the_noise_of_the_childs_position():
    noise = RowNoise(3)
    place = Place(noise=noise, root_position=10, nodes=[1], depths=[1])
    drawn = draw_children(LAW.log()[None], place, draw="shared", temperature=1.0, width=4)

    noisy = LAW.log() + noise.row(12, 5, torch.device("cpu"))

    assert drawn.candidates[0].tokens == noisy.topk(4).indices.tolist()
    assert drawn.laws is None


def test_draws_differ_between_steps_and_repeat_for_the_same_step():
    first, again, other = (draw("swor", step, width=4).candidates[0].tokens for step in (0, 0, 5))

    assert first == again
    assert any(draw("swor", s, width=4).candidates[0].tokens != first for s in range(1, 9)) or other


@pytest.mark.parametrize(
    ("budget", "depth", "width", "parents"),
    [
        (6, 3, 2, [-1, 0, 0, 1, 2, 3, 4]),
        (7, 3, 9, [-1, 0, 0, 1, 2, 3, 4]),
        (2, 5, 4, [-1, 0, 1]),
        (3, 1, 2, [-1, 0, 0]),
    ],
)
def test_whole_paths_part_at_the_root_only(budget, depth, width, parents):
    topology = paths_topology(TreeLimits(budget=budget, depth=depth, width=width))

    assert list(topology.parent_list) == parents
