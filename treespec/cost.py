"""What a step costs on this machine by its number of nodes, and how large a tree is worth it.

The time of a forward hardly depends on its size up to some point and then jumps, where depends on
model, machine and what else runs on it. So the steps themselves are timed, and every step's tree is
cut to the size that promises most tokens a second: of a best-first tree the k best nodes are a tree
again, and the sum of their scores is what the drafter expects to be accepted of it
(docs/math/trees.md).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from treespec.tree.token_tree import TokenTree
from treespec.tree.topology import TreeTopology
from treespec.verify.acceptance import Acceptance

# Nodes of the trees that are considered, roots included. Kernels work on tiles of 8 or 16.
SIZES = (1, 8, 16, 24, 32, 48, 64)
_REMEMBERED = 9
# What a node of any row is taken to add to a step without nodes, where nothing was timed yet.
_PRIOR_SLOPE = 0.002
# A size that was timed this many steps ago is timed again when it comes close to the best.
_STALE = 64
_CLOSE = 0.9
# Draft tokens whose fate is assumed to be known when a row begins: accepted as often as expected.
_PRIOR_TOKENS = 4.0
_DECAY = 0.95
# Drafting that takes less than this share of a plain step is never left out.
_CHEAP_DRAFT = 0.01
# Most steps in a row without a draft; then drafting is tried again.
_LONGEST_REST = 31


class StepCosts:
    """Seconds of a step for each of `SIZES`, from the steps of late.

    Times are kept for each number of rows. A size that was not timed with this many rows is judged
    by the nodes of all rows together, which is what decides once a machine is busy. Estimates never
    fall with the size: a step that was held up by something else must not make a larger one look
    cheap.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], deque[float]] = {}
        self._usual: dict[tuple[int, int], float] = {}  # medians of what was seen
        self._last: dict[tuple[int, int], int] = {}
        self._steps = 0

    def record(self, rows: int, nodes: int, elapsed_s: float) -> None:
        """Remember how long a step of `rows` trees of at most `nodes` nodes took."""
        key = (rows, place_of(nodes))
        seen = self._seen.setdefault(key, deque(maxlen=_REMEMBERED))
        seen.append(elapsed_s)
        self._usual[key] = median(seen)
        self._steps += 1
        self._last[key] = self._steps

    def is_stale(self, rows: int, place: int) -> bool:
        """Whether a size was not timed lately."""
        return self._steps - self._last.get((rows, place), -_STALE) >= _STALE

    def knows_plain(self, rows: int) -> bool:
        """Whether a step of about as many nodes was timed as these rows have without a draft."""
        return any(rows <= 2 * n * SIZES[place] <= 4 * rows for n, place in self._usual)

    def estimates(self, rows: int) -> list[float]:
        """Seconds for each of `SIZES`; on an arbitrary scale before the first step."""
        known = {place: usual for (n, place), usual in self._usual.items() if n == rows}
        if len(known) < len(SIZES):
            known = self._completed(known, rows)
        rising: list[float] = np.maximum.accumulate([known[p] for p in range(len(SIZES))]).tolist()
        return rising

    def _completed(self, known: Mapping[int, float], rows: int) -> dict[int, float]:
        """Seconds for each place: known ones, the others in proportion to the nearest of them."""
        like_rows_last = sorted(self._usual.items(), key=lambda one: -abs(one[0][0] - rows))
        curve = _Curve.of({n * SIZES[place]: usual for (n, place), usual in like_rows_last})
        found = {place: curve.at(rows * size) for place, size in enumerate(SIZES)}
        if not known:
            return found
        nearest = [min(known, key=lambda p: (abs(p - place), p)) for place in found]
        return {
            place: known[other] * (seconds / found[other])
            for (place, seconds), other in zip(found.items(), nearest, strict=True)
        }


@dataclass(frozen=True, slots=True)
class _Curve:
    """Seconds by nodes of all rows together: straight between times that are known.

    Attributes:
        nodes: of the known times, rising.
        seconds: the times, never falling.
    """

    nodes: tuple[int, ...]
    seconds: tuple[float, ...]

    @classmethod
    def of(cls, times: Mapping[int, float]) -> "_Curve":
        """A curve through these times."""
        nodes = sorted(times) or [0]
        seconds = np.maximum.accumulate([times.get(one, 1.0) for one in nodes])
        return cls(tuple(nodes), tuple(seconds.tolist()))

    def at(self, nodes: int) -> float:
        """Seconds of so many nodes; beyond what is known they grow as before, or a little."""
        first, last = self.nodes[0], self.nodes[-1]
        if nodes < first:
            return self.seconds[0] * _prior(nodes) / _prior(first)
        if nodes <= last:
            return float(np.interp(nodes, self.nodes, self.seconds))
        slope = self.seconds[-1] * _PRIOR_SLOPE / _prior(last)
        if len(self.nodes) > 1:
            rise = self.seconds[-1] - self.seconds[-2]
            slope = max(slope, rise / (last - self.nodes[-2]))
        return self.seconds[-1] + slope * (nodes - last)


def _prior(nodes: int) -> float:
    """Time of a step on an arbitrary scale, where nothing is known."""
    return 1.0 + _PRIOR_SLOPE * nodes


def place_of(nodes: int) -> int:
    """Which of `SIZES` a tree is counted to: the least that holds it, the last if none does."""
    return next((place for place, size in enumerate(SIZES) if nodes <= size), len(SIZES) - 1)


_COSTS: WeakKeyDictionary[nn.Module, StepCosts] = WeakKeyDictionary()


