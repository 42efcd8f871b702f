import pytest
import torch

from tests.drafters.script import (
    VOCAB,
    begun,
    children,
    context,
    followed,
    limits,
    node_at,
    opinion,
    paths,
    prefilled,
)
from treespec.drafters.base import Drafter
from treespec.drafters.opinions import TOP, opinions_of
from treespec.drafters.recycle import Guess, RecycleDrafter, RecycleTable
from treespec.errors import ConfigError
from treespec.tree.planning import from_paths


def propose(session, **bounds):
    return session.propose([limits(**bounds)])[0]


def plain_step(session, token, probs=None):
    """One step that drafts nothing: the target thinks `probs` and emits `token`."""
    opinions = {} if probs is None else {(): probs}
    session.observe([followed(propose(session, budget=0), [token], opinions)])


def test_recycle_drafter_is_a_drafter():
    assert isinstance(RecycleDrafter(), Drafter)


def test_what_was_guessed_in_the_prompt_after_the_same_token_is_proposed_by_rank():
    session = begun(RecycleDrafter(), [1, 2, 3], 1, guesses=[[7, 8, 9], [30, 31, 32], [40, 41, 42]])

    assert [token for token in children(propose(session)) if token < 10] == [7, 8, 9]


def test_guesses_after_the_same_two_tokens_come_before_those_after_the_last_alone():
    session = begun(RecycleDrafter(), [1, 2, 5, 2, 1], 2, guesses=[[9], [10], [9], [11], [9]])

    assert children(propose(session))[0] == 10


def test_guesses_of_a_prompt_whose_beginning_was_cached_belong_to_its_end():
    session = begun(RecycleDrafter(), [1, 2, 3, 4], 3, guesses=[[20], [21]])

    assert children(propose(session))[0] == 20


def test_a_prompt_without_guesses_is_no_obstacle():
    session = begun(RecycleDrafter(), [1, 2], 3, last=opinion({3: 0.9, 4: 0.05}))

    assert 4 in children(propose(session))


def test_the_target_s_probabilities_rank_and_score_what_is_proposed():
    session = begun(RecycleDrafter(), [1], 2)
    plain_step(session, 3, {3: 0.1, 4: 0.8})
    plain_step(session, 2, {2: 0.9})

    tree = propose(session)

    assert [token for token in children(tree) if token in (3, 4)] == [4, 3]
    assert tree.scores[node_at(tree, 4)] > tree.scores[node_at(tree, 3)] + 1.0


def test_opinions_after_rejected_nodes_are_remembered():
    session = begun(RecycleDrafter(), [1], 2)
    plain_step(session, 2, {3: 0.6, 4: 0.3})  # 3 and 4 may follow 2

    tree = propose(session)
    session.observe([followed(tree, [9], {(3,): {20: 0.9}, (4,): {21: 0.9}})])
    plain_step(session, 3)

    assert children(propose(session))[0] == 20


def test_a_new_token_is_followed_by_what_followed_its_rivals():
    session = begun(RecycleDrafter(), [1], 2)
    plain_step(session, 2, {3: 0.6, 4: 0.3})

    session.observe([followed(propose(session), [9], {(3,): {20: 0.9}})])

    assert children(propose(session))[0] == 20


def test_a_later_opinion_outweighs_an_earlier_one():
    session = begun(RecycleDrafter(), [1], 2)
    for probs in ({10: 0.9}, {11: 0.9}, {11: 0.9}):
        plain_step(session, 3, probs)
        plain_step(session, 2)

    assert children(propose(session))[:2] == [11, 10]


def test_opinions_without_a_preference_are_not_remembered():
    session = begun(RecycleDrafter(), [1], 2)
    plain_step(session, 2, {7: 0.9})
    for _ in range(10):
        plain_step(session, 2, {})

    assert children(propose(session))[0] == 7


def test_where_nothing_is_known_the_tokens_guessed_lately_anywhere_are_proposed():
    session = begun(RecycleDrafter(), [1, 2], 3, guesses=[[7, 8], [7, 9]])

    assert children(propose(session))[0] == 7


def test_trees_grow_by_chaining_guesses():
    session = begun(RecycleDrafter(), [1, 2, 3, 1], 2, guesses=[[2], [3], [1], [2]])

    assert (3, 1, 2, 3) in paths(propose(session))


def test_budget_zero_gives_the_root_alone():
    session = begun(RecycleDrafter(), [1, 2], 1, guesses=[[2], [1]])

    assert propose(session, budget=0, depth=0).token_list == (1,)


def test_a_static_topology_is_filled_by_rank():
    session = begun(RecycleDrafter(), [1, 2, 3], 1, guesses=[[7, 8], [9, 10], [9, 10]])
    topology = from_paths([[0], [1], [2]])

    tree = propose(session, topology=topology)

    assert (tree.topology, tree.token_list[:2]) == (topology, (1, 7))


