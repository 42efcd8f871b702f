"""Looking continuations up in the text itself: n-gram matching with branches."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from treespec.drafters.base import Round
from treespec.drafters.evidence import Evidence
from treespec.drafters.ngrams import (
    LONGEST_MATCH,
    SEPARATOR,
    SIZES,
    Context,
    FrozenNgrams,
    GrowingNgrams,
    Matches,
)
from treespec.drafters.opinions import Opinion
from treespec.drafters.predicting import PredictingDrafter
from treespec.errors import ConfigError

# Occurrences looked at per context and text.
_MOST_PLACES = 16
# A context that grew by one token has inherited its longer matches; only n-grams of these many
# shortest sizes can occur where its parent's context did not.
_SIZES_AFTER_ROOT = 3
# Matches up to each of these lengths count as equally reliable, longer ones as the last kind.
_LONGEST_OF_KIND = (1, 2, 3, 4, 6, 9, 16, 32)
_OVER_LONGEST = 64
# How the occurrences with such a match agree about the next token.
_AGREEMENTS = ("one", "agreeing", "differing")

_Kinds = tuple[tuple[str, ...], ...]


def _kinds(where: str) -> _Kinds:
    """Names of the kinds of evidence from one source, by match and agreement."""
    names = (*(f"up to {length}" for length in _LONGEST_OF_KIND), "longer")
    return tuple(
        tuple(f"{where}, match {name}, {agreement}" for agreement in _AGREEMENTS) for name in names
    )


_TEXT_KINDS = _kinds("text")
_CORPUS_KINDS = _kinds("corpus")
# How often a match of each kind continues, measured on recorded answers of a 1.5B code model to
# prompts about code, mathematics, question answering, summaries and conversation.
_MEASURED = (
    (0.34, 0.22, 0.30),
    (0.45, 0.40, 0.30),
    (0.53, 0.45, 0.43),
    (0.74, 0.75, 0.65),
    (0.81, 0.80, 0.60),
    (0.92, 0.95, 0.80),
    (0.97, 0.90, 0.88),
    (0.965, 0.93, 0.90),
    (0.983, 0.98, 0.92),
)
_LONGEST_KIND = len(_LONGEST_OF_KIND)
_ORDERS = (*_LONGEST_OF_KIND, _OVER_LONGEST)
_ALL = (1.0,)
_WEIGHT_BY_RANK = tuple(rank**-0.5 for rank in range(1, _MOST_PLACES + 1))
_KIND_OF_MATCH = tuple(
    next((kind for kind, longest in enumerate(_LONGEST_OF_KIND) if match <= longest), _LONGEST_KIND)
    for match in range(_OVER_LONGEST)
)


class LookupDrafter(PredictingDrafter):
    """Continues the text as it, or an earlier text, went on after the same words.

    The longest matches with the end of the text speak first; places that continue differently
    become branches.

    Args:
        corpus: earlier texts to look in as well, each a sequence or tensor of token ids. They are
            indexed once and shared by all generations.

    Raises:
        ConfigError: if a text is not a flat sequence of token ids.
    """

    wants_opinions = False

    def __init__(self, *, corpus: Sequence[Sequence[int] | Int[Tensor, " L"]] = ()) -> None:
        """Index the corpus."""
        texts = [_checked_text(index, text) for index, text in enumerate(corpus)]
        self._corpus = FrozenNgrams(texts) if texts else None
        kinds = (_TEXT_KINDS, _CORPUS_KINDS) if texts else (_TEXT_KINDS,)
        self.priors: Mapping[str, float] = {
            name: prior
            for source in kinds
            for names, priors in zip(source, _MEASURED, strict=True)
            for name, prior in zip(names, priors, strict=True)
        }

    def predictor(self, prompt: Int[Tensor, " L"]) -> "LookupPredictor":
        """See `PredictingDrafter.predictor`."""
        return LookupPredictor(prompt.tolist(), self._corpus)


def _checked_text(index: int, text: Sequence[int] | Int[Tensor, " L"]) -> list[int]:
    """A corpus text as plain ids."""
    ids = text.tolist() if isinstance(text, torch.Tensor) else list(text)
    if not all(isinstance(token, int) and token >= 0 for token in ids):
        raise ConfigError(
            f"corpus[{index}] must be a flat sequence of token ids, all at least 0; encode each "
            "text with the target's tokenizer"
        )
    return ids


class _Place(NamedTuple):
    """A context, and where its end occurred in each text."""

    context: Context
    matches: tuple[Matches, ...]


class LookupPredictor:
    """Looks up one row's text.

    Args:
        prompt: the row's prompt.
        corpus: texts that all rows share, or None.
    """

    def __init__(self, prompt: Sequence[int], corpus: FrozenNgrams | None) -> None:
        """Index the prompt."""
        self._text = GrowingNgrams(prompt)
        self._sources: tuple[tuple[GrowingNgrams | FrozenNgrams, _Kinds], ...] = (
            (self._text, _TEXT_KINDS),
            *(((corpus, _CORPUS_KINDS),) if corpus is not None else ()),
        )

    def start(self) -> _Place:
        """See `Predictor.start`."""
        context = tuple(self._text.tokens[-LONGEST_MATCH:])
        matches: list[Matches] = []
        for source, _ in self._sources:
            found: Matches = {}
            source.find(context, found, most=_MOST_PLACES, sizes=len(SIZES))
            matches.append(found)
        return _Place(context, tuple(matches))

    def follow(self, state: _Place, token: int) -> _Place:
        """See `Predictor.follow`."""
        context = (*state.context, token)[-LONGEST_MATCH:]
        matches = []
        for (source, _), found in zip(self._sources, state.matches, strict=True):
            tokens = source.tokens
            end = len(tokens) - 1
            longer = {
                place + 1: match + 1
                for place, match in found.items()
                if place < end and tokens[place] == token and tokens[place + 1] != SEPARATOR
            }
            source.find(context, longer, most=_MOST_PLACES, sizes=_SIZES_AFTER_ROOT)
            matches.append(longer)
        return _Place(context, tuple(matches))

    def evidence(self, state: _Place) -> list[Evidence]:
        """See `Predictor.evidence`."""
        found = [
            one
            for (source, kinds), matches in zip(self._sources, state.matches, strict=True)
            for one in _evidence(source.tokens, kinds, matches)
        ]
        if len(self._sources) > 1:
            found.sort(key=lambda one: -one.order)
        return found

    def absorb(self, one: Round, opinions: Sequence[Opinion]) -> None:
        """Nothing but the emitted tokens matters here."""

    def append(self, token: int) -> None:
        """See `Predictor.append`."""
        self._text.append(token)


def _evidence(tokens: Sequence[int], kinds: _Kinds, matches: Matches) -> list[Evidence]:
    """One piece of evidence per kind of match, longest first; later places weigh more."""
    by_kind: dict[int, list[int]] = {}
    for place, match in matches.items():
        kind = _KIND_OF_MATCH[match] if match < _OVER_LONGEST else _LONGEST_KIND
        by_kind.setdefault(kind, []).append(place)
    found = []
    for kind in sorted(by_kind, reverse=True):
        places = by_kind[kind]
        if len(places) == 1:
            named: Sequence[int] = (tokens[places[0]],)
            weights: Sequence[float] = _ALL
            agreement = 0
        else:
            named, weights = _weighted(tokens, sorted(places, reverse=True))
            agreement = 1 if len(named) == 1 else 2
        found.append(Evidence(kinds[kind][agreement], _ORDERS[kind], named, weights))
    return found


def _weighted(tokens: Sequence[int], places: Sequence[int]) -> tuple[list[int], list[float]]:
    """What follows at places, latest first, and the share of each token."""
    mass: dict[int, float] = {}
    for place, weight in zip(places, _WEIGHT_BY_RANK, strict=False):
        token = tokens[place]
        mass[token] = mass.get(token, 0.0) + weight
    ranked = sorted(mass.items(), key=_by_mass, reverse=True)
    total = sum(mass.values())
    return [token for token, _ in ranked], [weight / total for _, weight in ranked]


def _by_mass(item: tuple[int, float]) -> float:
    return item[1]
