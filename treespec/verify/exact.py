"""The output law and the acceptance of a shipped rule, by running it on every possible draw.

Answers "is this rule lossless?" and "how far is this drafter from the best possible?" for small
vocabularies, in rationals where the laws are given as fractions. What runs is the code that
decodes; only the default rule's shared noise is integrated in closed form
(`treespec.verify.races`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from treespec.errors import ConfigError, DrafterError
from treespec.tree.token_tree import TokenTree
from treespec.tree.topology import TreeTopology
from treespec.verify import make_verifier
from treespec.verify.acceptance import Acceptance, Verifier
from treespec.verify.enumeration import (
    Draft,
    Emission,
    LawLookup,
    LawTable,
    check_law,
    every_draft,
    every_outcome,
    law_lookup,
    table_laws,
)
from treespec.verify.gumbel import Gumbel, walk
from treespec.verify.laws import Number, TableLaw, Weights
from treespec.verify.optimal import fixed_tree_bound, optimal_acceptance
from treespec.verify.races import every_shared_walk
from treespec.verify.randomness import Randomness
from treespec.verify.rule import Rule, TreeLaws

__all__ = [
    "Draft",
    "Emission",
    "ExactLaw",
    "acceptance",
    "every_emission",
    "fixed_tree_bound",
    "law_of_drafts",
    "optimal_acceptance",
    "output_law",
    "target_law",
]


@dataclass(frozen=True, slots=True)
class ExactLaw:
    """What a rule emits.

    Attributes:
        law: probability of every token sequence that can come out; impossible ones are left out.
        expected_accepted: mean number of accepted draft tokens, the next token not counted.
    """

    law: dict[tuple[int, ...], Number]
    expected_accepted: Number

    def total_variation(self, other: "ExactLaw") -> Number:
        """Total variation distance between the two output laws; 0 for a lossless rule's."""
        excess: Number = 0
        for sequence, probability in self.law.items():
            excess = excess + max(probability - other.law.get(sequence, 0), 0)
        return excess


def acceptance(
    verifier: str | Verifier,
    p: Weights,
    q: Weights,
    *,
    candidates: int,
    draw: str,
) -> Number:
    """Probability that a rule accepts one of the candidates for one position.

    Args:
        verifier: a rule or its name; for "gumbel", whether the target's choice is a candidate.
        p: the target's law.
        q: the draft's law.
        candidates: how many are drawn, K.
        draw: how: "iid", "swor" (without replacement), "topk", "iid_paths", or "shared" ("gumbel"
            only: ranked by the target's own noise).

    Raises:
        ConfigError: if a law is none, or their lengths differ.
        DrafterError: if the rule is not exact for the draw.
    """
    target, draft = _pair(p, q)
    # What follows an accepted candidate is not asked for: let it be certain.
    p_table: dict[tuple[int, ...], Weights] = {(): target.weights}
    p_table |= {(token,): target.point(0).weights for token in range(len(p))}
    topology = TreeTopology([-1] + [0] * candidates)
    return output_law(verifier, p_table, {(): draft.weights}, topology, draw=draw).expected_accepted


def output_law(
    verifier: str | Verifier,
    p_table: LawTable,
    q_table: LawTable,
    topology: TreeTopology,
    *,
    draw: str,
) -> ExactLaw:
    """The law of the depth + 1 tokens that start with what one step emits.

    What the step leaves open is completed with p, so that a lossless rule gives exactly
    `target_law(p_table, depth + 1)`.

    Args:
        verifier: a rule or its name.
        p_table: the target's law after every prefix of draft tokens, keyed by tuples of ids; the
            root's key is ().
        q_table: the draft's laws, likewise.
        topology: the shape of the tree; siblings are drawn in node order.
        draw: how siblings are drawn, as in `acceptance`.

    Raises:
        ConfigError: if a law that is needed is missing or none.
        DrafterError: if the rule is not exact for the draw or the topology.
    """
    emissions = every_emission(verifier, p_table, q_table, topology, draw=draw)
    return _completed(emissions, law_lookup(p_table, "p_table"), topology.max_depth + 1)


