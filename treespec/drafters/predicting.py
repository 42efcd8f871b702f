"""Drafters that predict from the text alone, on the host, without a model of their own.

A `Predictor` names evidence for the next token after any continuation of its row's text. One
`PredictingSession` blends the evidence of one or several predictors and grows trees from it, so
that merged drafters extend each other's branches. It learns from every token that the target emits,
whoever drafted it.

Under sampling the shared noise is left out of the estimates. It decides between tokens that the
target itself finds likely, but here most of the doubt is about what the target finds likely: taking
the noise into account did not raise acceptance.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from treespec.drafters.base import DraftContext, Round
from treespec.drafters.evidence import Evidence, Reliabilities
from treespec.drafters.opinions import Opinion, opinions_of
from treespec.tree.growth import Candidates, GrowingTree, Grown, grow
from treespec.tree.shapes import TreeLimits
from treespec.tree.token_tree import TokenTree

# A node less likely to be accepted is not worth a place in a tree that chooses its own shape.
_LEAST_SCORE = 1e-3


@runtime_checkable
class Predictor(Protocol):
    """Knows one row's text, and what followed in similar contexts.

    States stand for the text with a few drafted tokens behind it; only the predictor that made a
    state looks inside.
    """

    def start(self) -> Any:
        """State of the text as it is."""
        ...

    def follow(self, state: Any, token: int) -> Any:
        """State with one more drafted token."""
        ...

    def evidence(self, state: Any) -> list[Evidence]:
        """What may follow a state, most specific first."""
        ...

    def absorb(self, one: Round, opinions: Sequence[Opinion]) -> None:
        """Learn from a round before its tokens are appended.

        Args:
            one: what happened.
            opinions: the target's opinion at every row of `one.output.logits`; empty unless
                `PredictingDrafter.wants_opinions`.
        """
        ...

    def append(self, token: int) -> None:
        """Let the text grow by an emitted token."""
        ...


class PredictingDrafter(ABC):
    """A drafter that is nothing but a predictor for each row.

    Attributes:
        priors: for each kind of its evidence the reliability to start with.
        wants_opinions: whether `Predictor.absorb` reads opinions.
    """

    taps: tuple[int, ...] = ()
    draws: tuple[str, ...] = ("shared", "topk")
    priors: Mapping[str, float]
    wants_opinions: bool

    @abstractmethod
    def predictor(self, prompt: Int[Tensor, " L"]) -> Predictor:
        """A predictor for a row with this prompt."""

    def begin(
        self, prompts: Sequence[Int[Tensor, " _L"]], context: DraftContext
    ) -> "PredictingSession":
        """See `Drafter.begin`."""
        return PredictingSession([self], prompts, context)


class PredictingSession:
    """Rows that grow trees from their predictors' evidence.

    Args:
        drafters: where each row's predictors come from; evidence of the i-th sets bit i of a
            node's sources.
        prompts: one a row.
        context: of the generation.
    """

    def __init__(
        self,
        drafters: Sequence[PredictingDrafter],
        prompts: Sequence[Int[Tensor, " _L"]],
        context: DraftContext,
    ) -> None:
        """Make every row's predictors."""
        priors = {kind: prior for drafter in drafters for kind, prior in drafter.priors.items()}
        self._context = context
        self._wants_opinions = any(drafter.wants_opinions for drafter in drafters)
        self._rows = [
            _Row(
                [drafter.predictor(prompt) for drafter in drafters],
                Reliabilities(priors),
                context.vocab_size,
            )
            for prompt in prompts
        ]

    def propose(self, limits: Sequence[TreeLimits]) -> list[TokenTree]:
        """See `DraftSession.propose`."""
        for row, limit in zip(self._rows, limits, strict=True):
            row.fill_all = limit.topology is not None
        roots = [row.root for row in self._rows]
        grown = grow(self, roots, limits, draw=self._context.draw)
        return [row.with_sources(one) for row, one in zip(self._rows, grown, strict=True)]

    def expand(
        self, trees: Sequence[GrowingTree], frontiers: Sequence[Sequence[int]]
    ) -> list[list[Candidates]]:
        """See `Expander.expand`."""
        return [
            row.expand(tree, frontier)
            for row, tree, frontier in zip(self._rows, trees, frontiers, strict=True)
        ]

    def observe(self, rounds: Sequence[Round]) -> None:
        """See `DraftSession.observe`."""
        opinions: Sequence[Sequence[Opinion]] = [()] * len(rounds)
        if self._wants_opinions:
            opinions = opinions_of(
                [one.output.logits for one in rounds],
                vocab_size=self._context.vocab_size,
                temperature=self._context.temperature,
            )
        for row, one, heard in zip(self._rows, rounds, opinions, strict=True):
            row.observe(one, heard)

    def keep(self, rows: Sequence[int]) -> None:
        """See `DraftSession.keep`."""
        self._rows = [self._rows[row] for row in rows]


