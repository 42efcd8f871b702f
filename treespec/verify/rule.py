"""What acceptance rules have in common: laws at nodes, siblings, refusals, the way into decoding.

A rule is a pure function `decide` of a tree, the laws of both models at its nodes, and a source of
random decisions. Decoding and `treespec.verify.exact` call that same function.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from treespec.errors import DrafterError
from treespec.sampling import RowNoise
from treespec.scores import NodeScores
from treespec.tree.token_tree import TokenTree
from treespec.tree.topology import TreeTopology
from treespec.verify.acceptance import Acceptance
from treespec.verify.gumbel import Gumbel
from treespec.verify.laws import Law, TensorLaw
from treespec.verify.randomness import KeyedRandomness, Randomness

SAMPLED_DRAWS = ("iid", "swor", "iid_paths")


@dataclass(frozen=True, slots=True)
class TreeLaws:
    """Both models' laws at the nodes of one tree, made when a rule asks for them.

    Attributes:
        target: for a node the target's processed law of the token after it.
        draft: for a node the law that its children were drawn from, before any removal. Only
            called under the draws that need one.
    """

    target: Callable[[int], Law]
    draft: Callable[[int], Law]


@dataclass(frozen=True, slots=True)
class Shape:
    """A condition on topologies that a rule's proof needs.

    Attributes:
        words: what it takes, as it reads in an error message.
        holds: whether a topology meets it.
    """

    words: str
    holds: Callable[[TreeTopology], bool]


ANY_TREE = Shape("any tree", lambda _: True)
CHAIN = Shape("a chain", lambda topology: max(map(len, topology.children)) <= 1)
ONE_LEVEL = Shape("a tree of one level", lambda topology: topology.max_depth <= 1)
PATHS = Shape(
    "paths that part at the root only",
    lambda topology: all(len(siblings) <= 1 for siblings in topology.children[1:]),
)


@dataclass(frozen=True, slots=True)
class Siblings:
    """The candidates for one position, in draw order.

    Attributes:
        tokens: their ids.
        target: the target's law of that position.
        laws: for each candidate the law it was drawn from, given that those before it are known;
            made one after the other, as far as they are asked for.
    """

    tokens: Sequence[int]
    target: Law
    laws: Iterator[Law]

    @classmethod
    def of(
        cls, tree: TokenTree, laws: TreeLaws, node: int, candidates: Sequence[int]
    ) -> "Siblings":
        """The nodes `candidates` as candidates for the position after `node`.

        The law they were drawn from is read at a parent of theirs: `node` may be a path that ends
        where another with the same text goes on.
        """
        tokens = [tree.token_list[child] for child in candidates]
        target = laws.target(node)
        if tree.draw in SAMPLED_DRAWS:
            parent = tree.topology.parent_list[candidates[0]] if candidates else node
            drawn = _sampled_laws(laws, parent, tokens, removed=tree.draw == "swor")
        else:
            drawn = (target.point(token) for token in tokens)
        return cls(tokens, target, drawn)


def _sampled_laws(
    laws: TreeLaws, node: int, tokens: Sequence[int], *, removed: bool
) -> Iterator[Law]:
    """The declared law for every token, or what is left of it without the tokens before."""
    law = laws.draft(node)
    yield law
    for token in tokens[:-1]:
        if removed:
            law = law.without(token).normalized()
        yield law


@dataclass(frozen=True, slots=True)
class Selection:
    """What a one-position rule makes of its candidates.

    Attributes:
        accepted: index of the accepted candidate, or None.
        residual: the law of the token that replaces them if none is; up to a factor.
    """

    accepted: int | None
    residual: Law


def owed(residual: Law, target: Law) -> Law:
    """The law to recover from: the residual, or the target where rounding left nothing of it."""
    return residual if residual.total() > 0 else target


def children_of(tree: TokenTree, nodes: Sequence[int]) -> list[int]:
    """Children of several nodes, in draw order."""
    return [child for node in nodes for child in tree.topology.children[node]]


def going_on(tree: TokenTree, node: int, siblings: Sequence[int]) -> Sequence[int]:
    """Nodes whose children continue the text of `node`, itself one of them.

    Paths drawn independently ("iid_paths") that agree so far all do: given the text they agree on,
    their next tokens are independent draws from one law, and how many there are is settled by
    earlier tokens. Elsewhere each node has only its own children.
    """
    if tree.draw != "iid_paths":
        return (node,)
    return [other for other in siblings if tree.token_list[other] == tree.token_list[node]]


def walk_down(
    tree: TokenTree,
    laws: TreeLaws,
    randomness: Randomness,
    select: Callable[[Siblings, Randomness], Selection],
) -> Acceptance:
    """Apply a one-position rule from the root down until it accepts none of the candidates.

    The candidates after an accepted node are the children of all nodes that `going_on` gives.
    """
    node: int = 0
    alive: Sequence[int] = (0,)
    while candidates := children_of(tree, alive):
        siblings = Siblings.of(tree, laws, node, candidates)
        selection = select(siblings, randomness)
        if selection.accepted is None:
            next_token = randomness.choose(owed(selection.residual, siblings.target))
            return Acceptance(tree.topology.path_to(node), next_token)
        node = candidates[selection.accepted]
        alive = going_on(tree, node, candidates)
    return Acceptance(tree.topology.path_to(node), randomness.choose(laws.target(node)))


class Rule(ABC):
    """An acceptance rule as a verifier.

    Attributes:
        name: what `verifier=` calls it.
        lossless: whether the emitted tokens follow the target's own law.
        draws: those it is exact for, preferred first.
        shapes: for each of them the topologies that it takes.
    """

    name: str
    lossless: bool
    draws: tuple[str, ...]
    shapes: ClassVar[Mapping[str, Shape]]

    @abstractmethod
    def decide(self, tree: TokenTree, laws: TreeLaws, randomness: Randomness) -> Acceptance:
        """The accepted path and the next token; `tree.draft_probs` is not read, `laws` are."""

    def accept(
        self,
        trees: Sequence[TokenTree],
        scores: Sequence[NodeScores],
        noises: Sequence[RowNoise],
        root_positions: Sequence[int],
    ) -> list[Acceptance]:
        """See `treespec.verify.acceptance.Verifier.accept`.

        Rows of probabilities are made for the visited nodes only, on the device of the scores;
        each decision reads a number from there.

        Raises:
            DrafterError: if a tree was drawn in a way that the rule is not exact for, or its
                `draft_probs` are missing or call a drafted token impossible.
        """
        return [
            self._accept_row(*row)
            for row in zip(trees, scores, noises, root_positions, strict=True)
        ]

    def _accept_row(
        self, tree: TokenTree, scores: NodeScores, noise: RowNoise, root_position: int
    ) -> Acceptance:
        if noise.seed is None:  # every rule's limit at temperature 0, whatever the draw
            return Gumbel().accept([tree], [scores], [noise], [root_position])[0]
        self.check_shape(tree.topology, tree.draw)
        check_draft(self.name, tree, scores.vocab_size)
        draft_probs = tree.draft_probs

        def draft(node: int) -> TensorLaw:
            if draft_probs is None:
                raise DrafterError(f"{self.name!r} asks for draft_probs under draw {tree.draw!r}")
            return TensorLaw.from_probs(draft_probs[node], scores.vocab_size, scores.values.device)

        laws = TreeLaws(lambda node: TensorLaw.from_logits(scores.row(node)), draft)
        return self.decide(tree, laws, KeyedRandomness(noise.seed, root_position))

    def check_shape(self, topology: TreeTopology, draw: str) -> None:
        """Refuse a tree that the rule is not exact for; a root alone always passes.

        Raises:
            DrafterError: naming rule, draw and what the rule takes.
        """
        if len(topology) == 1:
            return
        if draw not in self.shapes:
            raise DrafterError(
                f"the rule {self.name!r} is not exact for siblings drawn {draw!r}; it takes "
                f"{', '.join(self.shapes)}. Let the drafter draw so (draw=), or use another "
                "verifier"
            )
        shape = self.shapes[draw]
        if not shape.holds(topology):
            raise DrafterError(
                f"the rule {self.name!r} takes {shape.words} under draw {draw!r}, got parents "
                f"{list(topology.parent_list)}; choose another tree, or use another verifier"
            )


def check_draft(name: str, tree: TokenTree, vocab_size: int) -> None:
    """Refuse a sampled draft whose declared laws cannot have produced it.

    Args:
        name: of the rule, for error messages.
        tree: the draft.
        vocab_size: number of the target's logits.

    Raises:
        DrafterError: naming rule, draw and node.
    """
    if tree.draw not in SAMPLED_DRAWS or len(tree) == 1:
        return
    if tree.draft_probs is None:
        raise DrafterError(
            f"the rule {name!r} needs draft_probs for siblings drawn {tree.draw!r}: row i must "
            "hold the law that node i's children were drawn from"
        )
    if tree.draft_probs.shape[1] > vocab_size:
        raise DrafterError(
            f"draft_probs has {tree.draft_probs.shape[1]} columns, but the target knows "
            f"{vocab_size} tokens; the rule {name!r} needs laws over the target's vocabulary"
        )
    probs, parents, tokens = tree.draft_probs, tree.topology.parents[1:], tree.tokens[1:]
    possible = (tokens >= 0) & (tokens < probs.shape[1])
    looked_up = probs[parents.to(probs.device), (tokens * possible).to(probs.device)].cpu()
    impossible = (~((looked_up > 0) & possible)).nonzero()
    if len(impossible) > 0:
        node = int(impossible[0]) + 1
        raise DrafterError(
            f"node {node} drafts token {tree.token_list[node]} under draw {tree.draw!r}, but row "
            f"{tree.topology.parent_list[node]} of draft_probs gives it no probability; the rule "
            f"{name!r} must be told the law that the token was drawn from"
        )
    if tree.draw == "swor":
        for siblings in tree.topology.children:
            drafted = [tree.token_list[node] for node in siblings]
            if len(set(drafted)) < len(drafted):
                raise DrafterError(
                    f"siblings {list(siblings)} draft tokens {drafted}, but without replacement "
                    f"('swor') no token can be drawn twice; the rule {name!r} needs distinct ones"
                )
