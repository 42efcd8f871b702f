"""Simulated acceptance lengths: exactly those of scripted ranks, and those of real decoding."""

import pytest
import torch

from tests.training.evaluation_cases import (
    KINDS,
    NEW,
    SHAPES,
    greedy_passages,
    known_heads,
    llama,
    random_passages,
    real_heads,
    small_target,
)
from treespec import BestFirst, Chain, StaticTree
from treespec.errors import DrafterError
from treespec.heads import HeadDrafter
from treespec.target import Target
from treespec.training.decoding import decode, rates_of
from treespec.training.passages import Passage, states_of
from treespec.training.simulate import simulate

RANKS = [0, 2, 0, 0, 1, None, 0, 3, 0, 0, 0, 2]


def rank_at(place):
    return RANKS[place % len(RANKS)]


def walked(heads, passages, shape, target=None):
    states = states_of(Target(target or llama()), passages, sorted(set(heads.taps)))
    return simulate(HeadDrafter(heads), passages, states, shape)


def test_heads_that_are_always_right_give_a_whole_chain_every_step():
    passages = random_passages([25])  # twenty tokens to guess

    (walk,) = walked(known_heads(passages, lambda _: 0), passages, Chain(4))

    assert walk.lengths == (5, 5, 5, 5)
    assert walk.accepted == (4, 4, 4, 4)
    assert walk.drafted == 16


def test_heads_that_are_never_right_give_one_token_every_step():
    passages = random_passages([15])

    (walk,) = walked(known_heads(passages, lambda _: None), passages, BestFirst(budget=6))

    assert walk.lengths == (1,) * 10
    assert walk.accepted == (0,) * 10


def test_nothing_is_drafted_behind_a_limit_that_decoding_knows():
    cut = random_passages([9])  # four tokens to guess
    ended = random_passages([9], ended=True)

    (short,) = walked(known_heads(cut, lambda _: 0), cut, Chain(7))
    (whole,) = walked(known_heads(ended, lambda _: 0), ended, Chain(7))

    assert (short.lengths, short.accepted, short.drafted) == ((4,), (3,), 3)
    assert (whole.lengths, whole.accepted) == ((4,), (4,))


@pytest.mark.parametrize("paths", [[[0], [0, 0]], [[0], [1], [2], [0, 0], [2, 0], [2, 0, 0]]])
def test_static_trees_accept_the_paths_of_scripted_ranks(paths):
    passages = random_passages([33, 33, 20], ended=True)

    walks = walked(known_heads(passages, rank_at), passages, StaticTree(paths))

    for passage, walk in zip(passages, walks, strict=True):
        root, last, expected = passage.start, len(passage.tokens) - 1, []
        while root < last:
            taken = 0
            while root + taken < last and [rank_at(root + d) for d in range(taken + 1)] in paths:
                taken += 1
            expected.append(min(taken + 1, last - root))
            root += expected[-1]
        assert list(walk.lengths) == expected
    assert len({length for walk in walks for length in walk.lengths}) > 1


def test_every_token_is_given_exactly_once():
    passages = greedy_passages()

    walks = walked(real_heads("hydra"), passages, SHAPES["tree"], small_target())

    assert [sum(walk.lengths) for walk in walks] == [one.num_guessable for one in passages]


def test_rows_do_not_depend_on_their_neighbours():
    passages = greedy_passages()
    heads = real_heads("3")

    together = walked(heads, passages, SHAPES["tree"], small_target())
    alone = [walked(heads, [one], SHAPES["tree"], small_target())[0] for one in passages]

    assert together == alone


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_simulated_equals_decoded_along_the_target_s_own_greedy_answer(kind, shape):
    passages = greedy_passages()
    heads = real_heads(kind)

    simulated = rates_of(shape, walked(heads, passages, SHAPES[shape], small_target()))
    decoded = decode(
        small_target(),
        heads,
        [one.prompt for one in passages],
        SHAPES[shape],
        name=shape,
        max_new_tokens=NEW,
    )

    assert decoded.rates == simulated
    assert simulated.accepted_by_depth != ()
    assert [one.tokens.tolist() for one in decoded.passages] == [
        one.tokens.tolist() for one in passages
    ]


def test_simulated_equals_decoded_where_answers_end_by_themselves(monkeypatch):
    """The end token is one that the greedy answers really contain."""
    passages = greedy_passages()
    answers = [one.tokens[one.start :].tolist() for one in passages]
    end = next(token for token in answers[0][5:] if sum(token in one for one in answers) >= 2)
    cut = []
    for one, answer in zip(passages, answers, strict=True):
        stop = answer.index(end) + 1 if end in answer else len(answer)
        if stop >= 2:
            cut.append(Passage(one.tokens[: one.start + stop], one.start, end in answer))
    target, heads, shape = small_target(), real_heads("medusa"), SHAPES["chain"]
    monkeypatch.setattr(target.generation_config, "eos_token_id", end)

    simulated = rates_of("chain", walked(heads, cut, shape, target))
    prompts = [one.prompt for one in cut]
    decoded = decode(target, heads, prompts, shape, name="chain", max_new_tokens=NEW)

    assert any(one.ended for one in cut)
    assert decoded.passages[0].ended == cut[0].ended
    assert (decoded.rates.steps, decoded.rates.tokens) == (simulated.steps, simulated.tokens)
    assert decoded.rates.accepted_by_depth == simulated.accepted_by_depth


def test_heads_of_another_vocabulary_are_refused():
    passages = greedy_passages()
    states = states_of(Target(small_target()), passages, [2])
    heads = known_heads(random_passages([9]), lambda _: 0)

    with pytest.raises(DrafterError, match="97 logits"):
        simulate(HeadDrafter(heads), passages, states, Chain(2))


def test_rates_pool_the_steps_of_all_passages():
    passages = random_passages([25, 15])
    heads = known_heads(passages, lambda place: 0 if place < 15 else None)

    rates = rates_of("chain of 4", walked(heads, passages, Chain(4)))

    assert rates.tokens == 30
    assert rates.acceptance_length == rates.tokens / rates.steps
    assert rates.accepted_by_depth[0] == max(rates.accepted_by_depth)
    assert torch.isfinite(torch.tensor(rates.drafted_per_step))
