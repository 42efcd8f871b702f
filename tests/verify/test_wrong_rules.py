"""Rules that are wrong in ways that have been shipped: enumeration has to tell them from p.

Each is the mistake alone, on top of the shipped rule. The first token's law of some of them is
exact, so that only the joint law of several tokens gives them away.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import ClassVar

import pytest

from tests.verify.tables import SHAPES, SameEverywhere, fractions
from treespec.tree import TokenTree, TreeTopology
from treespec.verify import Acceptance, Rule
from treespec.verify.enumeration import Draft, LawTable, every_draft, law_lookup
from treespec.verify.exact import ExactLaw, law_of_drafts, output_law, target_law
from treespec.verify.kseq import smallest_rho
from treespec.verify.randomness import Randomness
from treespec.verify.rule import ANY_TREE, Selection, Shape, Siblings, TreeLaws, walk_down

pytestmark = pytest.mark.usefixtures("plain_calls")

SKEWED = (fractions("2/5 2/5 1/10 1/10"), fractions("1/10 1/5 3/10 2/5"))
A_THIRD = (fractions("1/3 2/3"), fractions("2/3 1/3"))


class Wrong(Rule):
    """A rule without refusals, so that any mistake can be planted."""

    name = "wrong"
    lossless = False
    shapes: ClassVar[Mapping[str, Shape]] = dict.fromkeys(
        ("iid", "swor", "iid_paths", "topk"), ANY_TREE
    )
    draws = tuple(shapes)


class WrongSelection(Wrong):
    """Walks down with a given one-position rule."""

    def __init__(self, select: Callable[[Siblings, Randomness], Selection]) -> None:
        self.select = select

    def decide(self, tree: TokenTree, laws: TreeLaws, randomness: Randomness) -> Acceptance:
        return walk_down(tree, laws, randomness, self.select)


class UncappedBlock(Wrong):
    """Accepts a whole chain with the plain product of its ratios."""

    def decide(self, tree: TokenTree, laws: TreeLaws, randomness: Randomness) -> Acceptance:
        size = len(tree)
        weights, product = [Fraction(1)], Fraction(1)
        for node in range(1, size):
            token = tree.token_list[node]
            ratio = laws.target(node - 1)[token] / laws.draft(node - 1)[token]
            product *= ratio
            weights.append(min(1, weights[-1] * ratio))
        if randomness.accept(product):
            return Acceptance(tuple(range(size)), randomness.choose(laws.target(size - 1)))
        for node in reversed(range(size - 1)):
            residual = laws.target(node).scaled(weights[node]).minus(laws.draft(node))
            mass = residual.total()
            if node == 0 or randomness.accept(mass / (mass + 1 - weights[node])):
                law = residual if mass > 0 else laws.target(node)
                return Acceptance(tuple(range(node + 1)), randomness.choose(law))
        raise AssertionError("the root answers for certain")


def skip_duplicates(siblings: Siblings, randomness: Randomness) -> Selection:
    """Recursive rejection that passes over a sibling whose token was rejected before."""
    left, seen = siblings.target, set()
    for index, (token, law) in enumerate(zip(siblings.tokens, siblings.laws, strict=False)):
        if token in seen:
            continue
        seen.add(token)
        if randomness.accept(left[token] / law[token]):
            return Selection(index, left)
        left = left.minus(law).normalized()
    return Selection(None, left)


def keep_removed_tokens(siblings: Siblings, randomness: Randomness) -> Selection:
    """Recursive rejection against the declared law itself, as if tokens were put back."""
    left, law = siblings.target, next(siblings.laws)
    for index, token in enumerate(siblings.tokens):
        if randomness.accept(left[token] / law[token]):
            return Selection(index, left)
        left = left.minus(law).normalized()
    return Selection(None, left)


def recover_from_target(siblings: Siblings, randomness: Randomness) -> Selection:
    """The classic rule, but a rejected token is replaced by one from p."""
    (token,) = siblings.tokens
    law = next(siblings.laws)
    accepted = randomness.accept(siblings.target[token] / law[token])
    return Selection(0 if accepted else None, siblings.target)


def fresh_sample_per_candidate(siblings: Siblings, randomness: Randomness) -> Selection:
    """A new sample from p for every candidate: a token may be tested more than once."""
    for index, token in enumerate(siblings.tokens):
        if randomness.choose(siblings.target) == token:
            return Selection(index, siblings.target)
    return Selection(None, siblings.target)


def damp_too_little(siblings: Siblings, randomness: Randomness) -> Selection:
    """K-SEQ with a rho below the root, whose residual does not exist."""
    target, draft, count = siblings.target, next(siblings.laws), len(siblings.tokens)
    rho = 1 + (smallest_rho(target, draft, count) - 1) / 2
    for index, token in enumerate(siblings.tokens):
        if randomness.accept(target[token] / (rho * draft[token])):
            return Selection(index, target)
    matched = draft.minimum(target.scaled(1 / rho))
    beta = matched.total()
    left = target.minus(matched.scaled((1 - (1 - beta) ** count) / beta))
    return Selection(None, left if left.total() > 0 else target)


def by_draft_probability(draft: Draft, q_table: LawTable) -> Draft:
    """The same tree with the root's children in order of q instead of draw order."""
    tree = draft.tree
    tokens = sorted(tree.token_list[1:], key=lambda token: (-q_table[()][token], token))
    return Draft(
        TokenTree.from_lists(tree.topology.parent_list, [0, *tokens], draw=tree.draw),
        draft.probability,
    )


