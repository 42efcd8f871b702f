"""A folder of training data: texts whose answers the target wrote, and which tokens are its own.

`data.json` says whose the data are, `examples.jsonl` has an example a line, and, if hidden states
were asked for, `hidden.json` names the safetensors shard that holds those of each example.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from treespec.errors import ConfigError, DataError
from treespec.heads.formats.fingerprint import Fingerprint
from treespec.training.examples import DataMeta, Example, digest_of, example_of

__all__ = [
    "EXAMPLES_FILE",
    "HIDDEN_FILE",
    "META_FILE",
    "DataFolder",
    "DataMeta",
    "Example",
    "check_labels",
    "open_data",
    "split",
]

META_FILE = "data.json"
EXAMPLES_FILE = "examples.jsonl"
HIDDEN_FILE = "hidden.json"


class DataFolder:
    """Training data on disk; the tokens are in memory, hidden states are read when asked for.

    Args:
        path: the folder.
        meta: its `data.json`.
        examples: its `examples.jsonl`.
        shards: file name of the shard of each example with hidden states.
    """

    def __init__(
        self,
        path: Path,
        meta: DataMeta,
        examples: Sequence[Example],
        shards: Mapping[str, str],
    ) -> None:
        self.path = path
        self.meta = meta
        self.examples = examples
        self._shards = shards

    @cached_property
    def num_supervised(self) -> int:
        """Tokens that are labels, in all examples together."""
        return sum(example.num_supervised for example in self.examples)

    def hidden(self, example: Example) -> Float[Tensor, "L F"] | None:
        """The target's hidden states at every token, taps side by side; None if not stored.

        The last token of an answer was never run through the target, so the last row is zeros
        there; no label depends on it.

        Raises:
            DataError: if the shard is damaged, or belongs to other tokens or another target.
        """
        if self.meta.taps is None:
            return None
        if example.id not in self._shards:
            raise DataError(
                f"{self.path / HIDDEN_FILE} names no shard for {example.id!r}; distil anew with "
                "--taps, or train without stored hidden states"
            )
        shard = self.path / self._shards[example.id]
        try:
            with safe_open(shard, framework="pt") as opened:
                digest = (opened.metadata() or {}).get(example.id)
                states: Tensor = opened.get_tensor(example.id)
        except (OSError, SafetensorError) as error:
            raise DataError(f"{shard} cannot be read: {error}; distil anew") from error
        wanted = digest_of(example.id, example.tokens.tolist(), self.meta.fingerprint)
        if digest != wanted or states.shape[0] != example.tokens.shape[0]:
            raise DataError(
                f"{shard} holds hidden states of other tokens or of another target for "
                f"{example.id!r}; distil anew"
            )
        return states

    def require_target(
        self, target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None
    ) -> None:
        """Check that the data are this target's own.

        Raises:
            DataError: if another model wrote them, naming the differences.
        """
        found = Fingerprint.of(target, tokenizer)
        differences = self.meta.fingerprint.contradictions(found)
        if not differences and self.meta.fingerprint.has_other_weights(found):
            differences = ["other weights"]
        if differences:
            raise DataError(
                f"the data in {self.path} were written by {self.meta.target}, but this target has "
                f"{', '.join(differences)}; distil data with the target that the heads are for"
            )


def open_data(path: str | Path) -> DataFolder:
    """Training data that `treespec distill` wrote.

    Raises:
        DataError: if the folder is none, empty or damaged, naming file and line; if most of its
            examples have no supervised token.
    """
    folder = Path(path).expanduser()
    meta = read_meta(folder)
    examples = list(read_examples(folder, meta.vocab_size))
    if not examples:
        raise DataError(f"{folder} has no examples; run `treespec distill` with prompts first")
    check_labels([example.num_supervised for example in examples])
    return DataFolder(folder, meta, examples, read_shards(folder))


def read_meta(folder: Path) -> DataMeta:
    """The folder's `data.json`.

    Raises:
        DataError: if it is missing or damaged.
    """
    if not (folder / META_FILE).is_file():
        raise DataError(
            f"{folder} has no {META_FILE}, so it is no folder of training data; make one with "
            "`treespec distill`"
        )
    try:
        return DataMeta.from_dict(_read_json(folder / META_FILE))
    except DataError as error:
        raise DataError(f"{folder}: {error}") from error


def read_examples(folder: Path, vocab_size: int) -> Iterator[Example]:
    """The folder's examples; a last line that was cut off while it was written is left out.

    Raises:
        DataError: if a line is damaged or an id comes twice, naming file and line.
    """
    path = folder / EXAMPLES_FILE
    if not path.is_file():
        return
    seen: set[str] = set()
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith("\n") and not _is_json(line):
                return
            try:
                example = example_of(json.loads(line), vocab_size)
            except (ValueError, TypeError, KeyError) as error:
                reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
                raise DataError(
                    f"{path}, line {number}: {reason}; remove the line or distil anew"
                ) from error
            if example.id in seen:
                raise DataError(f"{path}, line {number}: the id {example.id!r} comes twice")
            seen.add(example.id)
            yield example


def read_shards(folder: Path) -> dict[str, str]:
    """The folder's `hidden.json`: the shard of each example; empty if there are none.

    Raises:
        DataError: if it is damaged.
    """
    if not (folder / HIDDEN_FILE).is_file():
        return {}
    values = _read_json(folder / HIDDEN_FILE)
    if not isinstance(values, dict) or not all(isinstance(one, str) for one in values.values()):
        raise DataError(f"{folder / HIDDEN_FILE} is damaged: it must name a file for every id")
    return values


def split(
    examples: Sequence[Example], held_out: int, seed: int = 0
) -> tuple[list[Example], list[Example]]:
    """Examples to train on, and at least `held_out` others to measure on.

    Who is held out depends on ids and seed, not on the order; a conversation is never torn apart.

    Raises:
        ConfigError: if nothing would be left to train on.
    """
    if not 0 <= held_out < len(examples):
        raise ConfigError(
            f"held_out must be in [0, {len(examples) - 1}] for {len(examples)} examples, "
            f"got {held_out}"
        )
    ranks = {one.id: _rank(one.conversation, seed) for one in examples}
    aside = {ranks[one.id] for one in sorted(examples, key=lambda one: ranks[one.id])[:held_out]}
    train = [one for one in examples if ranks[one.id] not in aside]
    if not train:
        raise ConfigError(
            f"held_out={held_out} leaves nothing to train on: the {len(examples)} examples are of "
            f"{len(aside)} conversations; hold fewer out"
        )
    return train, [one for one in examples if ranks[one.id] in aside]


def _rank(conversation: str, seed: int) -> str:
    return hashlib.sha256(f"{seed}:{conversation}".encode()).hexdigest()


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def check_labels(counts: Sequence[int]) -> None:
    """See that most examples have something to learn from.

    Args:
        counts: supervised tokens of each example.

    Raises:
        DataError: if more than half have none.
    """
    empty = sum(count == 0 for count in counts)
    if 2 * empty > len(counts):
        raise DataError(
            f"{empty} of {len(counts)} examples have no token of the assistant, so next to nothing "
            "would be learnt; look at one with --show-mask: the answers are empty, or the chat "
            "template does not mark them"
        )