def test_padding_of_the_vocabulary_is_never_proposed():
    drafter = RecycleDrafter()
    session = drafter.begin([torch.tensor([1])], context(vocab_size=VOCAB - 10))
    session.observe([prefilled(1, last=opinion({VOCAB - 1: 0.9, 3: 0.05}))])

    tree = propose(session)

    assert 3 in children(tree)
    assert max(tree.token_list) < VOCAB - 10


def test_rows_learn_apart_and_leave_the_batch():
    session = RecycleDrafter().begin([torch.tensor([1])] * 3, context(3))
    session.observe([prefilled(1, guesses=[[token]]) for token in (10, 11, 12)])

    session.keep([2, 0])

    assert [children(tree)[0] for tree in session.propose([limits()] * 2)] == [12, 10]


def test_generations_share_nothing():
    drafter = RecycleDrafter()
    begun(drafter, [1, 2], 1, guesses=[[7], [7]])

    assert 7 not in children(propose(begun(drafter, [1, 2], 1, guesses=[[8], [8]])))


def test_a_warm_table_carries_guesses_into_the_next_generation():
    table = RecycleTable()
    begun(RecycleDrafter(table=table), [1, 2], 3, guesses=[[7], [8]])

    session = begun(RecycleDrafter(table=table), [9], 1, guesses=[[10]])

    assert len(table) > 0
    assert 7 in children(propose(session))


def test_a_table_drops_what_was_not_renewed_for_longest():
    table = RecycleTable(capacity=8)
    guesses = [[token + 1] for token in range(50)]

    session = begun(RecycleDrafter(table=table), range(50), 49, guesses=guesses)

    assert len(table) <= 8
    assert children(propose(session))[0] == 50


def test_a_table_needs_room():
    with pytest.raises(ConfigError, match="capacity must be at least 1, got 0"):
        RecycleTable(capacity=0)


def test_the_table_counts_on_without_end():
    table = RecycleTable()
    for token in (8, 9):
        for _ in range(40_000):  # more than a float could hold if weights grew for ever
            table.count(Guess([token], [0.5], is_exact=True))

    table.refresh()

    assert table.evidence((1, 2))[0].tokens[0] == 9


@pytest.mark.parametrize("vocab", [100, 5000, 5011, 151_936])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opinions_name_the_most_probable_tokens(vocab, dtype):
    generator = torch.Generator().manual_seed(vocab)
    logits = (3 * torch.randn(4, vocab, generator=generator)).to(dtype)

    found = opinions_of([logits[:1], logits[1:]], vocab_size=vocab, temperature=0.0)

    best = logits.float().topk(TOP).values
    assert [len(row) for row in found] == [1, 3]
    for row, opinion_ in zip(range(4), [*found[0], *found[1]], strict=True):
        assert len(set(opinion_.tokens)) == TOP
        torch.testing.assert_close(logits[row, opinion_.tokens].float(), best[row])


@pytest.mark.parametrize("temperature", [0.0, 0.5, 2.0])
def test_opinions_tell_probabilities_at_the_temperature(temperature):
    logits = 4 * torch.randn(3, 100, generator=torch.Generator().manual_seed(1))

    found = opinions_of([logits], vocab_size=100, temperature=temperature)[0]

    probs = torch.softmax(logits / (temperature or 1.0), dim=-1)
    for row, opinion_ in enumerate(found):
        assert opinion_.probs == pytest.approx(probs[row, opinion_.tokens].tolist(), rel=1e-5)


@pytest.mark.parametrize("spread", [0.0, 2.0, 6.0])
def test_opinions_of_large_vocabularies_never_exceed_a_probability_of_one(spread):
    logits = spread * torch.randn(20, 5011, generator=torch.Generator().manual_seed(1))

    found = opinions_of([logits], vocab_size=5011, temperature=0.0)[0]

    assert all(sum(opinion_.probs) <= 1 + 1e-5 for opinion_ in found)


def test_opinions_of_large_vocabularies_are_nearly_exact_where_the_target_is_sure():
    logits = torch.randn(1, 50_000, generator=torch.Generator().manual_seed(0))
    logits[0, [17, 40_000]] = torch.tensor([18.0, 16.0])

    found = opinions_of([logits], vocab_size=50_000, temperature=0.0)[0][0]

    assert found.tokens[:2] == [17, 40_000]
    exact = torch.softmax(logits, dim=-1)[0, [17, 40_000]].tolist()
    assert found.probs[:2] == pytest.approx(exact, rel=1e-2)


def test_opinions_leave_padding_out():
    logits = torch.zeros(1, 6000)
    logits[0, 5990:] = 50.0
    logits[0, 5] = 9.0

    found = opinions_of([logits], vocab_size=5990, temperature=0.0)[0][0]

    assert found.tokens[0] == 5
    assert max(found.tokens) < 5990


def test_a_tiny_vocabulary_has_fewer_tokens_than_an_opinion_may_name():
    found = opinions_of([torch.zeros(2, 5)], vocab_size=5, temperature=0.0)[0]

    assert [sorted(one.tokens) for one in found] == [[0, 1, 2, 3, 4]] * 2