def distance(found: ExactLaw, p_table: LawTable, length: int) -> Fraction:
    """Total variation from the target's own law."""
    return found.total_variation(target_law(p_table, length))


@pytest.mark.parametrize(("length", "expected"), [(1, "0"), (3, "5/81")])
def test_uncapped_block_rule_is_biased_from_the_second_token_on(length: int, expected: str):
    p, q = A_THIRD
    p_table, q_table = SameEverywhere(p), SameEverywhere(q)
    found = output_law(UncappedBlock(), p_table, q_table, SHAPES[f"chain{length}"], draw="iid")

    assert Fraction(expected) == distance(found, p_table, length + 1)


def test_uncapped_block_rule_hides_from_a_test_of_the_first_token_alone():
    p, q = A_THIRD
    found = output_law(
        UncappedBlock(), SameEverywhere(p), SameEverywhere(q), SHAPES["chain2"], draw="iid"
    )
    first = [sum(w for tokens, w in found.law.items() if tokens[0] == x) for x in (0, 1)]

    assert p == first
    assert distance(found, SameEverywhere(p), 3) > 0


@pytest.mark.parametrize(
    ("select", "draw", "candidates", "expected"),
    [
        (skip_duplicates, "iid", 2, "332/875 368/875 1/10 1/10"),
        (keep_removed_tokens, "swor", 2, "18/49 106/245 1/10 1/10"),
        (recover_from_target, "iid", 1, "3/10 2/5 3/20 3/20"),
        (fresh_sample_per_candidate, "topk", 2, "81/250 81/250 171/1000 181/1000"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_planted_mistake_gives_its_biased_law(
    select: Callable, draw: str, candidates: int, expected: str
):
    """The target's law is (2/5, 2/5, 1/10, 1/10)."""
    p, q = SKEWED
    topology = TreeTopology([-1] + [0] * candidates)
    drafts = every_draft(law_lookup({(): q}, "q_table"), topology, draw)
    tables = SameEverywhere(p), SameEverywhere(q)
    found = law_of_drafts(WrongSelection(select), drafts, *tables, length=1)

    assert fractions(expected) == [found.law[(token,)] for token in range(4)]


def test_kseq_with_less_damping_than_it_needs_is_biased():
    p_table, q_table = map(SameEverywhere, SKEWED)
    found = output_law(
        WrongSelection(damp_too_little), p_table, q_table, SHAPES["bin1"], draw="iid"
    )

    assert distance(found, p_table, 2) > Fraction(1, 30)


def test_a_sample_per_candidate_row_gives_the_worked_bias():
    p_table = SameEverywhere(fractions("1/2 1/2"))
    trees = [
        Draft(TokenTree.from_lists([-1, 0, 0], [0, *row], draw="topk"), Fraction(1))
        for row in ((0, 1),)
    ]
    found = law_of_drafts(
        WrongSelection(fresh_sample_per_candidate), trees, p_table, p_table, length=1
    )

    assert {(0,): Fraction(5, 8), (1,): Fraction(3, 8)} == found.law


def test_siblings_drawn_without_replacement_must_not_be_sorted_by_probability():
    p_table = SameEverywhere(fractions("1/2 3/10 1/5"))
    q_table = SameEverywhere(fractions("1/5 3/10 1/2"))
    drafts = every_draft(law_lookup(q_table, "q_table"), SHAPES["bin1"], "swor")
    drafts = [by_draft_probability(draft, q_table) for draft in drafts]
    found = law_of_drafts("rejection", drafts, p_table, q_table, length=1)

    expected = dict(zip([(0,), (1,), (2,)], fractions("141/280 9/56 47/140"), strict=True))
    assert expected == found.law


def test_argmax_drafts_declared_as_samples_give_the_worked_bias():
    p_table = SameEverywhere(fractions("1/2 3/10 1/5"))
    q_table = SameEverywhere(fractions("3/5 1/5 1/5"))
    drafts = [Draft(TokenTree.from_lists([-1, 0], [0, 0], draw="iid"), 1)]
    found = law_of_drafts("token", drafts, p_table, q_table, length=1)

    assert {(0,): Fraction(5, 6), (1,): Fraction(1, 6)} == found.law


def test_dropping_drawn_tokens_for_their_value_gives_the_worked_bias():
    p_table = SameEverywhere(fractions("1/2 1/2"))
    q_table = SameEverywhere(fractions("3/4 1/4"))
    drafts = [
        Draft(TokenTree.from_lists([-1, 0], [0, 0], draw="iid"), Fraction(3, 4)),
        Draft(TokenTree.root_only(0, draw="iid"), Fraction(1, 4)),
    ]
    found = law_of_drafts("token", drafts, p_table, q_table, length=1)

    assert {(0,): Fraction(5, 8), (1,): Fraction(3, 8)} == found.law


def test_declaring_raw_probabilities_for_processed_draws_gives_the_worked_bias():
    """Drawn with top-k, declared without: what top-k removed never comes out."""
    raw = SameEverywhere(fractions("1/2 3/10 1/5"))
    drawn = law_lookup(SameEverywhere(fractions("5/8 3/8 0")), "drawn")
    drafts = every_draft(drawn, TreeTopology([-1, 0]), "iid")
    found = law_of_drafts("token", drafts, raw, raw, length=1)

    assert {(0,): Fraction(5, 8), (1,): Fraction(3, 8)} == found.law
    assert Fraction(1, 5) == distance(found, raw, 1)
