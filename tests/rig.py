"""Drafters that know the answer, and helpers that compare tree decoding with plain decoding.

The drafters are given the text that the target will produce, recorded beforehand, and place its
next tokens in their trees where a test wants them: first, last, never, or by chance.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from treespec.drafters.base import DraftContext, Round
from treespec.tree.shapes import StaticTree, TreeLimits
from treespec.tree.token_tree import TokenTree
from treespec.tree.topology import TreeTopology

# Below this distance of the two best logits, float32 rounding may decide which of them is larger.
NEAR_TIE = 1e-3

SHAPES: dict[str, StaticTree] = {
    "chain": StaticTree([[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]),
    "star": StaticTree([[0], [1], [2], [3], [4]]),
    "binary": StaticTree(
        [[a] for a in range(2)]
        + [[a, b] for a in range(2) for b in range(2)]
        + [[a, b, c] for a in range(2) for b in range(2) for c in range(2)]
    ),
    "one_three_two": StaticTree(
        [[0]] + [[0, b] for b in range(3)] + [[0, b, c] for b in range(3) for c in range(2)]
    ),
    "right_leaning": StaticTree(
        [[0], [1], [1, 0], [1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1], [0, 0]]
    ),
    "ragged": StaticTree(
        [[0], [1], [2], [0, 0], [2, 0], [2, 1], [2, 1, 0], [2, 1, 1], [2, 1, 1, 0], [0, 0, 0]]
    ),
}


class Placement(Protocol):
    """Where among K siblings the right token stands; None for nowhere."""

    def __call__(self, siblings: int, rng: random.Random) -> int | None:
        """Rank of the right token."""
        ...


def first(siblings: int, rng: random.Random) -> int | None:
    """The right token is the first child."""
    return 0


def nowhere(siblings: int, rng: random.Random) -> int | None:
    """The right token is not proposed."""
    return None


def last(siblings: int, rng: random.Random) -> int | None:
    """The right token is the last child, so that with siblings the first is never accepted."""
    return siblings - 1


def by_chance(probability: float) -> Placement:
    """The right token is some child, with this probability."""

    def place(siblings: int, rng: random.Random) -> int | None:
        return rng.randrange(siblings) if rng.random() < probability else None

    return place


@dataclass(frozen=True, eq=False)
class ScriptedDrafter:
    """Drafts around known texts.

    Attributes:
        texts: for each row, in the order of the prompts, its prompt and what the target will say.
        places: where the right token stands among its siblings, one per row or one for all.
        seed: of wrong tokens and of chance.
    """

    texts: Sequence[Sequence[int]]
    places: Placement | Sequence[Placement]
    seed: int = 0
    taps: tuple[int, ...] = ()
    draws: tuple[str, ...] = ("topk",)

    def begin(self, prompts: Sequence[Tensor], context: DraftContext) -> "ScriptedSession":
        """See `treespec.drafters.base.Drafter.begin`."""
        for prompt, text in zip(prompts, self.texts, strict=True):
            assert prompt.tolist() == list(text[: len(prompt)])
        return ScriptedSession(self, [prompt.tolist() for prompt in prompts], context.vocab_size)


def OracleDrafter(texts: Sequence[Sequence[int]]) -> ScriptedDrafter:  # noqa: N802
    """Everything on the first path is accepted."""
    return ScriptedDrafter(texts, first)


def AntiDrafter(texts: Sequence[Sequence[int]]) -> ScriptedDrafter:  # noqa: N802
    """Nothing is ever accepted."""
    return ScriptedDrafter(texts, nowhere)


def HalfDrafter(  # noqa: N802
    texts: Sequence[Sequence[int]], probability: float = 0.5, seed: int = 0
) -> ScriptedDrafter:
    """Each level of the right path is there with this probability, at any rank."""
    return ScriptedDrafter(texts, by_chance(probability), seed)


def SiblingDrafter(texts: Sequence[Sequence[int]]) -> ScriptedDrafter:  # noqa: N802
    """Everything on the last path is accepted; the accepted path is never the first child."""
    return ScriptedDrafter(texts, last)


DRAFTERS: dict[str, Callable[[Sequence[Sequence[int]]], ScriptedDrafter]] = {
    "oracle": OracleDrafter,
    "anti": AntiDrafter,
    "half": HalfDrafter,
    "sibling": SiblingDrafter,
}


class ScriptedSession:
    """Follows what was committed and fills trees from the script."""

    def __init__(self, drafter: ScriptedDrafter, committed: list[list[int]], vocab: int) -> None:
        self.committed = committed
        self._texts = [list(text) for text in drafter.texts]
        places = drafter.places
        self._places = list(places) if isinstance(places, Sequence) else [places] * len(committed)
        self._vocab = vocab
        self._rng = random.Random(drafter.seed)

    def propose(self, limits: Sequence[TreeLimits]) -> list[TokenTree]:
        """See `treespec.drafters.base.DraftSession.propose`."""
        return [
            self.draft(*row)
            for row in zip(self.committed, self._texts, self._places, limits, strict=True)
        ]

    def observe(self, rounds: Sequence[Round]) -> None:
        """See `treespec.drafters.base.DraftSession.observe`."""
        for committed, one in zip(self.committed, rounds, strict=True):
            committed += emitted_by(one)

    def keep(self, rows: Sequence[int]) -> None:
        """See `treespec.drafters.base.DraftSession.keep`."""
        self.committed = [self.committed[row] for row in rows]
        self._texts = [self._texts[row] for row in rows]
        self._places = [self._places[row] for row in rows]

    def draft(
        self, committed: list[int], text: list[int], place: Placement, limits: TreeLimits
    ) -> TokenTree:
        """Fill the shape; nodes off the right path get tokens of no meaning."""
        ahead = tokens_ahead(committed, text)
        shape = limits.topology or spread(limits, self._vocab, place, self._rng)
        tokens = [committed[-1]] + [0] * (len(shape) - 1)
        on_path = {0}
        for node, siblings in enumerate(shape.children):
            if not siblings:
                continue
            depth = shape.depth_list[node]
            right = ahead[depth] if depth < len(ahead) else None
            known = node in on_path and right is not None
            rank = place(len(siblings), self._rng) if known else None
            excluded = set() if right is None else {right}
            wrong = self._rng.sample(
                [token for token in range(self._vocab) if token not in excluded], len(siblings)
            )
            for child, token in zip(siblings, wrong, strict=True):
                tokens[child] = token
            if rank is not None and right is not None:
                tokens[siblings[rank]] = right
                on_path.add(siblings[rank])
        return TokenTree.from_lists(shape.parent_list, tokens)


def tokens_ahead(committed: list[int], text: list[int]) -> list[int]:
    """What the script says next; nothing where the text has left it."""
    return text[len(committed) :] if committed == text[: len(committed)] else []


def emitted_by(one: Round) -> list[int]:
    """Tokens that a round commits."""
    accepted = [] if one.tree is None else [one.tree.token_list[n] for n in one.acceptance.path[1:]]
    return [*accepted, one.acceptance.next_token]


def spread(limits: TreeLimits, vocab: int, place: Placement, rng: random.Random) -> TreeTopology:
    """A shape within limits that name none: full sets of siblings down one line."""
    parents, parent = [-1], 0
    for _ in range(limits.depth):
        width = min(limits.width, limits.budget + 1 - len(parents), vocab - 1)
        if width < 1:
            break
        start = len(parents)
        parents += [parent] * width
        parent = start + (place(width, rng) or 0)
    return TreeTopology(parents)


@dataclass(frozen=True, eq=False)
class Batch:
    """Prompts of different lengths, and their padded block.

    Attributes:
        prompts: the rows without padding, each of shape `[1, L]`.
        side: where the padding stands.
    """

    prompts: tuple[Int[Tensor, "1 L"], ...]
    side: str = "left"

    @property
    def input_ids(self) -> Int[Tensor, "B W"]:
        """The padded block; padding has the id 0."""
        return self._padded([prompt[0] for prompt in self.prompts])

    @property
    def attention_mask(self) -> Int[Tensor, "B W"]:
        """1 for real tokens."""
        return self._padded([torch.ones_like(prompt[0]) for prompt in self.prompts])

    @property
    def width(self) -> int:
        """Columns of the block."""
        return max(prompt.shape[1] for prompt in self.prompts)

    def _padded(self, rows: Sequence[Int[Tensor, " L"]]) -> Int[Tensor, "B W"]:
        block = torch.zeros(len(rows), self.width, dtype=torch.int64)
        for line, row in zip(block, rows, strict=True):
            start = self.width - len(row) if self.side == "left" else 0
            line[start : start + len(row)] = row
        return block


def random_prompts(lengths: Sequence[int], vocab: int, seed: int = 0) -> Batch:
    """Prompts of random tokens, never of the padding id 0."""
    generator = torch.Generator().manual_seed(seed)
    return Batch(
        tuple(torch.randint(1, vocab, (1, length), generator=generator) for length in lengths)
    )


@dataclass(frozen=True, eq=False)
class Plain:
    """What the target says by itself about one prompt.

    Attributes:
        tokens: prompt and new tokens.
        new: the new tokens.
        gaps: distance of the two best logits behind each new token.
    """

    tokens: list[int]
    new: list[int]
    gaps: list[float]


def plain_greedy(
    model: PreTrainedModel, batch: Batch, new_tokens: int, *, eos: Sequence[int] = ()
) -> list[Plain]:
    """`model.generate(do_sample=False)` of the left-padded batch, row by row."""
    output = model.generate(
        batch.input_ids,
        attention_mask=batch.attention_mask,
        max_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=list(eos) or None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    texts = []
    for row, prompt in enumerate(batch.prompts):
        new = output.sequences[row, batch.width :].tolist()
        end = next((place + 1 for place, token in enumerate(new) if token in eos), len(new))
        gaps = [top_gap(scores[row]) for scores in output.scores[:end]]
        texts.append(Plain([*prompt[0].tolist(), *new[:end]], new[:end], gaps))
    return texts


def top_gap(scores: Float[Tensor, " V"]) -> float:
    """Distance between the two best scores."""
    best = scores.topk(2).values
    return float(best[0] - best[1])


@dataclass
class NearTies:
    """Differences that rounding explains; counted, so that they are never passed in silence.

    Attributes:
        compared: texts compared.
        count: texts that differ, at a near-tie first.
    """

    compared: int = 0
    count: int = 0

    def check(self, plain: Plain, found: Sequence[int], where: str) -> None:
        """Fail unless `found` equals the plain text, up to a near-tie at the first difference."""
        expected = plain.new
        self.compared += 1
        if list(found) == expected:
            return
        at = next(
            (i for i, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1]),
            min(len(expected), len(found)),
        )
        gap = plain.gaps[at] if at < len(plain.gaps) else float("inf")
        assert gap < NEAR_TIE, (
            f"{where}: token {at} is {list(found)[at : at + 1]} instead of "
            f"{expected[at : at + 1]}, and the two best logits are {gap:.4g} apart"
        )
        self.count += 1
