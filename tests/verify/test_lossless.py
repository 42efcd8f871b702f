"""Every rule, draw and shape on small random models: the output law is the target's, exactly."""

import itertools

import pytest

from tests.verify.tables import KINDS, SHAPES, fractions, random_tables
from treespec.tree import TreeTopology
from treespec.verify import VERIFIERS, make_verifier
from treespec.verify.enumeration import LawTable, every_draft, law_lookup
from treespec.verify.exact import every_emission, law_of_drafts, output_law, target_law
from treespec.verify.laws import Number

pytestmark = pytest.mark.usefixtures("plain_calls")

CHAINS = ("single", "chain1", "chain2", "chain3")
PATHS = (*CHAINS, "bin1", "2x1")
TREES = ("single", "chain2", "bin1", "2x1", "root2_first_deep", "root2_second_deep", "ragged")
LOSSLESS = [
    *itertools.product(("token", "block"), ("iid",), CHAINS),
    *itertools.product(("rejection", "traversal"), ("iid", "swor", "topk"), TREES),
    *itertools.product(("rejection", "traversal", "kseq"), ("iid_paths",), PATHS),
    *itertools.product(("kseq",), ("iid",), ("single", "chain1", "bin1", "triple")),
    *itertools.product(("gumbel",), ("shared", "iid", "swor", "topk"), TREES),
    *itertools.product(("gumbel",), ("iid_paths",), ("2x1",)),
]
LARGE = [
    *itertools.product(("rejection", "traversal", "gumbel"), ("iid", "swor", "topk"), ("bin2",)),
    *itertools.product(("rejection", "traversal", "kseq"), ("iid_paths",), ("2x2", "3x1")),
]


def assert_lossless(
    rule: str, draw: str, topology: TreeTopology, tables: tuple[LawTable, LawTable]
):
    """The output law over depth + 1 tokens has to be the target's, as fractions."""
    found = output_law(rule, *tables, topology, draw=draw)

    assert target_law(tables[0], topology.max_depth + 1).law == found.law


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rule", "draw", "shape"), LOSSLESS)
def test_output_law_is_the_targets(rule: str, draw: str, shape: str, kind: str):
    topology = SHAPES[shape]
    vocab_size = 3 if len(topology) <= 3 else 2

    assert_lossless(rule, draw, topology, random_tables(7, vocab_size, topology.max_depth, kind))


@pytest.mark.parametrize(
    ("rule", "draw"),
    [*itertools.product(("rejection", "traversal"), ("iid", "swor", "topk")), ("kseq", "iid")],
)
@pytest.mark.parametrize("shape", ["bin1", "triple"])
def test_output_law_is_the_targets_where_the_draft_prefers_what_the_target_does_not(
    rule: str, draw: str, shape: str
):
    p, q = fractions("2/5 2/5 1/10 1/10"), fractions("1/10 1/5 3/10 2/5")
    p_table = {(): p} | {(token,): p for token in range(4)}

    assert_lossless(rule, draw, SHAPES[shape], (p_table, {(): q}))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rule", "draw", "shape"), [*LOSSLESS, *LARGE])
def test_output_law_is_the_targets_on_larger_models(rule: str, draw: str, shape: str, kind: str):
    topology = SHAPES[shape]
    for seed in range(4):
        vocab_size = 4 if len(topology) <= 3 else 3 if len(topology) <= 5 else 2
        assert_lossless(
            rule, draw, topology, random_tables(seed, vocab_size, topology.max_depth, kind)
        )


def after(table: LawTable, tokens: tuple[int, ...]) -> LawTable:
    """The table of what comes after some tokens."""
    start = len(tokens)
    return {prefix[start:]: law for prefix, law in table.items() if prefix[:start] == tokens}


def two_steps(rule: str, draw: str, topology: TreeTopology, tables: tuple[LawTable, LawTable]):
    """Law of the tokens that two steps of one rule object emit, completed to their maximum."""
    verifier, p_table = make_verifier(rule), tables[0]
    law: dict[tuple[int, ...], Number] = {}
    for first in every_emission(verifier, *tables, topology, draw=draw):
        rest = [after(table, first.tokens) for table in tables]
        for second in every_emission(verifier, rest[0], rest[1], topology, draw=draw):
            tokens = first.tokens + second.tokens
            law[tokens] = law.get(tokens, 0) + first.probability * second.probability
    while short := [tokens for tokens in law if len(tokens) < 2 * (topology.max_depth + 1)]:
        for tokens in short:
            weight = law.pop(tokens)
            for token, chance in enumerate(p_table[tokens]):
                longer = (*tokens, token)
                law[longer] = law.get(longer, 0) + weight * chance
    return {tokens: weight for tokens, weight in law.items() if weight > 0}


@pytest.mark.parametrize(
    ("rule", "draw", "shape"),
    [
        ("token", "iid", "chain2"),
        ("block", "iid", "chain2"),
        ("rejection", "swor", "bin1"),
        ("rejection", "iid", "bin1"),
        ("traversal", "swor", "bin1"),
        ("traversal", "topk", "root2_first_deep"),
        ("kseq", "iid_paths", "bin1"),
        ("gumbel", "shared", "root2_first_deep"),
    ],
)
def test_two_steps_in_a_row_emit_the_targets_law(rule: str, draw: str, shape: str):
    topology = SHAPES[shape]
    length = 2 * (topology.max_depth + 1)
    tables = random_tables(3, 2, length, "zeros")

    assert target_law(tables[0], length).law == two_steps(rule, draw, topology, tables)


def test_trees_whose_growth_depends_on_what_was_drawn_stay_lossless_under_sequential_rules():
    """Drawing more only where the first token is 0 is a decision to go on, not to drop."""
    p_table, q_table = random_tables(11, 2, 2)
    draft_law = law_lookup(q_table, "q_table")
    drafts = [
        draft
        for shape, first in (("root2_first_deep", 0), ("chain1", 1))
        for draft in every_draft(draft_law, SHAPES[shape], "iid")
        if draft.tree.token_list[1] == first
    ]
    for rule in ("rejection", "traversal"):
        found = law_of_drafts(rule, drafts, p_table, q_table, length=3)

        assert target_law(p_table, 3).law == found.law


def test_typical_acceptance_is_seen_to_be_biased():
    p_table, q_table = random_tables(7, 3, 1)
    found = output_law("typical", p_table, q_table, SHAPES["bin1"], draw="topk")

    assert found.total_variation(target_law(p_table, 2)) > 0.1


def test_every_lossless_verifier_is_enumerated():
    tried = {rule for rule, _, _ in LOSSLESS}

    assert {name for name in VERIFIERS if make_verifier(name).lossless} == tried


@pytest.mark.parametrize("name", VERIFIERS)
def test_every_draw_of_a_lossless_rule_is_enumerated(name: str):
    verifier = make_verifier(name)
    tried = {draw for rule, draw, _ in LOSSLESS if rule == name}

    assert not verifier.lossless or set(verifier.draws) == tried
