"""Several drafters as one."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from treespec.drafters.base import DraftContext, Drafter, DraftSession, Round
from treespec.drafters.calibration import Calibration
from treespec.drafters.predicting import PredictingDrafter, PredictingSession
from treespec.errors import ConfigError, DrafterError
from treespec.tree.growth import NO_CANDIDATES, Candidates, GrowingTree, grow
from treespec.tree.merge import Merged, merge
from treespec.tree.shapes import TreeLimits
from treespec.tree.token_tree import TokenTree


class MergedDrafter:
    """Drafts what any of its parts drafts, the most promising nodes first.

    Parts that predict from the text alone grow one tree together: their evidence is blended, and
    each continues what another began. Every other part grows a tree of its own; its estimates are
    corrected by how often they came true, and the trees are merged. Every part is told of every
    round as it was, with the merged tree; it finds its own nodes in it by their tokens.

    Args:
        drafters: the parts; those of a merged drafter among them count one by one. The i-th sets
            bit i of a node's sources.

    Raises:
        ConfigError: if there is no part.
        DrafterError: if the parts have no draw in common that can be merged.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        """Take the parts of merged drafters apart."""
        parts: list[Drafter] = []
        for drafter in drafters:
            parts += drafter.drafters if isinstance(drafter, MergedDrafter) else [drafter]
        if not parts:
            raise ConfigError("MergedDrafter needs at least one drafter")
        self.drafters: tuple[Drafter, ...] = tuple(parts)
        self.taps: tuple[int, ...] = tuple(sorted({tap for part in parts for tap in part.taps}))
        self.draws: tuple[str, ...] = tuple(
            draw
            for draw in parts[0].draws
            if draw in ("shared", "topk") and all(draw in part.draws for part in parts)
        )
        if not self.draws:
            offers = "; ".join(f"{type(part).__name__} {', '.join(part.draws)}" for part in parts)
            raise DrafterError(
                'merged drafters need "shared" or "topk" in common, because merging drops nodes; '
                f"they offer: {offers}"
            )

    def begin(
        self, prompts: Sequence[Int[Tensor, " _L"]], context: DraftContext
    ) -> "MergedSession":
        """See `Drafter.begin`."""
        predicting = [
            (bit, part)
            for bit, part in enumerate(self.drafters)
            if isinstance(part, PredictingDrafter)
        ]
        sources: list[_Source] = []
        if predicting:
            session = PredictingSession([part for _, part in predicting], prompts, context)
            sources.append(_Source(session, [bit for bit, _ in predicting], None))
        for bit, part in enumerate(self.drafters):
            if not isinstance(part, PredictingDrafter):
                calibrations = [Calibration() for _ in prompts]
                sources.append(_Source(part.begin(prompts, context), [bit], calibrations))
        return MergedSession(sources, context.draw)


