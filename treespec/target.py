"""The only file that calls a causal LM; it serves targets and draft models."""

from dataclasses import dataclass, field

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """What one forward of the target says about one row; tensors stay on the target's device.

    Attributes:
        logits: row i speaks of node i's children, shape `[N, V]`, in the model's dtype.
        hidden: for each tapped index of `hidden_states` the states of the N nodes, `[N, H]`.
        top_ids: after prefill the target's most probable token ids for every prompt position,
            most probable first, `[P, 8]`; None after a step, where `logits` tells.
    """

    logits: Float[Tensor, "N V"]
    hidden: dict[int, Float[Tensor, "N H"]] = field(default_factory=dict)
    top_ids: Int[Tensor, "P K"] | None = None
