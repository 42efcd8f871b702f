"""What a generation did, row by row: counts, and rates computed from them."""

import math
from dataclasses import dataclass

from treespec.errors import ConfigError

FINISH_REASONS = ("eos", "stop", "length", "context", "time")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStats:
    """Counts of one row's generation.

    Attributes:
        steps: verification passes of the target; prefill is none.
        emitted: new tokens returned.
        drafted: draft tokens verified.
        accepted: draft tokens among those returned.
        accepted_by_depth: entry d - 1 is the number of steps that returned at least d draft tokens.
        empty_drafts: steps in which a draft was asked for and none came.
        finish_reason: why the row ended, one of `FINISH_REASONS`.
    """

    steps: int
    emitted: int
    drafted: int
    accepted: int
    accepted_by_depth: tuple[int, ...]
    finish_reason: str
    empty_drafts: int = 0

    def __post_init__(self) -> None:
        if self.finish_reason not in FINISH_REASONS:
            raise ConfigError(
                f"finish_reason is {self.finish_reason!r}; it must be one of "
                f"{', '.join(FINISH_REASONS)}"
            )

    @property
    def acceptance_length(self) -> float:
        """Tokens emitted per verification pass, the next token included; NaN without steps.

        The first token comes from prefill and does not count, so plain decoding gives exactly 1.
        """
        return (self.emitted - 1) / self.steps if self.steps else math.nan

    @property
    def acceptance_rate(self) -> float:
        """Share of draft tokens that were accepted; NaN if none was drafted."""
        return self.accepted / self.drafted if self.drafted else math.nan
