"""What a checkpoint holds, whatever its format: settings, tensors under our names, a vocabulary."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from treespec.errors import CheckpointError
from treespec.heads.formats.fingerprint import Fingerprint
from treespec.heads.formats.tensors import FLOATS, StoredTensor

_SHOWN = 4


class CheckpointWarning(UserWarning):
    """Heads that can be used, but that may guess badly with this target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a file's tensors become those of our heads.

    Attributes:
        layout: what the format is called.
        family: of the heads.
        settings: keyword arguments of the family's config; what only the target can tell is left
            out, and named in `from_target`.
        names: for each of our names the file's.
        shapes: for each of our names the shape that it must have.
        ignored: names in the file that say nothing about the heads.
        from_target: settings that come from the target.
        vocabulary: the target's id of every column; None for all tokens.
        vocab_size: V, where the file tells.
        shared_lm_head: name of a copy of the target's LM head in the file.
        base_model: name of the target in the file.
        base_architectures: names of its class, where the file tells.
        base_is_tuned: whether the file holds a target that was trained with the heads.
        fingerprint: of the target, where the file has one.
        notes: what a user may want to know about the file.
    """

    layout: str
    family: str
    settings: Mapping[str, Any]
    names: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    ignored: frozenset[str] = frozenset()
    from_target: tuple[str, ...] = ()
    vocabulary: Tensor | None = None
    vocab_size: int | None = None
    shared_lm_head: str | None = None
    base_model: str | None = None
    base_architectures: tuple[str, ...] = ()
    base_is_tuned: bool = False
    fingerprint: Fingerprint | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Heads without their target.

    Attributes:
        place: where they came from.
        recipe: what they are.
        tensors: under our names, all of one data type.
        lm_head: the copy of the target's LM head that came with them.
    """

    place: str
    recipe: Recipe
    tensors: Mapping[str, Tensor] = field(repr=False)
    lm_head: Tensor | None = field(default=None, repr=False)

    @property
    def dtype(self) -> torch.dtype:
        """The data type of the tensors."""
        return next(iter(self.tensors.values())).dtype


def read_tensors(place: str, recipe: Recipe, stored: Mapping[str, StoredTensor]) -> Checkpoint:
    """Check every tensor that a recipe asks for, and read it.

    Raises:
        CheckpointError: naming tensors that are missing, unexpected, of the wrong shape or type,
            or not finite.
    """
    _require_match(place, recipe, stored)
    tensors = {name: stored[theirs].read() for name, theirs in recipe.names.items()}
    _require_finite(place, recipe, tensors)
    sizes: Counter[torch.dtype] = Counter()
    for tensor in tensors.values():
        sizes[tensor.dtype] += tensor.numel()
    dtype = sizes.most_common(1)[0][0]
    shared = recipe.shared_lm_head
    return Checkpoint(
        place=place,
        recipe=recipe,
        tensors={name: tensor.to(dtype) for name, tensor in tensors.items()},
        lm_head=None if shared is None else stored[shared].read(),
    )


def some_of(names: Iterable[str]) -> str:
    """The first few of many names."""
    names = list(names)
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _require_match(place: str, recipe: Recipe, stored: Mapping[str, StoredTensor]) -> None:
    wanted = {theirs: recipe.shapes[name] for name, theirs in recipe.names.items()}
    missing = [name for name in wanted if name not in stored]
    unexpected = [name for name in stored if name not in wanted and name not in recipe.ignored]
    found = {name: stored[name] for name in wanted if name in stored}
    misshaped = [
        f"{name} is {list(tensor.shape)}, not {list(wanted[name])}"
        for name, tensor in found.items()
        if tensor.shape != wanted[name]
    ]
    mistyped = [
        f"{name} is {tensor.dtype}" for name, tensor in found.items() if tensor.dtype not in FLOATS
    ]
    faults = [
        _fault(len(missing), "missing", missing),
        _fault(len(unexpected), "unexpected", unexpected),
        _fault(len(misshaped), "of the wrong shape", misshaped),
        _fault(len(mistyped), "not floating point", mistyped),
    ]
    if any(faults):
        raise CheckpointError(
            f"{place} looks like {recipe.layout}, but "
            f"{'; '.join(fault for fault in faults if fault)}. Shapes follow from config.json and "
            "the other tensors; check that both are of one download"
        )


def _fault(count: int, what: str, names: Sequence[str]) -> str:
    if not count:
        return ""
    return f"{count} {'tensor is' if count == 1 else 'tensors are'} {what}: {some_of(names)}"


def _require_finite(place: str, recipe: Recipe, tensors: Mapping[str, Tensor]) -> None:
    broken = [recipe.names[name] for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if broken:
        raise CheckpointError(
            f"{place} holds numbers that are not finite, in {some_of(broken)}: the training that "
            "wrote it diverged, or the file is damaged"
        )
