"""The protocol between the decoder and whatever drafts for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

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
