"""Recycling the target's own earlier guesses (Token Recycling, Luo et al. 2024)."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

from treespec.drafters.base import Round
from treespec.drafters.evidence import Evidence
from treespec.drafters.opinions import Opinion
from treespec.drafters.predicting import PredictingDrafter
from treespec.errors import ConfigError

# Opinions are remembered for the last one to this many tokens of their context.
_LONGEST_CONTEXT = 2
# After prefill only the order of the most probable tokens is known; this is what it is worth.
_PROBS_BY_RANK = (0.5, 0.14, 0.08, 0.05, 0.035, 0.03, 0.025, 0.02)
# An opinion whose best token is less probable than this prefers nothing and is not remembered.
_LEAST_PROB = 1e-2

_ANYWHERE = "guessed anywhere"
_KINDS = {
    (1, False): "guessed in the prompt after this token",
    (1, True): "guessed after this token",
    (2, False): "guessed in the prompt after these 2 tokens",
    (2, True): "guessed after these 2 tokens",
}
_PRIORS = {
    _ANYWHERE: 0.32,
    _KINDS[1, False]: 0.2,
    _KINDS[1, True]: 0.2,
    _KINDS[2, False]: 0.42,
    _KINDS[2, True]: 0.4,
}


class _Remembered(NamedTuple):
    """What the target guessed in some context, and whether probabilities were known."""

    tokens: Sequence[int]
    probs: Sequence[float]
    is_exact: bool


class RecycleTable:
    """What the target guessed after which tokens; it can outlive a generation.

    Hand the same table to one `RecycleDrafter` after another, and each starts with what the target
    has guessed before. It belongs to one target.

    Args:
        capacity: most contexts to remember; the ones not renewed for longest are dropped.

    Raises:
        ConfigError: if the capacity is below 1.
    """

    def __init__(self, *, capacity: int = 100_000) -> None:
        """Start empty."""
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise ConfigError(f"capacity must be an integer of at least 1, got {capacity!r}")
        self.capacity = capacity
        self._guesses: dict[tuple[int, ...], _Remembered] = {}
        self._tally = _Tally()

    def __len__(self) -> int:
        """Number of contexts remembered."""
        return len(self._guesses)

    def remember(self, context: tuple[int, ...], guess: _Remembered) -> None:
        """Note the latest guess after a context, under its last token and its last tokens."""
        guesses = self._guesses
        for size in range(1, min(len(context), _LONGEST_CONTEXT) + 1):
            key = context[-size:]
            guesses.pop(key, None)  # so that renewed contexts are the last to be dropped
            guesses[key] = guess
        if len(guesses) > self.capacity:
            surplus = max(self.capacity // 8, len(guesses) - self.capacity)
            for key in list(guesses)[:surplus]:
                del guesses[key]

    def count(self, guess: _Remembered) -> None:
        """Note a guess made on the emitted text, wherever it was."""
        self._tally.add(guess.tokens, guess.probs)

    def refresh(self) -> None:
        """Bring what `evidence` says of guesses made anywhere up to date."""
        self._tally.rank()

    def evidence(self, context: tuple[int, ...]) -> list[Evidence]:
        """Guesses after the end of a context, longest first, then guesses made anywhere."""
        found = []
        known = None
        for size in range(_LONGEST_CONTEXT, 0, -1):
            guess = self._guesses.get(context[-size:]) if len(context) >= size else None
            if guess is not None and guess is not known:
                known = guess
                kind = _KINDS[size, guess.is_exact]
                found.append(Evidence(kind, size + 0.5, guess.tokens, guess.probs))
        if self._tally.tokens:
            found.append(Evidence(_ANYWHERE, 0.0, self._tally.tokens, self._tally.weights))
        return found


class _Tally:
    """How much probability the target gave to each token lately, wherever it was."""

    _GROWTH = 1.02  # of the weight of newer guesses: some fifty positions are remembered well
    _LARGEST = 1e12
    _RANKED = 64
    _KEPT = 512

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.weights: list[float] = []
        self._mass: dict[int, float] = {}
        self._unit = 1.0

    def add(self, tokens: Sequence[int], probs: Sequence[float]) -> None:
        """Count one guess."""
        self._unit *= self._GROWTH
        for token, prob in zip(tokens, probs, strict=True):
            self._mass[token] = self._mass.get(token, 0.0) + prob * self._unit
        if self._unit > self._LARGEST or len(self._mass) > 4 * self._KEPT:
            self._shrink()

    def rank(self) -> None:
        """Renew `tokens` and `weights`."""
        if len(self._mass) > self._KEPT:
            self._shrink()
        ranked = sorted(self._mass.items(), key=_negative_mass)[: self._RANKED]
        total = sum(self._mass.values())
        self.tokens = [token for token, _ in ranked]
        self.weights = [mass / total for _, mass in ranked]

    def _shrink(self) -> None:
        """Keep the heaviest tokens, and bring their numbers back to a usual size."""
        kept = sorted(self._mass.items(), key=_negative_mass)[: self._KEPT]
        self._mass = {token: mass / self._unit for token, mass in kept}
        self._unit = 1.0


def _negative_mass(item: tuple[int, float]) -> float:
    return -item[1]


class RecycleDrafter(PredictingDrafter):
    """Drafts what the target itself has guessed before in like places.

    For every token, and every pair of tokens, it remembers the target's latest most probable
    successors: those seen while reading the prompt, and those after every verified node, rejected
    ones too. It needs no model and no training.

    Args:
        table: guesses to start from and to add to, shared by all rows; None starts every row of
            every generation with nothing.
    """

    wants_opinions = True
    priors = _PRIORS

    def __init__(self, *, table: RecycleTable | None = None) -> None:
        """Keep the table."""
        self.table = table

    def predictor(self, prompt: Int[Tensor, " L"]) -> "RecyclePredictor":
        """See `PredictingDrafter.predictor`."""
        table = RecycleTable() if self.table is None else self.table
        return RecyclePredictor(prompt.tolist(), table)


class RecyclePredictor:
    """Guesses for one row.

    Args:
        prompt: the row's prompt.
        table: where guesses are remembered.
    """

    def __init__(self, prompt: Sequence[int], table: RecycleTable) -> None:
        """Keep the prompt until its guesses are known."""
        self._prompt = list(prompt)
        self._end = tuple(prompt[-_LONGEST_CONTEXT:])
        self._table = table

    def start(self) -> tuple[int, ...]:
        """See `Predictor.start`."""
        return self._end

    def follow(self, state: tuple[int, ...], token: int) -> tuple[int, ...]:
        """See `Predictor.follow`."""
        return (*state, token)[-_LONGEST_CONTEXT:]

    def evidence(self, state: tuple[int, ...]) -> list[Evidence]:
        """See `Predictor.evidence`."""
        return self._table.evidence(state)

    def absorb(self, one: Round, opinions: Sequence[Opinion]) -> None:
        """See `Predictor.absorb`."""
        if one.tree is None:
            self._absorb_prompt(one)
            self._remember([self._end], opinions, emitted=(0,))
        else:
            contexts = [self._end]
            for node in range(1, len(one.tree)):
                parent = contexts[one.tree.topology.parent_list[node]]
                contexts.append((*parent, one.tree.token_list[node])[-_LONGEST_CONTEXT:])
            self._remember(contexts, opinions, emitted=one.acceptance.path)
        self._table.refresh()

    def append(self, token: int) -> None:
        """See `Predictor.append`."""
        self._end = (*self._end, token)[-_LONGEST_CONTEXT:]

    def _absorb_prompt(self, one: Round) -> None:
        """Remember the guesses after the prompt's tokens, of which its beginning may lack some."""
        if one.output.top_ids is not None:
            guesses = one.output.top_ids.tolist()
            unseen = len(self._prompt) - len(guesses)
            for place, tokens in enumerate(guesses, start=unseen + 1):
                context = tuple(self._prompt[max(0, place - _LONGEST_CONTEXT) : place])
                guess = _Remembered(tokens, _PROBS_BY_RANK[: len(tokens)], is_exact=False)
                self._table.remember(context, guess)
                self._table.count(guess)
        self._prompt = []

    def _remember(
        self,
        contexts: Sequence[tuple[int, ...]],
        opinions: Sequence[Opinion],
        *,
        emitted: Sequence[int],
    ) -> None:
        """Remember opinions after contexts; those on the emitted text last, as the surest."""
        guesses = [
            _Remembered(opinion.tokens, opinion.probs, is_exact=True) for opinion in opinions
        ]
        on_path = set(emitted)
        for node, guess in enumerate(guesses):
            if node not in on_path and guess.probs[0] >= _LEAST_PROB:
                self._table.remember(contexts[node], guess)
        for node in emitted:
            if node < len(guesses) and guesses[node].probs[0] >= _LEAST_PROB:
                self._table.remember(contexts[node], guesses[node])
                self._table.count(guesses[node])
