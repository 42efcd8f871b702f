"""Hidden states of the target that heads read: stored ones, or computed on the way."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from treespec.heads.base import last_tap
from treespec.training.data import DataFolder
from treespec.training.packing import Batch


@dataclass(frozen=True, slots=True)
class Features:
    """The target's hidden states of a batch; of padding they mean nothing.

    Attributes:
        inputs: those that the heads read, side by side in the order of their taps.
        final: those after the final norm, from which the target's own logits are made; None where
            nobody asked.
    """

    inputs: Float[Tensor, "B L F"]
    final: Float[Tensor, "B L H"] | None


class FeatureSource:
    """Where hidden states come from.

    Args:
        target: the model; it is asked without gradient and for one position's logits only.
        taps: indices of its `hidden_states` that the heads read.
        needs_final: whether the final hidden states are wanted too.
        data: stored hidden states are taken from here where it has all that is wanted; None to
            compute everything.
        device: where the heads are.

    Attributes:
        is_stored: whether anything is taken from the folder.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        taps: Sequence[int],
        *,
        needs_final: bool,
        data: DataFolder | None,
        device: torch.device,
    ) -> None:
        self._target = target
        self._taps = tuple(taps)
        self._final = last_tap(target) if needs_final else None
        self._device = device
        wanted = {*self._taps} if self._final is None else {*self._taps, self._final}
        self._wanted = tuple(sorted(wanted))
        stored = () if data is None else data.meta.taps or ()
        self._stored = tuple(stored) if wanted <= set(stored) else ()
        self._data = data if self._stored else None
        parameters = inspect.signature(target.forward).parameters
        self._selects_logits = "logits_to_keep" in parameters

    @property
    def is_stored(self) -> bool:
        """Whether the folder has all hidden states that are wanted."""
        return self._data is not None

    @torch.no_grad()
    def of(self, batch: Batch) -> Features:
        """Hidden states of a batch, float32, on the heads' device."""
        states = self._read(batch)
        if states is None:
            states = self._computed(batch)
        moved = {tap: one.to(self._device, torch.float32) for tap, one in states.items()}
        inputs = torch.cat([moved[tap] for tap in self._taps], dim=-1)
        return Features(inputs, None if self._final is None else moved[self._final])

    def _read(self, batch: Batch) -> dict[int, Tensor] | None:
        """Stored states by tap; None if an example has none."""
        if self._data is None:
            return None
        rows = [self._data.hidden(one) for one in batch.examples]
        found = [row for row in rows if row is not None]
        if len(found) < len(rows):
            return None
        width = found[0].shape[-1] // len(self._stored)
        padded = found[0].new_zeros(*batch.tokens.shape, found[0].shape[-1])
        for line, row, length in zip(padded, found, batch.lengths, strict=True):
            line[:length] = row[:length]
        parts = padded.split(width, dim=-1)
        return {tap: parts[self._stored.index(tap)] for tap in self._wanted}

    def _computed(self, batch: Batch) -> dict[int, Tensor]:
        """One forward of the target.

        Rows are padded on the right and attention is causal, so that no token sees padding and no
        mask is needed.
        """
        embeddings: Any = self._target.get_input_embeddings()
        arguments: dict[str, Any] = {
            "input_ids": batch.tokens.to(embeddings.weight.device),
            "use_cache": False,
            "output_hidden_states": list(self._wanted),
            "return_dict": True,
        }
        if self._selects_logits:
            arguments["logits_to_keep"] = 1
        output = self._target(**arguments)
        return {tap: output.hidden_states[tap] for tap in self._wanted}


@contextmanager
def at_rest(target: PreTrainedModel) -> Iterator[None]:
    """The target in evaluation mode, and as it was afterwards."""
    modes = {module: module.training for module in target.modules()}
    target.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
