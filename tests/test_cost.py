"""How large a tree is worth its time: costs from timed steps, gains from drafters' estimates."""

import math

import pytest

from tests.families import VOCAB, build, family
from tests.rig import DRAFTERS, NearTies, plain_greedy, random_prompts
from treespec import AutoTree, ConfigError, TreeDecoder
from treespec.cost import SIZES, BudgetControl, StepCosts, best_nodes, costs_of, place_of
from treespec.tree.token_tree import TokenTree
from treespec.verify.acceptance import Acceptance

FLAT = dict.fromkeys(SIZES, 1.0)
STEEP = {size: float(size) for size in SIZES}


def costs(seconds: dict[int, float], rows: int = 1) -> StepCosts:
    """Costs after three steps of every size."""
    found = StepCosts()
    for _ in range(3):
        for size, elapsed_s in seconds.items():
            found.record(rows, size, elapsed_s)
    return found


def chain(probs: list[float], draw: str = "topk") -> TokenTree:
    """A chain whose nodes are each accepted with a probability, given their parent."""
    scores = [0.0]
    for prob in probs:
        scores.append(scores[-1] + math.log(prob))
    size = len(scores)
    return TokenTree.from_lists(range(-1, size - 1), list(range(size)), scores=scores, draw=draw)


def test_the_best_nodes_are_a_tree_in_the_old_order():
    tree = TokenTree.from_lists(
        [-1, 0, 0, 1, 2, 2],
        [9, 1, 2, 3, 4, 5],
        scores=[0.0, -1.0, -0.1, -1.1, -0.5, -3.0],
        source=[0, 1, 2, 1, 2, 3],
    )

    best = best_nodes(tree, 4)

    assert best.topology.parent_list == (-1, 0, 0, 2)
    assert best.token_list == (9, 1, 2, 4)
    assert best.sources.tolist() == [0, 1, 2, 2]
    assert best.scores.tolist() == pytest.approx([0.0, -1.0, -0.1, -0.5])


def test_a_child_rated_above_its_parent_goes_with_it():
    tree = TokenTree.from_lists([-1, 0, 1, 0], [9, 1, 2, 3], scores=[0.0, -5.0, -0.1, -1.0])

    assert best_nodes(tree, 3).token_list == (9, 3)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_no_more_nodes_are_kept_than_asked_for(size):
    assert len(best_nodes(chain([0.9] * 9), size)) == size


def test_a_larger_size_is_never_estimated_cheaper():
    found = costs({1: 1.0, 16: 3.0, 32: 2.0})

    estimates = found.estimates(rows=1)

    assert estimates == sorted(estimates)
    assert estimates[place_of(1)] == 1.0
    assert 3.0 <= estimates[place_of(32)] < 3.1


def test_one_step_that_was_held_up_does_not_count():
    found = costs({16: 1.0})
    found.record(1, 16, 50.0)

    assert found.estimates(rows=1)[place_of(16)] == 1.0


def test_times_with_as_many_rows_count_before_all_others():
    found = costs(FLAT, rows=2)
    for size in SIZES:
        found.record(4, size, 9.0)

    assert found.estimates(rows=2) == [1.0] * len(SIZES)


def test_an_untimed_number_of_rows_is_judged_by_the_nodes_of_all_rows():
    found = costs(STEEP, rows=4)

    estimates = found.estimates(rows=8)

    # Eight rows of one node take what four take of two: between four of one and four of eight.
    assert estimates[place_of(1)] == pytest.approx(2.0)
    assert estimates[place_of(24)] == pytest.approx(48.0)
    assert estimates[place_of(64)] == pytest.approx(128.0)  # goes on as it rose


def test_many_rows_with_one_time_are_not_taken_for_free_of_nodes():
    estimates = costs({16: 1.0}, rows=31).estimates(rows=31)

    assert estimates[place_of(1)] < 0.6
    assert costs({16: 1.0}).estimates(rows=1)[place_of(1)] > 0.95


@pytest.mark.parametrize("rows", [1, 31])
def test_the_first_step_of_all_is_plain_as_drafts_must_beat_that(rows):
    table, trees = StepCosts(), [chain([0.9] * 40)] * rows
    control = BudgetControl(table, rows)
    sizes = []
    for _ in range(2):
        cut = control.cut(trees, range(rows))
        sizes.append(len(cut[0]))
        control.saw([Acceptance((0,), 1)] * rows, range(rows), cut, 1.0)

    assert sizes[0] == 1
    assert sizes[1] > 1


