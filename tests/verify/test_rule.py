"""Rules as verifiers: what they refuse, what they read of tensors, seeds, and temperature 0."""

import math
import random
from collections.abc import Callable

import pytest
import torch

from tests.verify.tables import SHAPES, random_law
from treespec.errors import ConfigError, DrafterError
from treespec.sampling import RowNoise
from treespec.scores import NodeScores
from treespec.tree import TokenTree, TreeTopology
from treespec.verify import (
    VERIFIERS,
    Acceptance,
    Block,
    Gumbel,
    KSeq,
    Rejection,
    Rule,
    Token,
    Traversal,
    Typical,
    Verifier,
    make_verifier,
)
from treespec.verify.enumeration import every_outcome
from treespec.verify.laws import Law, TableLaw, TensorLaw
from treespec.verify.randomness import KeyedRandomness
from treespec.verify.rule import TreeLaws

VOCAB_SIZE = 5
TRIED = [
    (Token, "iid", "chain3"),
    (Block, "iid", "chain3"),
    (Rejection, "iid", "bin2"),
    (Rejection, "swor", "bin2"),
    (Rejection, "topk", "bin2"),
    (Rejection, "iid_paths", "3x1"),
    (Traversal, "iid", "bin2"),
    (Traversal, "swor", "ragged"),
    (Traversal, "topk", "bin2"),
    (Traversal, "iid_paths", "3x1"),
    (KSeq, "iid_paths", "3x1"),
    (KSeq, "iid_paths", "root2_second_deep"),
    (Traversal, "iid_paths", "root2_second_deep"),
    (KSeq, "iid", "triple"),
    (Typical, "topk", "bin2"),
]


class Drafted:
    """A random tree and both models' laws at its nodes, every row another law."""

    def __init__(self, seed: int, topology: TreeTopology, draw: str) -> None:
        generator = random.Random(f"{seed} {topology} {draw}")
        size = len(topology)
        self.target = [random_law(generator, VOCAB_SIZE, zeros=0.2) for _ in range(size)]
        self.draft = [random_law(generator, VOCAB_SIZE) for _ in range(size)]
        tokens = [0] * size
        for children in topology.children:
            left = list(range(VOCAB_SIZE))
            for child in children:
                tokens[child] = generator.choice(left)
                if draw in ("swor", "topk"):
                    left.remove(tokens[child])
        if draw == "iid_paths":  # rows of nodes with one text are one law
            self.share_rows(topology, tokens)
        self.tree = TokenTree(
            topology,
            torch.tensor(tokens),
            torch.ones(size, dtype=torch.int64),
            draw,
            draft_probs=torch.tensor([[float(w) for w in row] for row in self.draft])
            * torch.tensor([[float(bool(children))] for children in topology.children]),
        )

    def share_rows(self, topology: TreeTopology, tokens: list[int]) -> None:
        """Give nodes that stand for the same text the same laws."""
        first: dict[tuple[int, ...], int] = {}
        for node in range(len(tokens)):
            text = tuple(tokens[ancestor] for ancestor in topology.path_to(node)[1:])
            same = first.setdefault(text, node)
            self.target[node], self.draft[node] = self.target[same], self.draft[same]

    @property
    def scores(self) -> torch.Tensor:
        """The target's laws as logits, shifted, as a model would give them."""
        rows = [[math.log(w) if w else -math.inf for w in row] for row in self.target]
        return torch.tensor(rows) + torch.arange(float(len(rows)))[:, None]

    def laws(self, kind: Callable[[list], Law]) -> TreeLaws:
        """The laws without the tensors of the tree."""
        return TreeLaws(lambda node: kind(self.target[node]), lambda node: kind(self.draft[node]))


def tensor_law(weights: list) -> TensorLaw:
    """The law in double precision."""
    return TensorLaw(torch.tensor([float(w) for w in weights], dtype=torch.float64))


@pytest.mark.parametrize(("rule", "draw", "shape"), TRIED)
def test_decoding_decides_as_the_exact_rule_does_on_the_same_random_numbers(
    rule: type[Rule], draw: str, shape: str
):
    for seed in range(25):
        drafted = Drafted(seed, SHAPES[shape], draw)
        noise = RowNoise(seed)
        (found,) = rule().accept([drafted.tree], [NodeScores.of_all(drafted.scores)], [noise], [40])
        randomness = KeyedRandomness(seed, 40)
        expected = rule().decide(drafted.tree, drafted.laws(TableLaw), randomness)

        assert (expected.path, expected.next_token) == (found.path, found.next_token)
        assert expected.deviations == pytest.approx(found.deviations, abs=1e-6)


