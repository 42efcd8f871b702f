"""Ranks of right tokens: exactly those of scripted heads, and those of whole texts at once."""

import pytest
import torch

from tests.families import VOCAB
from tests.heads.reference import every_other
from tests.heads.scripted import ScriptedHeads
from tests.training.evaluation_cases import (
    greedy_passages,
    known_heads,
    llama,
    random_passages,
    real_heads,
    small_target,
)
from treespec.target import Target
from treespec.training.passages import states_of
from treespec.training.ranks import ABSENT, UNRANKED, depth_rates, rank_passages, rank_table

RANKS = [0, 2, 0, 0, 1, None, 0, 3, 0, 0, 0, 2]
"""Of the token behind each place, over and over; scripted heads are exact up to 3."""
DEPTH = 4
COLUMNS = 3


def rank_at(place):
    return RANKS[place % len(RANKS)]


def all_roots(passages):
    return [list(range(one.start, len(one.tokens) - 1)) for one in passages]


def measured(heads, passages, roots=None, depth=DEPTH, target=None):
    states = states_of(Target(target or llama()), passages, sorted(set(heads.taps)))
    return rank_passages(heads, passages, states, roots or all_roots(passages), depth)


def expected_ranks(passage, depth=DEPTH):
    """By the script: the token d + 1 places behind a root stands behind place root + d."""
    last = len(passage.tokens) - 1
    known = {None: UNRANKED, **{rank: rank for rank in range(4)}}
    return [
        [known[rank_at(root + d)] if root + d < last else ABSENT for d in range(depth)]
        for root in range(passage.start, last)
    ]


def test_scripted_ranks_are_found_at_every_place_and_depth():
    passages = random_passages([29, 29, 17, 8])

    found = measured(known_heads(passages, rank_at), passages)

    assert [one.tolist() for one in found] == [expected_ranks(one) for one in passages]


def test_rates_by_depth_are_those_of_the_script():
    passages = random_passages([30, 21])
    heads = known_heads(passages, rank_at)

    rates = depth_rates(torch.cat(measured(heads, passages)), COLUMNS)

    rows = [row for one in passages for row in expected_ranks(one)]
    for level, one in enumerate(rates):
        here = [row for row in rows if row[level] != ABSENT]
        chained = [row for row in here if row[:level] == [0] * level]
        assert one.depth == level + 1
        assert one.positions == len(here)
        for top in (1, 2, 5, 10):
            share = sum(row[level] < top for row in here) / len(here)
            assert getattr(one, f"top{top}") == pytest.approx(share, abs=1e-12)
        assert one.chained == pytest.approx(
            sum(row[level] == 0 for row in chained) / len(chained), abs=1e-12
        )
        assert one.reached == sum(max(row[:level], default=0) < COLUMNS for row in here)


def test_table_counts_only_roots_whose_earlier_tokens_are_in_it():
    ranks = torch.tensor([[0, 1], [0, 0], [2, 0], [5, 0], [UNRANKED, 0], [1, ABSENT]])

    table = rank_table(ranks, 3)

    assert table[0] == (2 / 6, 1 / 6, 1 / 6)
    assert table[1] == (2 / 3, 1 / 3, 0.0)


def test_depths_that_no_text_reaches_are_left_out():
    passages = random_passages([7])  # two tokens to guess

    found = torch.cat(measured(known_heads(passages, lambda _: 0), passages))

    assert [one.depth for one in depth_rates(found, COLUMNS)] == [1, 2]
    assert rank_table(found, COLUMNS) == ((1.0, 0.0, 0.0), (1.0, 0.0, 0.0))


def test_nothing_is_chained_behind_a_depth_that_is_never_right():
    first, second = depth_rates(torch.tensor([[1, 0], [2, 0]]), 3)

    assert (first.chained, second.chained) == (0.0, None)


def test_chosen_roots_have_the_ranks_that_they_have_among_all():
    passages = greedy_passages()
    heads = real_heads("3")
    chosen = [one[row % 2 :: 3 + row] for row, one in enumerate(all_roots(passages))]

    all_ranks = measured(heads, passages, target=small_target())
    some = measured(heads, passages, chosen, target=small_target())

    for passage, roots, every, few in zip(passages, chosen, all_ranks, some, strict=True):
        assert torch.equal(few, every[torch.tensor(roots) - passage.start])


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_ranks_are_those_of_logits_of_the_whole_text(kind):
    passages = greedy_passages()
    heads = real_heads(kind)
    found = measured(heads, passages, depth=3, target=small_target())

    for passage, ranks in zip(passages, found, strict=True):
        text = passage.tokens[None]
        with torch.no_grad():
            hidden = small_target()(text, output_hidden_states=True).hidden_states[-1]
            ahead = text.roll(-1, dims=1)
            logits = heads(hidden) if kind == "medusa" else heads(hidden, ahead)
        for row, root in enumerate(range(passage.start, len(passage.tokens) - 1)):
            for level in range(3):
                place = root + 1 + level
                if place >= len(passage.tokens):
                    assert ranks[row, level] == ABSENT
                    continue
                own = logits[0, root - 1, level]
                order = own.argsort(descending=True).tolist()
                assert ranks[row, level] == order.index(int(passage.tokens[place]))


def test_tokens_outside_the_draft_vocabulary_have_no_rank():
    passages = random_passages([20])
    text = passages[0].tokens.tolist()
    heads = ScriptedHeads(llama(), [text], [0], vocabulary=every_other(VOCAB))

    (found,) = measured(heads, passages, depth=1)

    expected = [0 if token % 2 == 0 else UNRANKED for token in text[passages[0].start + 1 :]]
    assert found[:, 0].tolist() == expected
    assert {0, UNRANKED} == set(expected)


def test_heads_that_say_nothing_but_nan_are_never_right():
    passages = random_passages([12])
    heads = ScriptedHeads(llama(), [passages[0].tokens.tolist()], [0], broken=True)

    found = torch.cat(measured(heads, passages))

    assert depth_rates(found, COLUMNS)[0].top10 == 0
