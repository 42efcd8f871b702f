"""Every outcome of a random procedure with its probability, and every tree that a draw can give."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias, TypeVar

from treespec.errors import ConfigError
from treespec.tree.token_tree import TokenTree
from treespec.tree.topology import TreeTopology
from treespec.verify.laws import Law, Number, TableLaw, Weights
from treespec.verify.randomness import Randomness
from treespec.verify.rule import PATHS, TreeLaws

Outcome = TypeVar("Outcome")
LawTable: TypeAlias = Mapping[tuple[int, ...], Weights]
LawLookup: TypeAlias = Callable[[tuple[int, ...]], TableLaw]

# What a law of floats may miss 1 by (a float32 softmax does); laws of fractions have to be exact.
_TOLERANCE = 1e-5


def every_outcome(procedure: Callable[[Randomness], Outcome]) -> Iterator[tuple[Outcome, Number]]:
    """Run a procedure once for every way its random decisions can fall.

    Args:
        procedure: a function of a `Randomness` and nothing that changes.

    Yields:
        What it returned, and the probability of the decisions that led there.
    """
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        replay = _Replay(scripts.pop())
        outcome = procedure(replay)
        yield outcome, replay.probability
        scripts.extend(replay.branches)


class _Replay:
    """Decides as a script says; beyond its end takes the first option and notes the others."""

    def __init__(self, script: tuple[int, ...]) -> None:
        self.probability: Number = 1
        self.branches: list[tuple[int, ...]] = []
        self._script = script
        self._made: list[int] = []

    def accept(self, prob: Number) -> bool:
        """See `Randomness.accept`."""
        if not 0 < prob < 1:
            return prob >= 1
        return self._decide([prob, 1 - prob]) == 0

    def choose(self, weights: Law) -> int:
        """See `Randomness.choose`."""
        support = weights.support()
        total = weights.total()
        return support[self._decide([weight / total for _, weight in support])][0]

    def _decide(self, probabilities: Sequence[Number]) -> int:
        place = len(self._made)
        if place < len(self._script):
            option = self._script[place]
        else:
            option = 0
            made = tuple(self._made)
            self.branches.extend((*made, other) for other in range(1, len(probabilities)))
        self._made.append(option)
        self.probability = self.probability * probabilities[option]
        return option


def law_lookup(table: LawTable, name: str) -> LawLookup:
    """The laws of a table, each checked when it is first asked for.

    Args:
        table: laws keyed by the draft tokens before the position.
        name: of the table, for error messages.

    Raises:
        ConfigError: from the lookup, if a law is missing, negative, or does not add up to 1.
    """

    @cache
    def lookup(prefix: tuple[int, ...]) -> TableLaw:
        try:
            law = TableLaw(table[prefix])
        except KeyError:
            raise ConfigError(
                f"{name} has no law for the prefix {prefix}; add one for every prefix that the "
                "tree can reach"
            ) from None
        check_law(law, f"{name}[{prefix}]")
        return law

    return lookup


def check_law(law: TableLaw, name: str) -> None:
    """Refuse numbers that are not a probability law.

    Raises:
        ConfigError: naming the law and what is wrong with it.
    """
    total = law.total()
    slack = _TOLERANCE if isinstance(total, float) else 0
    if min(law.weights, default=0) < 0 or not -slack <= total - 1 <= slack:
        raise ConfigError(
            f"{name} is {[str(weight) for weight in law.weights]}, adding up to {total}; a law has "
            "no negative entry and adds up to 1"
        )


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree that may be drafted.

    Attributes:
        tree: the tree; its root's token is 0, and it carries no `draft_probs`.
        probability: how often it is drafted.
    """

    tree: TokenTree
    probability: Number


@dataclass(frozen=True, slots=True)
class Emission:
    """What one step may emit.

    Attributes:
        tokens: accepted draft tokens and the next token.
        num_accepted: how many of them are draft tokens.
        probability: how often.
    """

    tokens: tuple[int, ...]
    num_accepted: int
    probability: Number


def every_draft(draft_law: LawLookup, topology: TreeTopology, draw: str) -> Iterator[Draft]:
    """All trees that a drafter drawing `draw` fills a topology with.

    Args:
        draft_law: the drafter's law after a prefix of draft tokens.
        topology: the shape; where the law has fewer tokens than a node has children, the missing
            ones and what hangs on them are left out.
        draw: "iid", "swor", "iid_paths", or "topk" for the most probable tokens, lowest id first on
            ties.

    Raises:
        ConfigError: if the draw has no law of its own, or does not fit the topology.
    """
    if draw not in ("iid", "swor", "iid_paths", "topk"):
        raise ConfigError(
            f"trees drawn {draw!r} cannot be listed; give iid, swor, iid_paths or topk"
        )
    if draw == "iid_paths" and not PATHS.holds(topology):
        raise ConfigError(
            f"draw 'iid_paths' gives {PATHS.words}, not parents {list(topology.parent_list)}"
        )
    if draw == "topk":
        yield Draft(_tree(topology, _most_probable(draft_law, topology), draw), 1)
        return
    for tokens, probability in every_outcome(lambda r: _sampled(draft_law, topology, draw, r)):
        yield Draft(_tree(topology, tokens, draw), probability)


def _sampled(
    draft_law: LawLookup, topology: TreeTopology, draw: str, randomness: Randomness
) -> dict[int, int]:
    """Token of every node that could be filled, drawn parent by parent."""
    tokens = {0: 0}
    for parent, children in enumerate(topology.children):
        if parent not in tokens or not children:
            continue
        law = draft_law(_prefix(topology, tokens, parent))
        for child in children:
            if law.total() == 0:
                break
            tokens[child] = randomness.choose(law)
            if draw == "swor":
                law = law.without(tokens[child])
    return tokens


def _most_probable(draft_law: LawLookup, topology: TreeTopology) -> dict[int, int]:
    """Token of every node that could be filled, the most probable ones of its parent's law."""
    tokens = {0: 0}
    for parent, children in enumerate(topology.children):
        if parent not in tokens or not children:
            continue
        weights = draft_law(_prefix(topology, tokens, parent)).weights
        ranked = sorted(range(len(weights)), key=lambda token: -weights[token])
        tokens.update(zip(children, ranked, strict=False))
    return tokens


def _prefix(topology: TreeTopology, tokens: Mapping[int, int], node: int) -> tuple[int, ...]:
    """Draft tokens on the path to `node`, its own included."""
    return tuple(tokens[ancestor] for ancestor in topology.path_to(node)[1:])


def _tree(topology: TreeTopology, tokens: Mapping[int, int], draw: str) -> TokenTree:
    """The filled nodes as a tree."""
    filled = sorted(tokens)
    place = {node: index for index, node in enumerate(filled)}
    parents = [-1, *(place[topology.parent_list[node]] for node in filled[1:])]
    return TokenTree.from_lists(parents, [tokens[node] for node in filled], draw=draw)


def table_laws(tree: TokenTree, target_law: LawLookup, draft_law: LawLookup) -> TreeLaws:
    """Laws at a tree's nodes, looked up by the draft tokens that lead there."""
    return TreeLaws(
        lambda node: target_law(tree.path_tokens(node)[1:]),
        lambda node: draft_law(tree.path_tokens(node)[1:]),
    )
