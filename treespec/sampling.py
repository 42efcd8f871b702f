"""Noise keyed by (seed, position): what makes sampled decoding a function of the text.

Sampling a token is choosing `argmax(logits / T + G)`, where the Gumbel noise G is a fixed function
of the row's seed, the token's absolute position and its id (docs/math/shared_noise.md). Greedy
decoding is the same with G = 0. The noise is a counter-based hash, so that it is the same on every
device, in every batch and for every tree, and can be evaluated for a few tokens only.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.errors import ConfigError

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_WORD = (1 << 64) - 1
_DRAFT_STREAM = 0xD1B54A32D192ED03


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= _WORD
    return value - (1 << 64) if value >= 1 << 63 else value


def _mix(value: int) -> int:
    """The splitmix64 finaliser (Steele, Lea, Flood 2014) on a plain int."""
    value &= _WORD
    value = ((value ^ (value >> 30)) * _MIX_1) & _WORD
    value = ((value ^ (value >> 27)) * _MIX_2) & _WORD
    return value ^ (value >> 31)


def _mix_(values: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """`_mix` on int64 words, in place; products wrap, and shifts are made logical by masking."""
    values ^= (values >> 30) & ((1 << 34) - 1)
    values *= _signed(_MIX_1)
    values ^= (values >> 27) & ((1 << 37) - 1)
    values *= _signed(_MIX_2)
    values ^= (values >> 31) & ((1 << 33) - 1)
    return values


def row_seed(seed: int, row: int) -> int:
    """Seed of row `row` of a batch that was given one seed; `row_seed(s, 0) == s`."""
    if row == 0:
        return seed
    return _signed(_mix(_mix(seed) + row * _GOLDEN))


def node_seed(seed: int, root_position: int, node: int) -> int:
    """Seed of what a drafter draws at one node of one step, apart from the noise of `gumbel`.

    A rule that samples must not see the noise its candidates were drawn with, and no two nodes or
    steps may share theirs.
    """
    word = _mix(_mix(seed) ^ _DRAFT_STREAM)
    return _signed(_mix(_mix(word + (root_position + 1) * _GOLDEN) + (node + 1) * _GOLDEN))


def gumbel(seed: int, position: int, tokens: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Gumbel(0, 1) noise of chosen tokens at one position, float32, on the device of `tokens`."""
    return _noise(tokens.to(torch.int64) * _signed(_GOLDEN) + _position_key(seed, position))


def gumbel_rows(
    seed: int, positions: Sequence[int], tokens: Int[Tensor, "N K"]
) -> Float[Tensor, "N K"]:
    """`gumbel` of each row of `tokens` at a position of its own."""
    keys = [_position_key(seed, position) for position in positions]
    return _noise(
        tokens.to(torch.int64) * _signed(_GOLDEN)
        + torch.tensor(keys, device=tokens.device)[:, None]
    )


def _position_key(seed: int, position: int) -> int:
    """The word that tells one position of one text from all others."""
    return _signed(_mix(_mix(seed) ^ _mix((position + 1) * _GOLDEN)))


def _noise(words: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Gumbel noise of words that differ by position and token; the words are overwritten.

    The uniform variable is an odd multiple of 2**-53: 52 bits of the hash, and a half, which no
    double rounds to 0 or 1. With a coarser grid tokens rarer than it would get visibly wrong
    probabilities, because their noise must come from its extreme tail.
    """
    _mix_(words)
    uniform = ((words >> 12) & ((1 << 52) - 1)).to(torch.float64)
    uniform.add_(0.5).mul_(2.0**-52)
    return uniform.log_().neg_().log_().neg_().to(torch.float32)


class RowNoise:
    """The noise of one row, remembered for positions that are still ahead.

    Draft and target ask for the same positions, and a position that was reached but not emitted is
    asked for again in the next step, so whole rows are kept until `forget`.

    Args:
        seed: the row's seed, or None for the zero noise of greedy decoding.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self._rows: dict[int, Tensor] = {}

    @property
    def is_zero(self) -> bool:
        """Whether this is the noise of greedy decoding."""
        return self.seed is None

    def row(self, position: int, vocab_size: int, device: torch.device) -> Float[Tensor, " V"]:
        """Noise of every token id below `vocab_size` at `position`; do not write into it."""
        if self.seed is None:
            return torch.zeros(vocab_size, device=device)
        row = self._rows.get(position)
        if row is None or row.shape[0] < vocab_size:
            row = gumbel(self.seed, position, torch.arange(vocab_size, device=device))
            self._rows[position] = row
        return row[:vocab_size]

    def at(self, position: int, tokens: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Noise of chosen tokens at `position`."""
        if self.seed is None:
            return torch.zeros(tokens.shape, device=tokens.device)
        return gumbel(self.seed, position, tokens)

    def at_each(self, positions: Sequence[int], tokens: Int[Tensor, "N K"]) -> Float[Tensor, "N K"]:
        """Noise of chosen tokens, those of row i at `positions[i]`."""
        if self.seed is None:
            return torch.zeros(tokens.shape, device=tokens.device)
        return gumbel_rows(self.seed, positions, tokens)

    def forget(self, before: int) -> None:
        """Drop what is remembered of positions below `before`."""
        for position in [p for p in self._rows if p < before]:
            del self._rows[position]


def row_seeds(seed: int | Sequence[int] | None, rows: int) -> list[int]:
    """One seed per output row from what a caller may pass as `seed`.

    Args:
        seed: an int for the whole batch, one int per row, or None to draw one from torch's global
            generator.
        rows: number of output rows.

    Raises:
        ConfigError: if a sequence has another length than `rows`.
    """
    if seed is None:
        seed = int(torch.randint(0, 2**62, ()).item())
    if isinstance(seed, int):
        return [row_seed(seed, row) for row in range(rows)]
    seeds = [int(value) for value in seed]
    if len(seeds) != rows:
        raise ConfigError(
            f"seed has {len(seeds)} entries, but there are {rows} output rows; give one int per row"
        )
    return seeds