@pytest.mark.parametrize(("rule", "draw", "shape"), TRIED)
def test_tensors_give_every_outcome_the_probability_that_fractions_give(
    rule: type[Rule], draw: str, shape: str
):
    drafted = Drafted(1, SHAPES[shape], draw)
    found: dict[str, dict] = {"table": {}, "tensor": {}}
    for name, kind in (("table", TableLaw), ("tensor", tensor_law)):
        laws = drafted.laws(kind)
        for outcome, chance in every_outcome(
            lambda r, laws=laws: rule().decide(drafted.tree, laws, r)
        ):
            key = (outcome.path, outcome.next_token)
            found[name][key] = found[name].get(key, 0) + float(chance)

    # rounding, also of K-SEQ's rho, may leave traces of outcomes that are impossible
    likely = [{k: chance for k, chance in one.items() if chance > 1e-11} for one in found.values()]
    assert likely[0] == pytest.approx(likely[1], abs=1e-11)


def test_rows_of_a_batch_are_decided_as_each_would_be_alone():
    rule = Traversal()
    drafted = [Drafted(seed, SHAPES["bin2"], "swor") for seed in range(6)]
    trees = [one.tree for one in drafted]
    scores = [NodeScores.of_all(one.scores) for one in drafted]
    noises = [RowNoise(100 + row) for row in range(6)]
    positions = [10 * row for row in range(6)]
    alone = [
        rule.accept([tree], [score], [noise], [position])[0]
        for tree, score, noise, position in zip(trees, scores, noises, positions, strict=True)
    ]

    assert alone == rule.accept(trees, scores, noises, positions)


def test_another_seed_or_position_decides_anew():
    drafted = Drafted(0, SHAPES["bin2"], "swor")

    def outcomes(keys) -> set:
        return {
            Rejection().accept(
                [drafted.tree], [NodeScores.of_all(drafted.scores)], [RowNoise(s)], [p]
            )[0]
            for s, p in keys
        }

    assert len(outcomes((seed, 3) for seed in range(30))) > 3
    assert len(outcomes((3, position) for position in range(30))) > 3


@pytest.mark.parametrize("rule", [Token, Block, Rejection, Traversal, KSeq, Typical])
@pytest.mark.parametrize("draw", ["topk", "swor", "shared"])
def test_temperature_zero_follows_the_targets_first_best_token_whatever_the_draw(
    rule: type[Rule], draw: str
):
    """No draft probabilities are needed; ties go to the lowest id, as in plain greedy decoding."""
    tree = TokenTree.from_lists([-1, 0, 0, 2], [0, 3, 1, 2], draw=draw)
    scores = torch.tensor(
        [[0.0, 2.0, 1.0, 2.0], [9.0, 0.0, 0.0, 0.0], [0.0, 0.0, 5.0, 5.0], [0.0, 0.0, 0.0, 1.0]]
    )

    assert [Acceptance((0, 2, 3), 3)] == rule().accept(
        [tree], [NodeScores.of_all(scores)], [RowNoise(None)], [0]
    )


@pytest.mark.parametrize("rule", [Token, Block, Rejection, Traversal, KSeq, Typical])
def test_a_root_alone_is_plain_sampling_whatever_its_draw(rule: type[Rule]):
    drafted = Drafted(0, SHAPES["single"], "topk")
    law = TableLaw(drafted.target[0])
    found = [
        rule().accept(
            [TokenTree.root_only(0, draw="shared")],
            [NodeScores.of_all(drafted.scores)],
            [noise],
            [0],
        )[0]
        for noise in map(RowNoise, range(20))
    ]

    drawn = [KeyedRandomness(seed, 0) for seed in range(20)]
    if rule in (Block, Traversal):  # they also ask whether the root answers, which is certain
        drawn = [randomness for randomness in drawn if rule is Traversal or randomness.accept(1)]
    assert [Acceptance((0,), randomness.choose(law)) for randomness in drawn] == found


def refused(rule: type[Rule], tree: TokenTree) -> str:
    """The message of the refusal."""
    scores = torch.zeros(len(tree), VOCAB_SIZE)
    with pytest.raises(DrafterError) as caught:
        rule().accept([tree], [NodeScores.of_all(scores)], [RowNoise(0)], [0])
    return str(caught.value)


