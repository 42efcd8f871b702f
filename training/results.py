"""What an evaluation of heads found, in numbers and as JSON."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from treespec.errors import DataError

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthRates:
    """How good the guesses of one depth are, the right tokens before them given.

    Attributes:
        depth: from 1, the level of a tree; depth d guesses the token d places behind a root.
        positions: roots with a token at this depth.
        top1: share of them at which that token was the first guess.
        top2: at which it was among the first two.
        top5: among the first five.
        top10: among the first ten.
        chained: share of right first guesses among the roots at which the first guesses of all
            depths before were right, as a chain needs it; None if there are none.
        reached: roots at which the tokens of all depths before were in the table, which is what
            the table's row of this depth speaks of.
    """

    depth: int
    positions: int
    top1: float
    top2: float
    top5: float
    top10: float
    chained: float | None
    reached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRates:
    """What trees of one shape gave over all passages.

    Attributes:
        name: of the shape.
        steps: passes of the target, those over prompts left out.
        tokens: tokens that they gave, the first of every answer left out.
        drafted: draft tokens verified.
        accepted_by_depth: entry d - 1 is the number of steps that gave at least d draft tokens.
    """

    name: str
    steps: int
    tokens: int
    drafted: int
    accepted_by_depth: tuple[int, ...]

    @property
    def acceptance_length(self) -> float:
        """Tokens per pass, the target's own included; NaN without a pass."""
        return self.tokens / self.steps if self.steps else math.nan

    @property
    def drafted_per_step(self) -> float:
        """Draft tokens per pass; NaN without a pass."""
        return self.drafted / self.steps if self.steps else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How good heads are on texts that they were not trained on.

    Attributes:
        family: of the heads.
        target: what the target is called; None if it has no name.
        texts: what the texts are called.
        passages: answers among them.
        tokens: tokens of the answers that could be guessed.
        depths: how good the guesses are, by depth.
        table: `table[d][k]` is the share of the `reached` roots of depth d + 1 at which guess
            number k + 1 was right; the best static tree is made from it.
        simulated: what trees give, by walking real ones along the texts.
        decoded: what decoding some of the prompts gave; None if none was decoded.
        decoded_simulated: the simulation of the same shape along the same passages.
    """

    family: str
    target: str | None
    texts: str
    passages: int
    tokens: int
    depths: tuple[DepthRates, ...]
    table: tuple[tuple[float, ...], ...]
    simulated: tuple[TreeRates, ...]
    decoded: TreeRates | None = None
    decoded_simulated: TreeRates | None = None

    @property
    def gap(self) -> float | None:
        """Decoded over simulated acceptance length, minus 1; None if nothing was decoded."""
        if self.decoded is None or self.decoded_simulated is None:
            return None
        return self.decoded.acceptance_length / self.decoded_simulated.acceptance_length - 1

    def acceptance(self) -> dict[str, float]:
        """Acceptance lengths by what they were measured on, as `save_heads` takes them."""
        found = {f"{self.texts}, {one.name}": one.acceptance_length for one in self.simulated}
        if self.decoded is not None:
            name = f"{self.texts}, {self.decoded.name}, decoded"
            found[name] = self.decoded.acceptance_length
        return found

    def to_json(self) -> str:
        """All of it, as text that `from_json` reads."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Evaluation":
        """What `to_json` gave.

        Raises:
            DataError: if it is anything else.
        """
        try:
            values = json.loads(text)
        except ValueError as error:
            raise DataError(f"this is no evaluation: {error}; evaluate the heads anew") from error
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise DataError(f"this is no evaluation of format {FORMAT}; evaluate the heads anew")
        try:
            values["depths"] = tuple(_made(DepthRates, one) for one in values["depths"])
            values["table"] = tuple(tuple(float(one) for one in row) for row in values["table"])
            values["simulated"] = tuple(_rates(one) for one in values["simulated"])
            for name in ("decoded", "decoded_simulated"):
                values[name] = None if values[name] is None else _rates(values[name])
            made: Evaluation = _made(cls, values)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(
                f"the evaluation is damaged: {reason}; evaluate the heads anew"
            ) from error
        return made


def _rates(values: Mapping[str, Any]) -> TreeRates:
    by_depth = tuple(int(one) for one in values["accepted_by_depth"])
    made: TreeRates = _made(TreeRates, {**values, "accepted_by_depth": by_depth})
    return made


def _made(kind: type, values: Mapping[str, Any]) -> Any:
    """A dataclass from exactly its fields."""
    odd = sorted(set(values) ^ {one.name for one in fields(kind)})
    if odd:
        raise ValueError(f"{kind.__name__} has other fields than {', '.join(odd)}")
    return kind(**values)
