import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.drafters.script import (
    VOCAB,
    begun,
    children,
    context,
    followed,
    limits,
    node_at,
    paths,
    prefilled,
)
from treespec.drafters.base import Drafter
from treespec.drafters.lookup import LookupDrafter
from treespec.drafters.ngrams import (
    LONGEST_MATCH,
    RESUMED_MATCH,
    SIZES,
    FrozenNgrams,
    GrowingNgrams,
)
from treespec.errors import ConfigError
from treespec.tree.planning import from_paths


def propose(session, **bounds):
    return session.propose([limits(**bounds)])[0]


def test_lookup_drafter_is_a_drafter():
    assert isinstance(LookupDrafter(), Drafter)


def test_a_long_copy_is_drafted_as_one_chain_over_the_whole_budget():
    source = random.Random(0).choices(range(VOCAB), k=60)

    session = begun(LookupDrafter(), [*source, *source[:12]], source[12])

    assert tuple(source[13:44]) in paths(propose(session, budget=31))


def test_scores_of_a_long_copy_stay_high():
    source = random.Random(0).choices(range(VOCAB), k=60)

    tree = propose(begun(LookupDrafter(), [*source, *source[:30]], source[30]), budget=20)

    assert tree.scores.exp()[node_at(tree, *source[31:46])] > 0.6


def test_different_continuations_become_branches_the_latest_first():
    tree = propose(begun(LookupDrafter(), [1, 2, 3, 9, 1, 2, 4, 8, 1], 2))

    assert children(tree)[:2] == [4, 3]


def test_what_followed_more_often_comes_first():
    tree = propose(begun(LookupDrafter(), [5, 3, 6, 5, 3, 7, 5, 4, 8], 5))

    assert children(tree)[:2] == [3, 4]


def test_a_longer_match_beats_a_later_one():
    tree = propose(begun(LookupDrafter(), [7, 1, 2, 3, 30, 2, 4, 31, 7, 1], 2))

    assert children(tree)[:2] == [3, 4]


def test_a_branch_that_parts_from_a_copy_is_continued_by_what_matches_it():
    tree = propose(begun(LookupDrafter(), [1, 2, 3, 10, 11, 20, 3, 12, 13, 21, 1], 2))

    assert {10, 12} <= set(children(tree, 3))


def test_a_copy_with_one_word_changed_goes_on_as_a_copy():
    source = [9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 3, 20]
    rival = [18, 3, 21]
    copy = [9, 10, 11, 12, 13, 14, 15, 16, 40, 18]

    tree = propose(begun(LookupDrafter(), [*source, *rival, *copy], 3))

    assert children(tree)[0] == 20


def test_a_repetition_is_drafted_beyond_the_end_of_the_text():
    tree = propose(begun(LookupDrafter(), [1, 2, 1, 2, 1], 2), budget=12)

    assert (1, 2) * 5 in paths(tree)


def test_emitted_tokens_are_looked_up_too():
    session = begun(LookupDrafter(), [1, 2, 3], 4)

    for ahead in ([5], [6], [7], [4]):
        session.observe([followed(propose(session, budget=0), ahead)])

    assert children(propose(session))[0] == 5


def test_accepted_tokens_enter_the_text_in_order():
    session = begun(LookupDrafter(), [1, 2, 3, 4, 1], 2)

    session.observe([followed(propose(session), [3, 4, 40])])
    session.observe([followed(propose(session, budget=0), [3])])
    session.observe([followed(propose(session, budget=0), [4])])

    assert children(propose(session))[0] == 40


def test_kinds_of_matches_that_keep_failing_lose_their_scores():
    session = begun(LookupDrafter(), [1, 2, 1, 3, 1, 4, 1, 5, 1, 6], 1)
    before = float(propose(session).scores[1])

    for stray in range(10, 40):
        session.observe([followed(propose(session), [stray])])
        session.observe([followed(propose(session), [1])])

    assert float(propose(session).scores[1]) < before - 0.5


def test_nothing_is_proposed_without_a_match():
    assert len(propose(begun(LookupDrafter(), [1, 2, 3], 4))) == 1


def test_budget_zero_gives_the_root_alone():
    tree = propose(begun(LookupDrafter(), [1, 2, 1], 2), budget=0, depth=0)

    assert tree.token_list == (2,)


@pytest.mark.parametrize("bounds", [{"budget": 3}, {"depth": 2}, {"width": 1}])
def test_limits_are_kept(bounds):
    text = random.Random(1).choices(range(4), k=80)

    tree = propose(begun(LookupDrafter(), text, 2), **bounds)

    assert len(tree) - 1 <= bounds.get("budget", 31)
    assert tree.topology.max_depth <= bounds.get("depth", 31)
    assert max(map(len, tree.topology.children)) <= bounds.get("width", 8)
    assert len(tree) > 1