class _Row:
    """One row: its predictors, what they are worth, and the states of the tree being grown."""

    def __init__(
        self,
        predictors: Sequence[Predictor],
        reliabilities: Reliabilities,
        vocab_size: int,
    ) -> None:
        self.root = -1
        self.fill_all = False
        self._predictors = predictors
        self._reliabilities = reliabilities
        self._vocab_size = vocab_size
        # Per node of the tree being grown that has been expanded, one entry for each predictor.
        self._states: dict[int, list[Any]] = {}
        self._evidence: dict[int, list[list[Evidence]]] = {}

    def expand(self, tree: GrowingTree, frontier: Sequence[int]) -> list[Candidates]:
        """Candidates for nodes of one level."""
        found = []
        for node in frontier:
            self._enter(tree, node)
            least = 0.0 if self.fill_all else min(_LEAST_SCORE / math.exp(tree.scores[node]), 1.0)
            heard = _ordered(self._evidence[node])
            estimates = self._reliabilities.blend(heard, least=least)
            found.append(_candidates(estimates, self._vocab_size))
        return found

    def with_sources(self, grown: Grown) -> TokenTree:
        """The tree with the predictors marked that named each node's token."""
        tree = grown.tree
        if len(self._predictors) == 1:
            return tree
        sources = [0]
        for node in range(1, len(tree)):
            token, parent = tree.token_list[node], tree.topology.parent_list[node]
            heard = self._evidence[grown.origins[parent]]
            sources.append(
                sum(
                    1 << source
                    for source, evidence in enumerate(heard)
                    if any(token in one.tokens for one in evidence)
                )
            )
        return replace(tree, sources=torch.from_numpy(np.array(sources, dtype=np.int64)))

    def observe(self, one: Round, opinions: Sequence[Opinion]) -> None:
        """Learn from a round and let the text grow."""
        emitted = [one.acceptance.next_token]
        if one.tree is not None:
            emitted[:0] = [one.tree.token_list[node] for node in one.acceptance.path[1:]]
            self._learn(emitted)
        for predictor in self._predictors:
            predictor.absorb(one, opinions)
            for token in emitted:
                predictor.append(token)
        self.root = emitted[-1]

    def _enter(self, tree: GrowingTree, node: int) -> None:
        """Make the states of a node that is about to be expanded."""
        if node == 0:
            self._states, self._evidence = {}, {}
            states = self._start()
        else:
            states = self._follow(self._states[tree.parents[node]], tree.tokens[node])
        self._states[node] = states
        self._evidence[node] = self._hear(states)

    def _learn(self, emitted: Sequence[int]) -> None:
        """Learn reliabilities from what would have been predicted for each emitted token."""
        states = self._start()
        for token in emitted:
            self._reliabilities.learn(_ordered(self._hear(states)), token)
            states = self._follow(states, token)

    def _start(self) -> list[Any]:
        return [predictor.start() for predictor in self._predictors]

    def _follow(self, states: Sequence[Any], token: int) -> list[Any]:
        return [
            predictor.follow(state, token)
            for predictor, state in zip(self._predictors, states, strict=True)
        ]

    def _hear(self, states: Sequence[Any]) -> list[list[Evidence]]:
        return [
            predictor.evidence(state)
            for predictor, state in zip(self._predictors, states, strict=True)
        ]


def _ordered(heard: Sequence[list[Evidence]]) -> list[Evidence]:
    """The evidence of all predictors, most specific first."""
    if len(heard) == 1:
        return heard[0]
    return sorted((one for evidence in heard for one in evidence), key=_negative_order)


def _negative_order(one: Evidence) -> float:
    return -one.order


def _candidates(estimates: Mapping[int, float], vocab_size: int) -> Candidates:
    """Estimates as candidates, best first."""
    ranked = sorted(
        (
            (-estimate, token)
            for token, estimate in estimates.items()
            if estimate > 0 and token < vocab_size
        )
    )
    return Candidates(
        [token for _, token in ranked],
        [math.log(min(-negative, 1.0)) for negative, _ in ranked],
    )
