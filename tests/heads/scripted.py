"""Heads that know what the target will say, or ask it, for tests of the drafter around them."""

import torch
from torch import Tensor, nn

from tests.families import VOCAB
from treespec.heads import DraftHeads
from treespec.heads.base import last_tap


class ScriptedHeads(DraftHeads):
    """Heads that know texts, and rank the right token where a test wants it.

    Args:
        target: the target.
        texts: per row its prompt and what the target will say.
        ranks: per row the right token's rank among its siblings; None for never.
        broken: say nothing but NaN.
        gaps: know nothing of every third token.
        vocabulary: as for all heads.
    """

    family = "scripted"

    def __init__(self, target, texts, ranks, *, broken=False, gaps=False, vocabulary=None) -> None:
        super().__init__(target, vocabulary)
        self.unused = nn.Parameter(torch.zeros(1))
        self.taps = (last_tap(target),)
        self.texts, self.ranks, self.broken, self.gaps = texts, ranks, broken, gaps
        self.reads = self.extends = 0

    def begin(self, batch: int) -> "ScriptedSession":
        return ScriptedSession(self, batch)

    def say(self, row: int, position: int) -> Tensor:
        """Logits of the token after the one at this position."""
        logits = torch.rand(VOCAB, generator=torch.Generator().manual_seed(position))
        ahead = self.texts[row][position + 1 : position + 2]
        for right in [] if self.gaps and position % 3 == 0 else ahead:
            rank = self.ranks[row]
            logits[right] = -torch.inf if rank is None else 30.0
            for place in range(rank or 0):
                logits[(right + 1 + place) % VOCAB] = 30.2 - 0.05 * place
        if self.broken:
            logits[:] = torch.nan
        return logits if self.vocabulary is None else logits[self.vocabulary.ids]


class ScriptedSession:
    """Where each row's root stands."""

    def __init__(self, heads: ScriptedHeads, batch: int) -> None:
        self.heads, self.rows, self.positions = heads, list(range(batch)), [0] * batch

    def read(self, features, tokens):
        assert [len(states) for states in features] == [len(new) for new in tokens]
        self.positions = [at + len(new) for at, new in zip(self.positions, tokens, strict=True)]
        self.heads.reads += 1
        return [
            self.heads.say(row, position)[None][: len(new) > 0]
            for row, position, new in zip(self.rows, self.positions, tokens, strict=True)
        ]

    def extend(self, trees, frontiers):
        self.heads.extends += 1
        return [
            torch.stack([self.heads.say(row, position + tree.depths[node]) for node in frontier])
            if frontier
            else torch.empty(0, self.heads.num_columns)
            for row, position, tree, frontier in zip(
                self.rows, self.positions, trees, frontiers, strict=True
            )
        ]

    def keep(self, rows):
        self.rows = [self.rows[row] for row in rows]
        self.positions = [self.positions[row] for row in rows]


class MirrorHeads(ScriptedHeads):
    """Heads that say at every node exactly what the target says there."""

    def begin(self, batch: int) -> "MirrorSession":
        return MirrorSession(self, batch)


class MirrorSession(ScriptedSession):
    """The committed text of each row, of which the script holds the first token."""

    def read(self, features, tokens):
        if not any(self.positions):
            self.committed = [text[:1] for text in self.heads.texts]
        self.committed = [
            [*text, *new.tolist()] for text, new in zip(self.committed, tokens, strict=True)
        ]
        found = super().read(features, tokens)
        return [
            self._mirror(text)[None][: len(logits)]
            for text, logits in zip(self.committed, found, strict=True)
        ]

    def extend(self, trees, frontiers):
        return [
            torch.stack([self._mirror([*text, *path(tree, node)]) for node in frontier])
            if frontier
            else torch.empty(0, VOCAB)
            for text, tree, frontier in zip(self.committed, trees, frontiers, strict=True)
        ]

    def keep(self, rows):
        super().keep(rows)
        self.committed = [self.committed[row] for row in rows]

    def _mirror(self, text):
        return self.heads.borrowed.target(torch.tensor([text])).logits[0, -1]


def path(tree, node):
    """Tokens below the root down to a node."""
    return [] if node == 0 else [*path(tree, tree.parents[node]), tree.tokens[node]]
