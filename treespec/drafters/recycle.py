"""Recycling the target's own earlier guesses (after Token Recycling, Luo et al. 2024).

The target says at every position what it thinks likely, also after tokens that it then rejects.
These guesses are remembered under patterns of the tokens before them: the last token, the last two,
and the last but one whatever came after it. The last pattern helps most where the text is new: the
token that was chosen may never have occurred before, but what followed its rejected rivals in the
same place is known, and often the same follows.
"""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

from treespec.drafters.base import Round
from treespec.drafters.evidence import Evidence
from treespec.drafters.opinions import Opinion
from treespec.drafters.predicting import PredictingDrafter
from treespec.errors import ConfigError

_ANY = -1  # in a key: whatever token stands here
_NONE = -2  # in a context: there is no token, the text begins later
_NO_CONTEXT = (_NONE, _NONE)

# The last but one and the last token of a context, or a pattern of them with `_ANY`.
_Pair = tuple[int, int]


class _Pattern(NamedTuple):
    """One way to remember a guess.

    Attributes:
        keeps_first: whether the last but one token belongs to the key.
        keeps_second: whether the last token does.
        order: how specific evidence from it is, on the scale of match lengths.
        renewal: how much of what is known a new guess replaces.
        kind: kind of its evidence.
        prompt_kind: kind of its evidence where only ranks are known.
    """

    keeps_first: bool
    keeps_second: bool
    order: float
    renewal: float
    kind: str
    prompt_kind: str

    def key(self, context: _Pair) -> _Pair:
        """What a guess after `context` is remembered under."""
        first, second = context
        return (first if self.keeps_first else _ANY, second if self.keeps_second else _ANY)


# Most specific first. Orders, renewals and priors were measured by replaying recorded answers of a
# 1.5B model to prompts about code, mathematics, questions, summaries and conversation.
_PATTERNS = (
    _Pattern(True, True, 2.5, 0.6, "guessed after 2 tokens", "ranked after 2 tokens"),
    _Pattern(True, False, 1.6, 0.4, "guessed beside", "ranked beside"),
    _Pattern(False, True, 1.5, 0.4, "guessed after 1 token", "ranked after 1 token"),
)
_ANYWHERE = "guessed anywhere"
_PRIORS = {
    "guessed after 2 tokens": 0.57,
    "ranked after 2 tokens": 0.4,
    "guessed beside": 0.25,
    "ranked beside": 0.16,
    "guessed after 1 token": 0.68,
    "ranked after 1 token": 0.46,
    _ANYWHERE: 0.43,
}
# After prefill only the order of the most probable tokens is known; this is what it is worth.
_PROBS_BY_RANK = (0.5, 0.14, 0.08, 0.05, 0.035, 0.03, 0.025, 0.02)
# What a guess with probabilities replaces of what is known by ranks.
_RENEWAL_OF_RANKS = 0.9
# Successors remembered for a key.
_MOST_SUCCESSORS = 12
# An opinion whose best token is less probable than this prefers nothing and is not remembered.
_LEAST_PROB = 1e-2


class Guess(NamedTuple):
    """Probable successors, best first; `is_exact` if their probabilities are known."""

    tokens: Sequence[int]
    probs: Sequence[float]
    is_exact: bool


class RecycleTable:
    """What the target guessed after which tokens; it can outlive a generation.

    Hand the same table to one `RecycleDrafter` after another, and each starts with what the target
    has guessed before. It belongs to one target, and to one thread at a time.

    Args:
        capacity: most keys to remember; those not renewed for longest are dropped.

    Raises:
        ConfigError: if the capacity is below 1.
    """

    def __init__(self, *, capacity: int = 100_000) -> None:
        """Start empty."""
        if capacity < 1:
            raise ConfigError(f"capacity must be at least 1, got {capacity!r}")
        self.capacity = capacity
        self._guesses: dict[_Pair, Guess] = {}
        self._tally = _Tally()

    def __len__(self) -> int:
        """Number of keys remembered."""
        return len(self._guesses)

    def remember(self, context: _Pair, guess: Guess) -> None:
        """Mix a guess into what is known after a context."""
        guesses = self._guesses
        for pattern in _PATTERNS:
            key = pattern.key(context)
            known = guesses.pop(key, None)  # put back at the end, where it is dropped last
            guesses[key] = guess if known is None else _mixed(known, guess, pattern.renewal)
        if len(guesses) > self.capacity:
            surplus = len(guesses) - self.capacity + self.capacity // 8
            for key in list(guesses)[:surplus]:
                del guesses[key]

    def count(self, guess: Guess) -> None:
        """Note a guess made on the emitted text, wherever it was."""
        self._tally.add(guess)

    def refresh(self) -> None:
        """Bring what `evidence` says of guesses made anywhere up to date."""
        self._tally.rank()

    def evidence(self, context: _Pair) -> list[Evidence]:
        """Guesses after the end of a context, most specific first."""
        found = []
        for pattern in _PATTERNS:
            guess = self._guesses.get(pattern.key(context))
            if guess is not None:
                kind = pattern.kind if guess.is_exact else pattern.prompt_kind
                found.append(Evidence(kind, pattern.order, guess.tokens, guess.probs))
        if self._tally.tokens:
            found.append(Evidence(_ANYWHERE, 0.0, self._tally.tokens, self._tally.weights))
        return found


