"""Where n-grams of a text occurred: the indices behind looking continuations up.

A *place* is the index of the token that follows an occurrence; its *match* is how many tokens
before it agree with the end of the context that is looked up. If one token differs, those before it
count as well, provided that enough of them agree.
"""

from array import array
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt64

# Lengths of the n-grams that are indexed. Matches between them are found by the shorter one and
# measured by comparing backwards.
SIZES = (1, 2, 3, 4, 6, 9, 14, 22, 32)
# Matches are not measured beyond this, and contexts need not be longer.
LONGEST_MATCH = 48
# Tokens that must agree beyond one that differs for the match to reach beyond it.
RESUMED_MATCH = 8

# Stands between the texts of a corpus; no context holds it.
SEPARATOR = -1

_MULTIPLIER = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1

Context = tuple[int, ...]
Matches = dict[int, int]


class GrowingNgrams:
    """A text that grows by tokens, at a cost that does not depend on its length.

    Attributes:
        tokens: the text so far.
    """

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        """Index a text to begin with."""
        self.tokens: list[int] = []
        self._places: tuple[dict[Context, list[int]], ...] = tuple({} for _ in SIZES)
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Let the text grow by one token."""
        self.tokens.append(token)
        end = len(self.tokens)
        longest = tuple(self.tokens[-SIZES[-1] :])
        for size, places in zip(SIZES, self._places, strict=True):
            if size > end:
                break
            places.setdefault(longest[-size:], []).append(end)

    def find(self, context: Context, found: Matches, *, most: int, sizes: int) -> None:
        """Add places where the end of `context` occurred, longest n-grams and latest places first.

        Args:
            context: what to look up.
            found: the match of each place; extended in place until it holds `most`.
            most: most places to hold.
            sizes: how many of the `SIZES` to look up, shortest first.
        """
        end = len(self.tokens)
        for level in range(sizes - 1, -1, -1):
            size = SIZES[level]
            for place in reversed(self._places[level].get(context[-size:], ())):
                if len(found) >= most:
                    return
                if place < end and place not in found:
                    found[place] = _match(self.tokens, place, context, size)


class FrozenNgrams:
    """Texts that stay as they are, indexed by sorted hashes.

    Args:
        texts: the token ids of each text; no n-gram crosses from one into the next.

    Attributes:
        tokens: all texts, a separator after each.
    """

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        """Hash and sort every n-gram of every indexed size."""
        parts = [np.append(np.asarray(text, dtype=np.int64), SEPARATOR) for text in texts]
        joined = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        self.tokens: Sequence[int] = array("q", joined.tobytes())
        self._hashes: list[UInt64[np.ndarray, " G"]] = []
        self._places: list[Int[np.ndarray, " G"]] = []
        for size in SIZES:
            hashes = _hashes_of(joined, size)[:-1]  # nothing follows the last n-gram
            order = np.argsort(hashes, kind="stable")
            self._hashes.append(hashes[order])
            self._places.append(order + size)

    def find(self, context: Context, found: Matches, *, most: int, sizes: int) -> None:
        """See `GrowingNgrams.find`."""
        for level in range(sizes - 1, -1, -1):
            size, hashes = SIZES[level], self._hashes[level]
            if size > len(context) or not len(hashes):
                continue
            wanted = np.uint64(_hash_of(context[-size:]))
            first = int(hashes.searchsorted(wanted, side="left"))
            last = int(hashes.searchsorted(wanted, side="right"))
            # Separators and chance hits are skipped, hence a few places more than can be taken.
            for place in self._places[level][max(first, last - 2 * most) : last][::-1].tolist():
                if len(found) >= most:
                    return
                if place not in found and self.tokens[place] != SEPARATOR:
                    match = _match(self.tokens, place, context, 0)
                    if match >= size:
                        found[place] = match


def _match(tokens: Sequence[int], place: int, context: Context, known: int) -> int:
    """The match before `place`, of which the last `known` tokens need not be compared."""
    reach = len(context) if len(context) < place else place
    match = known
    while match < reach and context[-1 - match] == tokens[place - 1 - match]:
        match += 1
    if match == 0:
        return 0
    # A copy with one word changed goes on as a copy.
    reached = match + 1
    while reached < reach and context[-1 - reached] == tokens[place - 1 - reached]:
        reached += 1
    resumed = reached - match - 1
    return match + resumed if resumed >= RESUMED_MATCH else match


def _hash_of(ngram: Context) -> int:
    value = 0
    for token in ngram:
        value = (value * _MULTIPLIER + token) & _WORD
    return value


def _hashes_of(tokens: Int[np.ndarray, " L"], size: int) -> UInt64[np.ndarray, " G"]:
    """Hash of every n-gram of one size; equals `_hash_of`."""
    count = max(len(tokens) - size + 1, 0)
    words = tokens.astype(np.uint64)
    hashes = np.zeros(count, dtype=np.uint64)
    for offset in range(size):
        hashes *= np.uint64(_MULTIPLIER)
        hashes += words[offset : offset + count]
    return hashes