class _Source:
    """One tree a row: a session, the bits of the drafters in it, and how it is corrected."""

    def __init__(
        self,
        session: DraftSession,
        bits: Sequence[int],
        calibrations: list[Calibration] | None,
    ) -> None:
        self.session = session
        self._masks = [1 << bit for bit in bits]
        self._calibrations = calibrations
        self._trees: list[TokenTree] = []

    def propose(self, limits: Sequence[TreeLimits]) -> list[TokenTree]:
        """The session's trees, with corrected scores and everybody's bits."""
        self._trees = self.session.propose(limits)
        trees = self._trees
        if self._calibrations is not None:
            trees = [
                calibration.corrected(tree)
                for calibration, tree in zip(self._calibrations, trees, strict=True)
            ]
        if self._masks == [1 << bit for bit in range(len(self._masks))]:
            return trees
        return [replace(tree, sources=self._translated(tree.sources)) for tree in trees]

    def observe(self, rounds: Sequence[Round]) -> None:
        """Tell the session, and compare its trees with what came."""
        if self._calibrations is not None:
            for calibration, tree, one in zip(
                self._calibrations, self._trees, rounds, strict=False
            ):
                if one.tree is not None:
                    accepted = [one.tree.token_list[node] for node in one.acceptance.path[1:]]
                    calibration.learn(tree, [*accepted, one.acceptance.next_token])
        self._trees = []
        self.session.observe(rounds)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows."""
        if self._calibrations is not None:
            self._calibrations = [self._calibrations[row] for row in rows]
        self.session.keep(rows)

    def _translated(self, own: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
        """Masks of the session's own bits as masks of the merged drafter's."""
        result = torch.zeros_like(own)
        for bit, mask in enumerate(self._masks):
            result |= torch.where((own >> bit) & 1 == 1, mask, 0)
        return result


class MergedSession:
    """The sessions of all parts."""

    def __init__(self, sources: Sequence[_Source], draw: str) -> None:
        """Hold the sources' sessions."""
        self._sources = sources
        self._draw = draw

    def propose(self, limits: Sequence[TreeLimits]) -> list[TokenTree]:
        """See `DraftSession.propose`."""
        if len(self._sources) == 1:
            return self._sources[0].propose(limits)
        free = [replace(limit, topology=None) for limit in limits]
        proposed = [source.propose(free) for source in self._sources]
        return [
            self._merged([trees[row] for trees in proposed], limit)
            for row, limit in enumerate(limits)
        ]

    def observe(self, rounds: Sequence[Round]) -> None:
        """See `DraftSession.observe`."""
        for source in self._sources:
            source.observe(rounds)

    def keep(self, rows: Sequence[int]) -> None:
        """See `DraftSession.keep`."""
        for source in self._sources:
            source.keep(rows)

    def _merged(self, trees: Sequence[TokenTree], limits: TreeLimits) -> TokenTree:
        """One row's trees as one within the limits."""
        if limits.topology is None:
            merged = merge(trees, budget=limits.budget, width=limits.width)
            return replace(merged.tree, sources=_sources(trees, merged))
        whole = merge(trees, budget=sum(map(len, trees)))
        known = replace(whole.tree, sources=_sources(trees, whole))
        filled = grow(_Refill(known), [known.token_list[0]], [limits], draw=self._draw)[0].tree
        places = _places(known, filled.topology.parent_list, filled.token_list)
        return replace(filled, sources=known.sources[places])


def _sources(trees: Sequence[TokenTree], merged: Merged) -> Int[Tensor, " N"]:
    """For each merged node the bits that its origins carry."""
    bits = [0] * len(merged.tree)
    for tree, origins in zip(trees, merged.origins, strict=True):
        own: list[int] = tree.sources.tolist()
        for node, origin in enumerate(origins):
            if origin is not None:
                bits[node] |= own[origin]
    return torch.from_numpy(np.array(bits, dtype=np.int64))


def _places(known: TokenTree, parents: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """For each node of a part of `known` the node that it stands for."""
    places = [0]
    for parent, token in zip(parents[1:], tokens[1:], strict=True):
        children = known.topology.children[places[parent]]
        places.append(next(child for child in children if known.token_list[child] == token))
    return places


class _Refill:
    """Offers the nodes of a finished tree again, so that they can fill another shape."""

    def __init__(self, tree: TokenTree) -> None:
        self._tree = tree
        self._scores: list[float] = [] if tree.scores is None else tree.scores.tolist()

    def expand(
        self, trees: Sequence[GrowingTree], frontiers: Sequence[Sequence[int]]
    ) -> list[list[Candidates]]:
        """See `Expander.expand`; there is one row."""
        places = _places(self._tree, trees[0].parents, trees[0].tokens)
        return [[self._children(places[node]) for node in frontiers[0]]]

    def _children(self, node: int) -> Candidates:
        children = self._tree.topology.children[node]
        if not children:
            return NO_CANDIDATES
        return Candidates(
            [self._tree.token_list[child] for child in children],
            [self._scores[child] - self._scores[node] for child in children],
        )