def rests_of(draft_s: float, probs: list[float]) -> list[int]:
    """Steps between drafts, where nodes are as dear as steps."""
    control = BudgetControl(costs(STEEP), rows=1)
    rests = []
    for _ in range(7):
        control.cut([chain(probs)], [0], draft_s)
        rests.append(0)
        while control.rests():
            rests[-1] += 1
    return rests


def test_drafting_that_costs_more_than_it_gives_is_tried_less_and_less_often():
    assert rests_of(0.5, [0.5] * 9) == [1, 3, 7, 15, 31, 31, 31]


def test_drafting_goes_on_where_it_costs_nothing_or_pays():
    assert rests_of(0.001, [0.5] * 9) == [0] * 7
    control = BudgetControl(costs(FLAT), rows=1)
    control.cut([chain([0.9] * 9)], [0], 0.5)
    assert not control.rests()


@pytest.mark.parametrize(
    ("seconds", "probs", "nodes"),
    [
        (FLAT, [0.9] * 40, 41),
        (STEEP, [0.9] * 40, 1),
        (FLAT | {24: 5.0, 32: 5.0, 48: 5.0, 64: 5.0}, [0.9] * 40, 16),
        (FLAT | {8: 1.2, 16: 1.2}, [0.05] * 10, 1),
    ],
    ids=["free nodes", "nodes as dear as steps", "a jump behind 16", "a hopeless draft"],
)
def test_a_tree_is_cut_to_the_size_that_pays(seconds, probs, nodes):
    control = BudgetControl(costs(seconds), rows=1)

    (tree,) = control.cut([chain(probs)], [0])

    assert len(tree) == nodes


def test_promises_that_do_not_come_true_are_believed_less_and_less():
    table = costs(FLAT | dict.fromkeys(SIZES[1:], 1.5))
    control, tree = BudgetControl(table, rows=1), chain([0.6] * 5)
    sizes = []
    for _ in range(30):
        cut = control.cut([tree], [0])
        sizes.append(len(cut[0]))
        control.saw([Acceptance((0,), 1)], [0], cut, 1.0 if len(cut[0]) == 1 else 1.5)

    assert sizes[0] == 6
    assert sizes[-1] == 1


def test_sampled_tokens_are_not_cut_by_their_value():
    control = BudgetControl(costs(STEEP), rows=1)
    tree = chain([0.1] * 9, draw="swor")

    assert control.cut([tree], [0]) == [tree]


def test_a_size_not_timed_for_long_is_timed_again_where_it_is_close():
    table = costs(FLAT | {1: 0.99})
    for _ in range(70):
        table.record(1, 64, 1.0)
    control = BudgetControl(table, rows=1)

    (tree,) = control.cut([chain([0.02] * 60)], [0])

    assert len(tree) == 1


@pytest.mark.parametrize("seconds", [FLAT, STEEP, {1: 1.0, 16: 1.0}], ids=["flat", "steep", "few"])
@pytest.mark.parametrize("drafter", ["half", "sibling"])
def test_text_is_the_same_whatever_steps_cost(drafter, seconds, near_ties: NearTies):
    model = build(family("llama"), "sdpa")
    prompt = random_prompts((7, 3), VOCAB)
    plain = plain_greedy(model, prompt, 24)
    for rows in (1, 2):
        table = costs(seconds, rows)
        costs_of(model)._usual.update(table._usual)
    decoder = TreeDecoder(model, DRAFTERS[drafter]([one.tokens for one in plain]))

    output = decoder.generate(
        prompt.input_ids,
        attention_mask=prompt.attention_mask,
        max_new_tokens=24,
        do_sample=False,
        pad_token_id=0,
    )

    for row, one in enumerate(plain):
        near_ties.check(one, output.sequences[row, prompt.width :].tolist(), f"row {row}")


def test_budgets_are_checked():
    with pytest.raises(ConfigError, match="budget_sampled must be at least 1, got 0"):
        AutoTree(budget_sampled=0)


def test_a_rule_that_samples_its_draft_gets_trees_of_one_size():
    assert AutoTree(budget_sampled=7).fixed().limits(depth=99).budget == 7
