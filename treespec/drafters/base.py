"""The protocol between the decoder and whatever drafts for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from treespec.errors import DrafterError
from treespec.sampling import RowNoise
from treespec.target import TargetOutput
from treespec.tree.shapes import TreeLimits
from treespec.tree.token_tree import TokenTree
from treespec.verify.acceptance import Acceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftContext:
    """What a drafter may know about the generation it drafts for.

    Attributes:
        noises: one source of noise per row, shared with the verifier; the zero noise when greedy.
        temperature: the target's temperature; 0 when greedy.
        vocab_size: number of the target's logits; ids at or above it must not be proposed.
        device: where the target's outputs live.
        draw: how siblings are to be drawn, one of the drafter's `draws`.
    """

    noises: Sequence[RowNoise]
    temperature: float
    vocab_size: int
    device: torch.device
    draw: str


@dataclass(frozen=True, slots=True)
class Round:
    """What happened to one row in one step.

    Attributes:
        tree: the tree that was scored; None after prefill.
        acceptance: the accepted path and the next token; after prefill an empty path and the
            first token.
        output: the target's output for all N nodes, the rejected ones too. After prefill: logits
            of the last prompt token, shape `[1, V]`, hidden states and `top_ids` of every one.
    """

    tree: TokenTree | None
    acceptance: Acceptance
    output: TargetOutput


@runtime_checkable
class DraftSession(Protocol):
    """A drafter's state for one call of `generate`; rows are the rows still being decoded."""

    def propose(self, limits: Sequence[TreeLimits]) -> list[TokenTree]:
        """Draft one tree per row, within its limits; the root is the row's last committed token."""
        ...

    def observe(self, rounds: Sequence[Round]) -> None:
        """Learn what happened: once after prefill, then once a step, one round per row."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order."""
        ...


@runtime_checkable
class Drafter(Protocol):
    """Anything that guesses continuations.

    Attributes:
        taps: indices into the target's `hidden_states` that `observe` wants to see; () for none.
        draws: how it can draw siblings, preferred first.
    """

    taps: tuple[int, ...]
    draws: tuple[str, ...]

    def begin(self, prompts: Sequence[Tensor], context: DraftContext) -> DraftSession:
        """Start drafting for these prompts, each of shape `[L]` without padding, on the CPU."""
        ...


def check_proposal(
    trees: Sequence[TokenTree],
    roots: Sequence[int],
    limits: Sequence[TreeLimits],
    vocab_size: int,
) -> None:
    """Hold a drafter to the protocol before its trees reach the target.

    Raises:
        DrafterError: naming the row and what is wrong with its tree.
    """
    if len(trees) != len(roots):
        raise DrafterError(
            f"the drafter proposed {len(trees)} trees for {len(roots)} rows; give one per row"
        )
    for row, (tree, root, limit) in enumerate(zip(trees, roots, limits, strict=True)):
        size, depth = len(tree) - 1, tree.topology.max_depth
        if tree.token_list[0] != root:
            raise DrafterError(
                f"row {row}: the tree's root is token {tree.token_list[0]}, but the last committed "
                f"token is {root}; start the tree from it"
            )
        if size > limit.budget or depth > limit.depth:
            raise DrafterError(
                f"row {row}: the tree has {size} draft tokens and {depth} levels, but the limits "
                f"are {limit.budget} and {limit.depth}; respect TreeLimits"
            )
        if not 0 <= min(tree.token_list) <= max(tree.token_list) < vocab_size:
            raise DrafterError(
                f"row {row}: the tree holds a token id outside 0 to {vocab_size - 1}; propose ids "
                "below DraftContext.vocab_size only"
            )