def costs_of(model: nn.Module) -> StepCosts:
    """What is known of the steps of a model; kept as long as the model."""
    return _COSTS.setdefault(model, StepCosts())


class BudgetControl:
    """Cuts the trees of one generation to the size that is worth most, step by step.

    The drafter's own expectation is corrected by how much of it came true in this generation, row
    by row.

    Args:
        costs: what steps cost.
        rows: rows of the generation.
    """

    def __init__(self, costs: StepCosts, rows: int) -> None:
        self._costs = costs
        self._expected = [_PRIOR_TOKENS] * rows
        self._accepted = [_PRIOR_TOKENS] * rows
        self._promised: list[float] = []
        self._rest = self._last_rest = 0

    def rests(self) -> bool:
        """Whether the next step should do without a draft, which lately cost more than it gave."""
        self._rest = max(self._rest - 1, -1)
        return self._rest >= 0

    def cut(
        self, trees: Sequence[TokenTree], rows: Sequence[int], draft_s: float = 0.0
    ) -> list[TokenTree]:
        """The trees of one step, each without the nodes that cost more than they bring.

        Args:
            trees: as drafted.
            rows: which rows of the generation they are.
            draft_s: seconds that drafting took.
        """
        gains = [_gains(tree) for tree in trees]
        if any(gain is None for gain in gains):
            self._promised = []
            return list(trees)
        kept = [gain for gain in gains if gain is not None]
        place = self._best_place(kept, rows, draft_s)
        cut = [best_nodes(tree, SIZES[place]) for tree in trees]
        self._promised = [float(gain[len(tree) - 1]) for gain, tree in zip(kept, cut, strict=True)]
        return cut

    def _best_place(self, gains: Sequence[np.ndarray], rows: Sequence[int], draft_s: float) -> int:
        """Index of the size with most expected tokens a second."""
        largest = max(len(gain) for gain in gains)
        if largest > 1 and not self._costs.knows_plain(len(rows)):
            return 0  # what a draft must beat
        costs = self._costs.estimates(len(rows))
        trust = [self._accepted[row] / self._expected[row] for row in rows]
        tokens = []
        for size in SIZES:
            tokens.append(
                sum(
                    1.0 + share * gain[min(size, len(gain)) - 1]
                    for gain, share in zip(gains, trust, strict=True)
                )
            )
            if size >= largest:
                break
        rates = [count / cost for count, cost in zip(tokens, costs, strict=False)]
        if largest > 1:
            drafted = [n / (t + draft_s) for n, t in zip(tokens[1:], costs[1:], strict=False)]
            is_wasted = bool(rates[0] >= max(drafted)) and draft_s > _CHEAP_DRAFT * costs[0]
            self._plan_rest(is_wasted)
        best = int(np.argmax(rates))
        for place, rate in enumerate(rates):
            if self._costs.is_stale(len(rows), place) and rate >= _CLOSE * rates[best]:
                return place
        return best

    def _plan_rest(self, is_wasted: bool) -> None:
        """Rest longer and longer while drafts are wasted."""
        self._last_rest = min(2 * self._last_rest + 1, _LONGEST_REST) if is_wasted else 0
        self._rest = self._last_rest

    def saw(
        self,
        accepted: Sequence[Acceptance],
        rows: Sequence[int],
        trees: Sequence[TokenTree],
        elapsed_s: float,
    ) -> None:
        """Learn from a step.

        Args:
            accepted: what was accepted of each tree.
            rows: which rows of the generation they are.
            trees: what was scored.
            elapsed_s: what scoring and accepting took.
        """
        self._costs.record(len(rows), max(map(len, trees)), elapsed_s)
        if max(map(len, trees)) == 1:
            return
        for row, one, promised in zip(rows, accepted, self._promised, strict=False):
            self._expected[row] = _DECAY * self._expected[row] + promised
            self._accepted[row] = _DECAY * self._accepted[row] + one.num_accepted


def _gains(tree: TokenTree) -> np.ndarray | None:
    """Expected accepted tokens of the best k nodes, k from 0; None where nodes may not be dropped.

    Sampled tokens may not be chosen by their value, see docs/math/trees.md.
    """
    if len(tree) == 1:
        return np.zeros(1)
    if tree.scores is None or tree.draw not in ("shared", "topk"):
        return None
    scores = np.sort(tree.scores[1:].numpy())[::-1]
    return np.concatenate([[0.0], np.exp(scores).cumsum()])


def best_nodes(tree: TokenTree, size: int) -> TokenTree:
    """The tree of its `size` best nodes, the root included, in their old order."""
    if len(tree) <= size or tree.scores is None:
        return tree
    scores = tree.scores.tolist()
    ranked = sorted(range(1, len(tree)), key=lambda node: (-scores[node], node))
    chosen = {0, *ranked[: size - 1]}
    parents = tree.topology.parent_list
    # A child scores no better than its parent; should a drafter say otherwise, it goes with it.
    kept = [0]
    for node in range(1, len(tree)):
        if node in chosen and parents[node] in chosen:
            kept.append(node)
        else:
            chosen.discard(node)
    places = {node: place for place, node in enumerate(kept)}
    index = torch.tensor(kept)
    return TokenTree(
        topology=TreeTopology([-1, *(places[parents[node]] for node in kept[1:])]),
        tokens=tree.tokens[index],
        sources=tree.sources[index],
        draw=tree.draw,
        draft_probs=None if tree.draft_probs is None else tree.draft_probs[index],
        scores=tree.scores[index],
    )
