"""One text to learn from, and what is known of a folder of them."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from treespec.errors import CheckpointError, DataError
from treespec.heads.formats.fingerprint import Fingerprint

FORMAT = 1

_TURN = re.compile(r"/turn-\d+$")


@dataclass(frozen=True, slots=True)
class Example:
    """One text to learn from.

    Attributes:
        id: unique in its folder.
        category: what kind of text it is, if known.
        tokens: its L tokens, int64, on the CPU.
        supervised: which of them the target wrote, end tokens included; only they are labels.
    """

    id: str
    category: str | None
    tokens: Int[Tensor, " L"]
    supervised: Bool[Tensor, " L"]

    @property
    def conversation(self) -> str:
        """Id of the conversation; a chat whose turns cannot share a text gives several examples."""
        return _TURN.sub("", self.id)

    @property
    def num_supervised(self) -> int:
        """How many tokens are labels."""
        return int(self.supervised.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class DataMeta:
    """Whose the data are, and how they came about.

    Attributes:
        target: what the target is called.
        fingerprint: the target's and its tokenizer's.
        vocab_size: number of the target's logits; every token is below it.
        chat_template_sha256: of the template that the chats were written with; None without one.
        taps: indices of `hidden_states` that were stored; None if none were.
        hidden_dtype: type that they are stored in, such as "bfloat16"; None if none were.
        options: what `distill` was asked for.
    """

    target: str
    fingerprint: Fingerprint
    vocab_size: int
    chat_template_sha256: str | None
    taps: tuple[int, ...] | None
    hidden_dtype: str | None
    options: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """For `data.json`."""
        values = asdict(self)
        values["fingerprint"] = self.fingerprint.as_dict()
        return {"format": FORMAT, **values, "taps": None if self.taps is None else list(self.taps)}

    @classmethod
    def from_dict(cls, values: object) -> "DataMeta":
        """What `as_dict` gave.

        Raises:
            DataError: if it is anything else.
        """
        names = {one.name for one in fields(cls)}
        if not isinstance(values, Mapping) or values.get("format") != FORMAT:
            raise DataError(f"data.json is not of format {FORMAT}; distil the data anew")
        if missing := sorted(names - set(values)):
            raise DataError(f"data.json lacks {', '.join(missing)}; distil the data anew")
        given = {name: values[name] for name in names}
        taps = given["taps"]
        try:
            given["fingerprint"] = Fingerprint.from_dict(given["fingerprint"])
            given["taps"] = None if taps is None else tuple(int(tap) for tap in taps)
            given["vocab_size"] = int(given["vocab_size"])
        except (CheckpointError, TypeError, ValueError) as error:
            raise DataError(f"data.json is damaged: {error}") from error
        return cls(**given)


def digest_of(name: str, tokens: Sequence[int], fingerprint: Fingerprint) -> str:
    """What ties stored hidden states to the tokens and the target that they are of."""
    content = json.dumps([name, list(tokens), fingerprint.as_dict()], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def example_of(values: Mapping[str, Any], vocab_size: int) -> Example:
    """An example from its line of `examples.jsonl`.

    Raises:
        KeyError: if a field is missing.
        ValueError: if a field cannot be right.
        TypeError: if it is of another type.
    """
    try:
        tokens = torch.tensor(values["tokens"], dtype=torch.int64)
    except RuntimeError as error:  # numbers that do not fit
        raise ValueError(str(error)) from error
    if tokens.ndim != 1 or not len(tokens):
        raise ValueError("tokens must be a list of at least one id")
    if int(tokens.min()) < 0 or int(tokens.max()) >= vocab_size:
        raise ValueError(f"tokens must be in [0, {vocab_size}), the target's vocabulary")
    supervised = torch.zeros(len(tokens), dtype=torch.bool)
    end_before = 0
    for start, end in values["supervised"]:
        if not end_before <= start < end <= len(tokens):
            raise ValueError(f"the supervised span [{start}, {end}) is empty or out of order")
        supervised[start:end] = True
        end_before = end
    category = values.get("category")
    return Example(
        str(values["id"]), None if category is None else str(category), tokens, supervised
    )
