"""Where the right token stands among the heads' guesses, depth by depth, along given texts."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.heads.base import DraftHeads
from treespec.target import TargetOutput
from treespec.training.passages import Passage
from treespec.training.results import DepthRates
from treespec.tree.growth import GrowingTree

ABSENT = -1
"""In place of a rank where the text has ended."""
UNRANKED = 1 << 30
"""In place of a rank where the heads cannot propose the token, or say nothing of it."""


@torch.no_grad()
def rank_passages(
    heads: DraftHeads,
    passages: Sequence[Passage],
    states: Sequence[TargetOutput],
    roots: Sequence[Sequence[int]],
    depth: int,
) -> list[Int[Tensor, "_R K"]]:
    """Ranks of the right tokens behind chosen roots, all passages at once.

    At every depth the heads have been given the right tokens before it.

    Args:
        heads: whose session is asked.
        passages: the texts.
        states: what `states_of` gave for them, with the heads' taps.
        roots: for every passage indices of its tokens, rising, from its `start` on and before its
            last; at least one.
        depth: K, levels to look at.

    Returns:
        For every passage a row for each of its roots, on the CPU: entry d is the rank, from 0, of
        the token d + 1 places behind the root.
    """
    rows = [
        _Row(heads, passage, one.features(heads.taps), chosen)
        for passage, one, chosen in zip(passages, states, roots, strict=True)
    ]
    columns = _columns(heads)
    session = heads.begin(len(rows))
    live = rows
    while live:
        pairs = [row.advance() for row in live]
        logits = session.read([one for one, _ in pairs], [tokens for _, tokens in pairs])
        _note(live, [True] * len(live), logits, columns, 0)
        for level in range(1, depth):
            frontiers = [row.frontier(level) for row in live]
            if not any(frontiers):
                break
            logits = session.extend([row.tree for row in live], frontiers)
            _note(live, [bool(one) for one in frontiers], logits, columns, level)
        places = [place for place, row in enumerate(live) if row.has_more]
        if places and len(places) < len(live):
            session.keep(places)
        live = [live[place] for place in places]
    return [row.ranks(depth) for row in rows]


class _Row:
    """One passage, and the root at which it stands."""

    def __init__(
        self,
        heads: DraftHeads,
        passage: Passage,
        features: Float[Tensor, "_L F"],
        roots: Sequence[int],
    ) -> None:
        self._tokens = passage.tokens
        self._features = features.to(heads.device, heads.dtype)
        self._roots = list(roots)
        self._next = 0
        self._root = 0
        self._found: list[list[int]] = []
        self.tree = GrowingTree(0)

    @property
    def has_more(self) -> bool:
        """Whether there is another root."""
        return self._next < len(self._roots)

    def advance(self) -> tuple[Tensor, Tensor]:
        """Go to the next root; the pairs up to it that have not been read."""
        before, self._root = self._root, self._roots[self._next]
        self._next += 1
        self._found.append([])
        self.tree = GrowingTree(int(self._tokens[self._root]))
        return self._features[before : self._root], self._tokens[before + 1 : self._root + 1]

    def frontier(self, level: int) -> list[int]:
        """The node of the right token at this level, new in the tree; none if no token follows."""
        place = self._root + level
        if place + 1 >= len(self._tokens):
            return []
        return [self.tree.add(len(self.tree) - 1, int(self._tokens[place]), 0.0)]

    def truth(self, level: int) -> int:
        """The token that the logits of this level speak of."""
        return int(self._tokens[self._root + level + 1])

    def note(self, rank: int) -> None:
        """Take down the rank at the next level."""
        self._found[-1].append(rank)

    def ranks(self, depth: int) -> Int[Tensor, "_R K"]:
        """All that was taken down."""
        padded = [[*found, *[ABSENT] * (depth - len(found))] for found in self._found]
        return torch.tensor(padded, dtype=torch.int64)


def _note(
    rows: Sequence[_Row],
    asked: Sequence[bool],
    logits: Sequence[Float[Tensor, "_M _D"]],
    columns: dict[int, int] | None,
    level: int,
) -> None:
    """Give every row that was asked the rank of its token; one look at the device for all."""
    chosen = [row for row, was_asked in zip(rows, asked, strict=True) if was_asked]
    truths = [row.truth(level) for row in chosen]
    own = truths if columns is None else [columns.get(token, ABSENT) for token in truths]
    values = torch.cat([one for one, was_asked in zip(logits, asked, strict=True) if was_asked])
    for row, rank in zip(chosen, _ranks(values, own).tolist(), strict=True):
        row.note(rank)


def _ranks(logits: Float[Tensor, "M D"], columns: Sequence[int]) -> Int[Tensor, " M"]:
    """Ranks of columns, ties to the lower one; `UNRANKED` where there is none or no number."""
    index = torch.tensor(columns, device=logits.device)[:, None]
    own = logits.gather(1, index.clamp(min=0))
    places = torch.arange(logits.shape[1], device=logits.device)
    better = (logits > own) | ((logits == own) & (places < index))
    known = (index >= 0) & (own > -torch.inf)  # false for NaN
    return better.sum(dim=1).where(known[:, 0], UNRANKED)


def _columns(heads: DraftHeads) -> dict[int, int] | None:
    """Column of every token that the heads can propose; None if they are the same."""
    if heads.vocabulary is None:
        return None
    return {token: column for column, token in enumerate(heads.vocabulary.ids.tolist())}


def depth_rates(ranks: Int[Tensor, "R K"], columns: int) -> tuple[DepthRates, ...]:
    """How good the guesses of every depth are; depths that no text reaches are left out."""
    found = []
    for level in range(ranks.shape[1]):
        here = ranks[ranks[:, level] != ABSENT, level]
        if not len(here):
            break
        tops = {f"top{top}": _share(here < top) for top in (1, 2, 5, 10)}
        chained = ranks[_behind(ranks, level, 1), level]
        found.append(
            DepthRates(
                depth=level + 1,
                positions=len(here),
                chained=_share(chained == 0) if len(chained) else None,
                reached=int(_behind(ranks, level, columns).sum()),
                **tops,
            )
        )
    return tuple(found)


def rank_table(ranks: Int[Tensor, "R K"], columns: int) -> tuple[tuple[float, ...], ...]:
    """Share of every rank at every depth, among roots whose earlier tokens are in the table.

    Rows that no root reaches are left out.
    """
    table = []
    for level in range(ranks.shape[1]):
        reached = ranks[_behind(ranks, level, columns), level]
        if not len(reached):
            break
        counts = torch.bincount(reached[reached < columns], minlength=columns)
        table.append(tuple((counts.double() / len(reached)).tolist()))
    return tuple(table)


def _behind(ranks: Int[Tensor, "R K"], level: int, columns: int) -> Bool[Tensor, " R"]:
    """Roots with a token at this level, all of whose earlier tokens have ranks below `columns`."""
    before = ranks[:, :level]
    return (ranks[:, level] != ABSENT) & ((before >= 0) & (before < columns)).all(dim=1)


def _share(flags: Bool[Tensor, " N"]) -> float:
    return float(flags.double().mean())
