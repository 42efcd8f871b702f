"""Acceptance lengths without decoding: real trees, walked along texts that are there already.

The drafter's session is told what decoding would tell it: the target's hidden states of the text
so far. It grows its tree, the walk goes down while a child carries the text's next token, and the
next step starts where decoding would start it. Only the forwards of the target over the trees are
left out, so that where the text is the target's own greedy answer, the accepted lengths are those
of decoding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.drafters.base import DraftContext, Round
from treespec.heads.drafter import HeadDrafter
from treespec.sampling import RowNoise
from treespec.target import TargetOutput
from treespec.training.passages import Passage
from treespec.tree.shapes import BestFirst, StaticTree
from treespec.tree.token_tree import TokenTree
from treespec.verify.acceptance import Acceptance

# Levels of a tree where nothing tells how long the answer is; more than any tree has.
_NO_LIMIT = 1 << 16


@dataclass(frozen=True, slots=True)
class Walk:
    """How one passage was walked through.

    Attributes:
        lengths: tokens that each step gave, the target's own included; together all that there
            was to guess.
        accepted: how many of them were drafted.
        drafted: draft tokens of all steps.
    """

    lengths: tuple[int, ...]
    accepted: tuple[int, ...]
    drafted: int


@torch.no_grad()
def simulate(
    drafter: HeadDrafter,
    passages: Sequence[Passage],
    states: Sequence[TargetOutput],
    shape: BestFirst | StaticTree,
) -> list[Walk]:
    """Walk through passages, all at once, with trees of one shape grown as greedy decoding does.

    Args:
        drafter: around the heads.
        passages: the texts.
        states: what `states_of` gave for them, with the drafter's taps.
        shape: of the trees.

    Raises:
        DrafterError: if the heads belong to a target with another vocabulary.
    """
    rows = [_Row(passage, one) for passage, one in zip(passages, states, strict=True)]
    context = DraftContext(
        noises=[RowNoise(None) for _ in rows],
        temperature=0.0,
        vocab_size=states[0].logits.shape[-1],
        device=states[0].logits.device,
        draw="topk",
    )
    session = drafter.begin([passage.prompt for passage in passages], context)
    session.observe([row.prompt_round() for row in rows])
    live = rows
    while True:
        trees = session.propose([shape.limits(depth=row.depth_left) for row in live])
        for row, tree in zip(live, trees, strict=True):
            row.step(tree)
        places = [place for place, row in enumerate(live) if row.root < row.last]
        if not places:
            return [row.walk() for row in rows]
        if len(places) < len(live):
            # Before the session is told: there are no states behind the end of a passage.
            session.keep(places)
        session.observe([live[place].round(trees[place]) for place in places])
        live = [live[place] for place in places]


class _Row:
    """One passage, and how far it has been walked.

    Attributes:
        root: index of the last token that is there.
        last: index of the answer's last token.
    """

    def __init__(self, passage: Passage, states: TargetOutput) -> None:
        self._tokens: list[int] = passage.tokens.tolist()
        self._start = passage.start
        self._ended = passage.ended
        self._hidden = states.hidden
        self._path: tuple[int, ...] = ()
        self._lengths: list[int] = []
        self._accepted: list[int] = []
        self._drafted = 0
        self.root, self.last = passage.start, len(self._tokens) - 1

    @property
    def depth_left(self) -> int:
        """Levels that decoding would allow: nothing is drafted beyond a limit that it knows."""
        return _NO_LIMIT if self._ended else self.last - self.root - 1

    def prompt_round(self) -> Round:
        """What the session sees of the prompt."""
        hidden = {tap: states[: self._start] for tap, states in self._hidden.items()}
        return self._told(None, (), hidden)

    def step(self, tree: TokenTree) -> None:
        """Walk down a tree along the text's own next tokens."""
        path = [0]
        for token in self._tokens[self.root + 1 :]:
            children = tree.topology.children[path[-1]]
            right = next((child for child in children if tree.token_list[child] == token), None)
            if right is None:
                break
            path.append(right)
        self._path = tuple(path)
        self._lengths.append(min(len(path), self.last - self.root))
        self._accepted.append(len(path) - 1)
        self._drafted += len(tree) - 1
        self.root += self._lengths[-1]

    def round(self, tree: TokenTree) -> Round:
        """What the session sees of the last step."""
        end = self.root  # the states of the new root are not known yet
        hidden = {}
        for tap, states in self._hidden.items():
            hidden[tap] = states.new_zeros(len(tree), states.shape[-1])
            hidden[tap][list(self._path)] = states[end - len(self._path) : end]
        return self._told(tree, self._path, hidden)

    def walk(self) -> Walk:
        """All steps."""
        return Walk(tuple(self._lengths), tuple(self._accepted), self._drafted)

    def _told(
        self,
        tree: TokenTree | None,
        path: tuple[int, ...],
        hidden: Mapping[int, Float[Tensor, "_N H"]],
    ) -> Round:
        output = TargetOutput(torch.empty(0, 0), dict(hidden))
        return Round(tree, Acceptance(path, self._tokens[self.root]), output)