@pytest.mark.parametrize(
    ("rule", "draw", "allowed"),
    [
        (Token, "topk", "iid"),
        (Token, "shared", "iid"),
        (Token, "swor", "iid"),
        (Block, "topk", "iid"),
        (Rejection, "shared", "swor, iid, iid_paths, topk"),
        (Traversal, "shared", "swor, iid, iid_paths, topk"),
        (KSeq, "swor", "iid_paths, iid"),
        (KSeq, "topk", "iid_paths, iid"),
    ],
)
def test_a_draw_that_the_rule_is_not_exact_for_is_refused_by_name(
    rule: type[Rule], draw: str, allowed: str
):
    message = refused(rule, Drafted(0, SHAPES["chain1"], draw).tree)

    assert f"the rule {rule.name!r} is not exact for siblings drawn {draw!r}" in message
    assert f"it takes {allowed}." in message


@pytest.mark.parametrize(
    ("rule", "draw", "shape", "words"),
    [
        (Token, "iid", "bin1", "a chain"),
        (Block, "iid", "root2_first_deep", "a chain"),
        (KSeq, "iid", "2x1", "a tree of one level"),
        (KSeq, "iid", "chain2", "a tree of one level"),
        (KSeq, "iid_paths", "bin2", "paths that part at the root only"),
        (Rejection, "iid_paths", "bin2", "paths that part at the root only"),
    ],
)
def test_a_shape_that_the_rule_is_not_exact_for_is_refused_by_name(
    rule: type[Rule], draw: str, shape: str, words: str
):
    message = refused(rule, Drafted(0, SHAPES[shape], draw).tree)

    assert f"the rule {rule.name!r} takes {words} under draw {draw!r}, got parents" in message


@pytest.mark.parametrize("draw", ["iid", "swor", "iid_paths"])
def test_sampled_drafts_without_their_laws_are_refused(draw: str):
    tree = TokenTree.from_lists([-1, 0], [0, 1], draw=draw)

    assert f"'rejection' needs draft_probs for siblings drawn {draw!r}" in refused(Rejection, tree)


@pytest.mark.parametrize("token", [2, 7])
def test_a_drafted_token_that_its_law_calls_impossible_is_refused(token: int):
    tree = TokenTree(
        TreeTopology([-1, 0, 1]),
        torch.tensor([0, 1, token]),
        torch.tensor([0, 1, 1]),
        "iid",
        draft_probs=torch.tensor([[0.5, 0.5, 0.0]] * 3),
    )

    assert f"node 2 drafts token {token} under draw 'iid', but row 1 of draft_probs" in refused(
        Block, tree
    )


def test_laws_over_more_tokens_than_the_target_knows_are_refused():
    tree = Drafted(0, SHAPES["chain1"], "iid").tree
    wide = torch.cat([tree.draft_probs, torch.zeros(2, 3)], dim=1)
    tree = TokenTree(tree.topology, tree.tokens, tree.sources, "iid", draft_probs=wide)

    assert "draft_probs has 8 columns, but the target knows 5 tokens" in refused(Token, tree)


def test_a_token_drawn_twice_without_replacement_is_refused():
    tree = TokenTree(
        SHAPES["bin1"],
        torch.tensor([0, 1, 1]),
        torch.tensor([0, 1, 1]),
        "swor",
        draft_probs=torch.full((3, VOCAB_SIZE), 0.2),
    )

    assert "siblings [1, 2] draft tokens [1, 1]" in refused(Traversal, tree)


@pytest.mark.parametrize("name", VERIFIERS)
def test_verifiers_are_made_by_name_and_follow_the_protocol(name: str):
    verifier = make_verifier(name)

    assert isinstance(verifier, Verifier)
    assert name == VERIFIERS[name].name
    assert isinstance(verifier, VERIFIERS[name])


def test_a_verifier_object_is_used_as_it_is():
    verifier = Gumbel()

    assert make_verifier(verifier) is verifier


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="no verifier 'greedy'; choose from gumbel, token"):
        make_verifier("greedy")


def test_only_typical_acceptance_is_called_lossy():
    assert {"typical"} == {name for name in VERIFIERS if not make_verifier(name).lossless}
    assert Typical.__doc__.startswith("Not lossless")