def test_a_static_topology_is_filled_by_rank():
    topology = from_paths([[0], [1], [0, 0]])

    tree = propose(begun(LookupDrafter(), [1, 2, 3, 9, 1, 2, 4, 8, 1], 2), topology=topology)

    assert (tree.topology, tree.token_list) == (topology, (2, 4, 3, 8))


def test_ids_without_a_logit_are_never_proposed():
    drafter = LookupDrafter(corpus=[[1, 2, VOCAB + 1, 3], [2, VOCAB], [2, 4]])

    tree = propose(begun(drafter, [1], 2))

    assert children(tree) == [4]


def test_rows_are_looked_up_apart_and_leave_the_batch():
    drafter = LookupDrafter()
    prompts = [torch.tensor(text) for text in ([1, 2, 1], [1, 3, 1], [1, 4, 1])]
    session = drafter.begin(prompts, context(3))
    session.observe([prefilled(token) for token in (2, 3, 4)])
    session.observe([followed(tree, [1, 9]) for tree in session.propose([limits()] * 3)])

    session.keep([2, 0])
    session.observe([followed(tree, [1]) for tree in session.propose([limits(budget=0)] * 2)])

    assert [children(tree)[:2] for tree in session.propose([limits()] * 2)] == [[4, 9], [2, 9]]


def test_generations_share_nothing():
    drafter = LookupDrafter()
    begun(drafter, [1, 2, 3], 1)

    assert len(propose(begun(drafter, [5], 1))) == 1


def test_a_corpus_is_looked_up_in_every_generation():
    drafter = LookupDrafter(corpus=[torch.tensor([1, 2, 3, 4]), [7, 8]])

    trees = [propose(begun(drafter, [9, 1], 2)) for _ in range(2)]

    assert [paths(tree) for tree in trees] == [{(3,), (3, 4)}] * 2


def test_a_match_does_not_cross_from_one_corpus_text_into_the_next():
    assert len(propose(begun(LookupDrafter(corpus=[[1, 2], [3, 4]]), [9, 1], 2))) == 1


@pytest.mark.usefixtures("_unchecked_types")
@pytest.mark.parametrize("text", [[1, -1], ["a"], torch.zeros(2, 2, dtype=torch.int64)])
def test_a_corpus_text_must_be_token_ids(text):
    with pytest.raises(ConfigError, match=r"corpus\[1\] must be a flat sequence of token ids"):
        LookupDrafter(corpus=[[1], text])


texts = st.lists(st.integers(0, 1), max_size=60)
contexts = st.lists(st.integers(0, 1), min_size=1, max_size=LONGEST_MATCH).map(tuple)


def agreeing(left, right):
    """How many of the last tokens are equal."""
    pairs = zip(reversed(left), reversed(right), strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def brute_force(tokens, context):
    """The match before every place that something follows."""
    matches = {}
    for place in range(1, len(tokens)):
        before = tuple(tokens[:place])
        match = agreeing(before, context)
        if match:
            resumed = agreeing(before[: -match - 1], context[: -match - 1])
            matches[place] = match + (resumed if resumed >= RESUMED_MATCH else 0)
    return matches


@pytest.mark.parametrize("index", [GrowingNgrams, lambda text: FrozenNgrams([text])])
@given(text=texts, context=contexts)
def test_every_place_is_found_with_its_match(index, text, context):
    found = {}

    index(text).find(context, found, most=1000, sizes=len(SIZES))

    assert found == brute_force(text, context)


@pytest.mark.parametrize("index", [GrowingNgrams, lambda text: FrozenNgrams([text])])
@given(text=texts, context=contexts)
def test_the_longest_match_is_among_the_few_places_that_are_taken(index, text, context):
    found = {}

    index(text).find(context, found, most=2, sizes=len(SIZES))

    exact = [agreeing(text[:place], context) for place in range(1, len(text))]
    taken = [agreeing(text[:place], context) for place in found]
    assert indexed_size(max(taken, default=0)) == indexed_size(max(exact, default=0))


def indexed_size(match):
    """The longest n-gram of a match that is indexed."""
    return max((size for size in SIZES if size <= match), default=0)


class Counting(list):
    """A list that counts how often it is read."""

    reads = 0

    def __getitem__(self, place):
        type(self).reads += 1
        return super().__getitem__(place)


@pytest.mark.parametrize("length", [1_000, 20_000])
def test_looking_up_costs_the_same_in_a_longer_text(length):
    index = GrowingNgrams([1] * length)
    index.tokens = Counting(index.tokens)
    Counting.reads = 0

    index.find((1,) * LONGEST_MATCH, {}, most=16, sizes=len(SIZES))

    assert Counting.reads <= 16 * (LONGEST_MATCH + 1)
