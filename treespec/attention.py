"""Attention masks of a tree forward, in the form that each attention implementation takes.

A node sees the committed prefix of its row, its ancestors and itself. Layers with a sliding window
or with chunks see less of it: what they see is measured by *position* (prefix length + depth), not
by cache slot, because siblings share a position but not a slot.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from treespec.errors import UnsupportedTargetError

IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention")

Mask = Tensor | BlockMask
LayerMasks = Mask | dict[str, Mask]


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What the layers of one type may see of the past.

    Attributes:
        name: transformers' name of the type, the key of its mask.
        window: most recent positions that a token sees, itself included; None for all.
        chunk: a token sees only positions of its own chunk of this many; None for all.
    """

    name: str
    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class NewNodes:
    """Tokens that one row's next forward runs, on top of its committed prefix.

    Attributes:
        tokens: their ids, shape `[N]`, on the CPU.
        depths: their distance from the end of the prefix, shape `[S N]`, for the S nodes that are
            already in the cache's scratch room and the N new ones: position = prefix length +
            depth.
        visible: which of the S + N nodes each new node sees, shape `[N, S N]`.
    """

    tokens: Int[Tensor, " N"]
    depths: Int[Tensor, " SN"]
    visible: Bool[Tensor, "N SN"]

    @classmethod
    def chain(cls, tokens: Int[Tensor, " N"]) -> "NewNodes":
        """Consecutive tokens of a text."""
        size = tokens.shape[0]
        return cls(tokens, torch.arange(size), torch.ones(size, size, dtype=torch.bool).tril_())

    @property
    def positions(self) -> Int[Tensor, " N"]:
        """Depths of the new nodes only."""
        return self.depths[self.depths.shape[0] - self.tokens.shape[0] :]


def visibility(
    rows: Sequence[NewNodes], prefix_lengths: Sequence[int], kv_length: int, kind: LayerKind
) -> Bool[Tensor, "B N KV"]:
    """Which cache slots each new node of each row sees in layers of one kind.

    Rows are padded to the longest; a padding query sees slot 0, so that no row of the softmax is
    empty.
    """
    longest = max(row.tokens.shape[0] for row in rows)
    mask = torch.zeros(len(rows), longest, kv_length, dtype=torch.bool)
    for sees, row, prefix in zip(mask, rows, prefix_lengths, strict=True):
        new, nodes = row.tokens.shape[0], row.depths.shape[0]
        sees[new:, 0] = True
        sees[:new, :prefix] = True
        sees[:new, prefix : prefix + nodes] = row.visible
        if kind.window is not None or kind.chunk is not None:
            positions = torch.cat([torch.arange(prefix), row.depths + prefix])
            sees[:new, : prefix + nodes] &= _reach(
                positions[prefix + nodes - new :], positions, kind
            )
    return mask


def _reach(
    query: Int[Tensor, " N"], key: Int[Tensor, " K"], kind: LayerKind
) -> Bool[Tensor, "N K"]:
    """Which key positions are near enough for each query position."""
    query, key = query[:, None], key[None, :]
    near = torch.ones(query.shape[0], key.shape[1], dtype=torch.bool)
    if kind.window is not None:
        near &= key > query - kind.window
    if kind.chunk is not None:
        near &= key // kind.chunk == query // kind.chunk
    return near


def encode(
    visible: Bool[Tensor, "B N KV"], implementation: str, dtype: torch.dtype, device: torch.device
) -> Mask:
    """The mask as `implementation` takes it.

    Additive for eager, boolean for sdpa, a BlockMask for flex.

    Eager attention adds whatever it is given, so that a boolean mask would shift logits by one
    instead of hiding anything.
    """
    visible = visible.to(device)
    if implementation == "sdpa":
        return visible[:, None]
    if implementation == "eager":
        bias = torch.zeros(visible.shape, dtype=dtype, device=device)
        return bias.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]

    sees = lambda batch, _head, query, key: visible[batch, query, key]
    batch, queries, keys = visible.shape
    return create_block_mask(sees, batch, None, queries, keys, device=str(device))


def build_masks(
    rows: Sequence[NewNodes],
    prefix_lengths: Sequence[int],
    kv_length: int,
    *,
    kinds: Sequence[LayerKind],
    implementation: str,
    dtype: torch.dtype,
    device: torch.device,
) -> LayerMasks:
    """Masks of one forward: one for all layers, or one per layer type where there are several."""
    masks = {
        kind.name: encode(
            visibility(rows, prefix_lengths, kv_length, kind), implementation, dtype, device
        )
        for kind in kinds
    }
    return masks if len(masks) > 1 else masks[kinds[0].name]


def require_implementation(implementation: str | None, model_class: str) -> str:
    """The attention implementation, if it can take a tree mask.

    Raises:
        UnsupportedTargetError: for any other, with what to load the model with instead.
    """
    if implementation not in IMPLEMENTATIONS:
        raise UnsupportedTargetError(
            f"{model_class} runs attention through {implementation!r}, which cannot take the mask "
            f"of a "
            f"token tree; load it with attn_implementation= one of {', '.join(IMPLEMENTATIONS)}, "
            f"or "
            "call model.set_attn_implementation('sdpa')"
        )
    return implementation