def _mixed(known: Guess, new: Guess, renewal: float) -> Guess:
    """What is known, with a share of it replaced by a new guess."""
    if new.is_exact and not known.is_exact:
        renewal = _RENEWAL_OF_RANKS
    kept = 1.0 - renewal
    mass = {token: prob * kept for token, prob in zip(known.tokens, known.probs, strict=True)}
    for token, prob in zip(new.tokens, new.probs, strict=True):
        mass[token] = mass.get(token, 0.0) + prob * renewal
    ranked = sorted(mass.items(), key=_by_mass, reverse=True)[:_MOST_SUCCESSORS]
    return Guess(
        [token for token, _ in ranked],
        [prob for _, prob in ranked],
        known.is_exact or new.is_exact,
    )


def _by_mass(item: tuple[int, float]) -> float:
    return item[1]


class _Tally:
    """How much probability the target gave to each token lately, wherever it was."""

    _GROWTH = 1.02  # of the weight of newer guesses: some fifty positions are remembered well
    _LARGEST_UNIT = 1e12
    _RANKED = 64
    _KEPT = 512

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.weights: list[float] = []
        self._mass: dict[int, float] = {}
        self._unit = 1.0

    def add(self, guess: Guess) -> None:
        """Count one guess."""
        self._unit *= self._GROWTH
        for token, prob in zip(guess.tokens, guess.probs, strict=True):
            self._mass[token] = self._mass.get(token, 0.0) + prob * self._unit
        if self._unit > self._LARGEST_UNIT:
            self._shrink()

    def rank(self) -> None:
        """Renew `tokens` and `weights`."""
        if len(self._mass) > 2 * self._KEPT:
            self._shrink()
        ranked = sorted(self._mass.items(), key=_by_mass, reverse=True)[: self._RANKED]
        total = sum(self._mass.values())
        self.tokens = [token for token, _ in ranked]
        self.weights = [mass / total for _, mass in ranked]

    def _shrink(self) -> None:
        """Keep the heaviest tokens, and bring their numbers back to a usual size."""
        kept = sorted(self._mass.items(), key=_by_mass, reverse=True)[: self._KEPT]
        self._mass = {token: mass / self._unit for token, mass in kept}
        self._unit = 1.0


class RecycleDrafter(PredictingDrafter):
    """Drafts what the target itself has guessed before in like places.

    It learns from the guesses made while reading the prompt, and from those after every verified
    node, rejected ones too. It needs no model and no training.

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
        """Keep the prompt until the guesses in it are known."""
        self._prompt = prompt
        self._end = _NO_CONTEXT
        self._table = table
        for token in prompt[-2:]:
            self.append(token)

    def start(self) -> _Pair:
        """See `Predictor.start`."""
        return self._end

    def follow(self, state: _Pair, token: int) -> _Pair:
        """See `Predictor.follow`."""
        return (state[1], token)

    def evidence(self, state: _Pair) -> list[Evidence]:
        """See `Predictor.evidence`."""
        return self._table.evidence(state)

    def absorb(self, one: Round, opinions: Sequence[Opinion]) -> None:
        """See `Predictor.absorb`."""
        contexts = [self._end]
        if one.tree is None:
            self._absorb_prompt(one)
            emitted: Sequence[int] = (0,)
        else:
            for parent, token in zip(
                one.tree.topology.parent_list[1:], one.tree.token_list[1:], strict=True
            ):
                contexts.append((contexts[parent][1], token))
            emitted = one.acceptance.path
        guesses = [Guess(opinion.tokens, opinion.probs, is_exact=True) for opinion in opinions]
        # Those on the emitted text are the surest, and come last so that they count most.
        rejected = sorted(set(range(len(guesses))) - set(emitted))
        for node in (*rejected, *emitted[: len(guesses)]):
            if guesses[node].probs[0] >= _LEAST_PROB:
                self._table.remember(contexts[node], guesses[node])
        for node in emitted[: len(guesses)]:
            self._table.count(guesses[node])
        self._table.refresh()

    def append(self, token: int) -> None:
        """See `Predictor.append`."""
        self._end = (self._end[1], token)

    def _absorb_prompt(self, one: Round) -> None:
        """Remember the guesses after the prompt's tokens, of which its beginning may lack some."""
        if one.output.top_ids is not None:
            guesses: list[list[int]] = one.output.top_ids.tolist()
            unseen = len(self._prompt) - len(guesses)
            previous = self._prompt[unseen - 1] if unseen else _NONE
            for token, tokens in zip(self._prompt[unseen:], guesses, strict=True):
                guess = Guess(tokens, _PROBS_BY_RANK[: len(tokens)], is_exact=False)
                self._table.remember((previous, token), guess)
                self._table.count(guess)
                previous = token
        self._prompt = ()
