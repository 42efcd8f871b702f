"""The drafter that proposes nothing: plain decoding through the tree loop."""

from collections.abc import Sequence

from torch import Tensor

from treespec.drafters.base import DraftContext, Round
from treespec.tree.shapes import TreeLimits
from treespec.tree.token_tree import DRAWS, TokenTree

# The protocol's arguments are of no use to a drafter that proposes nothing.
# ruff: noqa: ARG002


class PlainDrafter:
    """Proposes the root alone, which makes every step one of plain decoding."""

    taps: tuple[int, ...] = ()
    draws: tuple[str, ...] = DRAWS

    def begin(self, prompts: Sequence[Tensor], context: DraftContext) -> "PlainSession":
        """See `Drafter.begin`."""
        return PlainSession()


class PlainSession:
    """Remembers each row's last token."""

    def __init__(self) -> None:
        self._roots: list[int] = []

    def propose(self, limits: Sequence[TreeLimits]) -> list[TokenTree]:
        """See `DraftSession.propose`."""
        return [TokenTree.root_only(root) for root in self._roots]

    def observe(self, rounds: Sequence[Round]) -> None:
        """See `DraftSession.observe`."""
        self._roots = [one.acceptance.next_token for one in rounds]

    def keep(self, rows: Sequence[int]) -> None:
        """See `DraftSession.keep`."""
        self._roots = [self._roots[row] for row in rows]