def every_emission(
    verifier: str | Verifier,
    p_table: LawTable,
    q_table: LawTable,
    topology: TreeTopology,
    *,
    draw: str,
) -> Iterator[Emission]:
    """Everything that one step can emit, not completed; the same emission may come several times.

    Arguments and errors are those of `output_law`.
    """
    rule = make_verifier(verifier)
    target, draft = law_lookup(p_table, "p_table"), law_lookup(q_table, "q_table")
    if isinstance(rule, Gumbel) and draw == "shared":
        return every_shared_walk(target, draft, topology)
    if isinstance(rule, Rule):
        rule.check_shape(topology, draw)
    return _verified(rule, every_draft(draft, topology, draw), target, draft)


def law_of_drafts(
    verifier: str | Verifier,
    drafts: Iterable[Draft],
    p_table: LawTable,
    q_table: LawTable,
    *,
    length: int,
) -> ExactLaw:
    """The output law for any way of drafting, given as the list of its trees.

    Shows what happens when a drafter says one thing and does another: the rule believes the trees'
    `draw` and `q_table`, whatever the probabilities in the list.

    Args:
        verifier: a rule or its name.
        drafts: every tree that may be drafted, with its probability.
        p_table: as in `output_law`.
        q_table: the laws that the drafter declares.
        length: number of tokens to look at; to see every bias, the deepest tree's depth + 1.
    """
    target, draft = law_lookup(p_table, "p_table"), law_lookup(q_table, "q_table")
    return _completed(_verified(make_verifier(verifier), drafts, target, draft), target, length)


def target_law(p_table: LawTable, length: int) -> ExactLaw:
    """The law of the target's own first `length` tokens: what a lossless rule has to emit."""
    return _completed([Emission((), 0, 1)], law_lookup(p_table, "p_table"), length)


def _verified(
    rule: Verifier, drafts: Iterable[Draft], target: LawLookup, draft: LawLookup
) -> Iterator[Emission]:
    """What a rule may emit for each of the drafts."""
    for possible in drafts:
        tree = possible.tree
        decide = partial(_decide, rule, tree, table_laws(tree, target, draft))
        for accepted, probability in every_outcome(decide):
            offered = tree.path_tokens(accepted.path[-1])[1:]
            emitted = (*offered, accepted.next_token)
            yield Emission(emitted, accepted.num_accepted, possible.probability * probability)


def _decide(rule: Verifier, tree: TokenTree, laws: TreeLaws, randomness: Randomness) -> Acceptance:
    if isinstance(rule, Rule):
        return rule.decide(tree, laws, randomness)
    if isinstance(rule, Gumbel):
        return _walk_unaware(tree, laws, randomness)
    raise DrafterError(
        f"{type(rule).__name__} cannot be enumerated: only the default rule and subclasses of "
        "treespec.verify.Rule say what they decide at random"
    )


def _walk_unaware(tree: TokenTree, laws: TreeLaws, randomness: Randomness) -> Acceptance:
    """The default rule's walk where the draft knew nothing of its noise.

    Cousins share the noise of their depth, but a walk visits one node per depth, so that choices
    drawn when the walk needs them have the same law.
    """
    undecided = -1  # no token
    chosen = [undecided] * len(tree)
    while (reached := walk(tree, chosen)).next_token == undecided:
        node = reached.path[-1]
        chosen[node] = randomness.choose(laws.target(node))
    return reached


def _completed(emissions: Iterable[Emission], target: LawLookup, length: int) -> ExactLaw:
    """Emissions summed up, each cut or completed with the target's own law to `length` tokens."""
    law: dict[tuple[int, ...], Number] = {}
    accepted: Number = 0
    for emission in emissions:
        tokens = emission.tokens[:length]
        law[tokens] = law.get(tokens, 0) + emission.probability
        accepted = accepted + emission.num_accepted * emission.probability
    for _ in range(length):
        longer: dict[tuple[int, ...], Number] = {}
        for tokens, probability in law.items():
            following = target(tokens).support() if len(tokens) < length else [(None, 1)]
            for token, weight in following:
                whole = tokens if token is None else (*tokens, token)
                longer[whole] = longer.get(whole, 0) + probability * weight
        law = longer
    return ExactLaw(law, accepted)


def _pair(p: Weights, q: Weights) -> tuple[TableLaw, TableLaw]:
    """Two laws over one vocabulary."""
    if len(p) != len(q):
        raise ConfigError(f"p has {len(p)} entries and q {len(q)}; both are laws of one vocabulary")
    target, draft = TableLaw(p), TableLaw(q)
    check_law(target, "p")
    check_law(draft, "q")
    return target, draft
