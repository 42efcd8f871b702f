"""A target's hidden states at its own text, taken while it writes."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.drafters.base import DraftContext, Drafter, DraftSession, Round
from treespec.target import Target
from treespec.tree.shapes import TreeLimits
from treespec.tree.token_tree import TokenTree


class CapturingDrafter:
    """Drafts as another drafter does, and keeps the hidden states of all that is accepted.

    Args:
        drafter: what drafts.
        taps: indices of `hidden_states` to keep.
        dtype: type to keep them in; None for the target's.
    """

    def __init__(
        self, drafter: Drafter, taps: Sequence[int], dtype: torch.dtype | None = None
    ) -> None:
        self.drafter = drafter
        self.wanted = tuple(taps)
        self.dtype = dtype
        self.taps: tuple[int, ...] = tuple(sorted({*drafter.taps, *taps}))
        self.draws: tuple[str, ...] = drafter.draws
        self._taken: list[list[Tensor]] = []

    def begin(
        self, prompts: Sequence[Int[Tensor, " _L"]], context: DraftContext
    ) -> "CapturingSession":
        """See `Drafter.begin`; what earlier calls of `generate` left is forgotten."""
        self._taken = [[] for _ in prompts]
        return CapturingSession(self, self.drafter.begin(prompts, context), self._taken)

    def states(self, row: int) -> Float[Tensor, "L F"]:
        """States of a row of the last call, taps side by side, on the CPU.

        They are those of every token from the first of the prompt on; of the last token of an
        answer they are never computed.
        """
        return torch.cat(self._taken[row])


class CapturingSession:
    """The other drafter's session, and where the states of each row go."""

    def __init__(
        self, drafter: CapturingDrafter, session: DraftSession, taken: Sequence[list[Tensor]]
    ) -> None:
        self._drafter = drafter
        self._session = session
        self._rows = list(taken)

    def propose(self, limits: Sequence[TreeLimits]) -> list[TokenTree]:
        """See `DraftSession.propose`."""
        return self._session.propose(limits)

    def observe(self, rounds: Sequence[Round]) -> None:
        """See `DraftSession.observe`; after prefill every prompt token counts as accepted."""
        for taken, one in zip(self._rows, rounds, strict=True):
            nodes = None if one.tree is None else one.acceptance.path
            states = one.output.features(self._drafter.wanted, nodes)
            taken.append(states.to("cpu", self._drafter.dtype or states.dtype))
        self._session.observe(rounds)

    def keep(self, rows: Sequence[int]) -> None:
        """See `DraftSession.keep`."""
        self._rows = [self._rows[row] for row in rows]
        self._session.keep(rows)


def states_of(
    target: Target,
    texts: Sequence[Int[Tensor, " _L"]],
    taps: Sequence[int],
    dtype: torch.dtype | None = None,
) -> list[Float[Tensor, "_L F"]]:
    """Hidden states of texts that exist, by running them; taps side by side, on the CPU."""
    found = [output.features(taps) for output in target.read(texts, taps=taps)]
    return [states.to("cpu", dtype or states.dtype) for states in found]
