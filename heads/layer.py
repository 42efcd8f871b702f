"""One attention layer of a head: its sizes, its modules from transformers, and how rows run it.

Rows have different lengths, a tree mask, and a cache of their own, exactly as the target has them;
so the layer is given the same masks and the same `TreeCache` as a target of one layer.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRotaryEmbedding,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from treespec.attention import LayerKind, NewNodes, build_masks
from treespec.cache import TreeCache

# Committed pairs run at a time, so that masks do not grow with the square of a long prompt.
CHUNK = 512
_FULL = (LayerKind("full_attention"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """Sizes of one decoder layer, as Llama's configuration names them.

    Attributes:
        hidden_size: H, of the residual stream.
        intermediate_size: of the MLP.
        num_attention_heads: query heads.
        num_key_value_heads: key and value heads.
        head_dim: size of one head.
        hidden_act: activation of the MLP.
        rms_norm_eps: of every norm.
        rope_theta: base of the rotary frequencies.
        rope_parameters: transformers' rotary parameters where they are more than a base; None for
            plain ones.
        max_position_embeddings: positions that the layer was made for.
        qkv_bias: whether query, key and value have a bias.
        o_bias: whether the output projection has one.
        mlp_bias: whether the MLP's projections have one.
        qk_norm: whether query and key are normalised per head (Qwen3).
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_parameters: Mapping[str, Any] | None = None
    max_position_embeddings: int = 2048
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    def llama(self) -> LlamaConfig:
        """The same as a configuration of transformers."""
        parameters = dict(self.rope_parameters or {"rope_type": "default"})
        parameters.setdefault("rope_theta", self.rope_theta)
        config = LlamaConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            hidden_act=self.hidden_act,
            rms_norm_eps=self.rms_norm_eps,
            rope_parameters=parameters,
            max_position_embeddings=self.max_position_embeddings,
            mlp_bias=self.mlp_bias,
            num_hidden_layers=1,
        )
        config._attn_implementation = "sdpa"
        return config


def attention_of(config: LayerConfig, input_size: int) -> nn.Module:
    """Transformers' attention, with projections from `input_size` states."""
    kind: Any = Qwen3Attention if config.qk_norm else LlamaAttention
    llama = config.llama()
    llama.sliding_window = None  # Qwen3's attention asks for these
    llama.layer_types = ["full_attention"]
    attention: nn.Module = kind(llama, layer_idx=0)
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    attention.q_proj = nn.Linear(input_size, queries, bias=config.qkv_bias)
    attention.k_proj = nn.Linear(input_size, keys, bias=config.qkv_bias)
    attention.v_proj = nn.Linear(input_size, keys, bias=config.qkv_bias)
    attention.o_proj = nn.Linear(queries, config.hidden_size, bias=config.o_bias)
    return attention


def mlp_of(config: LayerConfig) -> nn.Module:
    """Transformers' gated MLP."""
    mlp: nn.Module = LlamaMLP(config.llama())
    return mlp


class _Rotary(LlamaRotaryEmbedding):
    """Transformers' rotary embedding whose frequencies stay float32.

    Rounded to bfloat16 with the rest of the heads they would turn position 1000 by some radians.
    """

    def _apply(self, fn: Any, recurse: bool = True) -> "_Rotary":
        exact: tuple[Any, Any] = self.inv_freq, self.original_inv_freq
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device: Any = self.inv_freq.device
        self.inv_freq, self.original_inv_freq = (buffer.to(device) for buffer in exact)
        return self


def rotary_of(config: LayerConfig) -> nn.Module:
    """Transformers' rotary embedding; it has no parameters."""
    rotary: nn.Module = _Rotary(config.llama())
    return rotary


@dataclass(frozen=True, slots=True)
class Attend:
    """What attention needs of one forward besides its input.

    Attributes:
        positions: cosines and sines of every position.
        mask: who sees whom; None for plain causal attention.
        cache: where keys and values go; None without one, as in training.
    """

    positions: tuple[Tensor, Tensor]
    mask: Any
    cache: Any = None

    def __call__(self, attention: nn.Module, states: Float[Tensor, "B N X"]) -> Tensor:
        """Attention output for the states."""
        parameters = inspect.signature(inspect.unwrap(type(attention).forward)).parameters
        name = "cache" if "cache" in parameters else "past_key_values"
        output: Tensor = attention(
            hidden_states=states,
            position_embeddings=self.positions,
            attention_mask=self.mask,
            **{name: self.cache},
        )[0]
        return output


class LayerRunner:
    """One layer's cache, and forwards of rows of different lengths through it.

    Args:
        batch: number of rows.
        rotary: the layer's rotary embedding.
        forward: the layer itself: inputs `[B, N, X]` and how to attend, to outputs `[B, N, H]`.

    Attributes:
        cache: keys and values; slot and position of a committed input are its index.
    """

    def __init__(
        self,
        batch: int,
        rotary: nn.Module,
        forward: Callable[[Float[Tensor, "B N X"], Attend], Float[Tensor, "B N H"]],
    ) -> None:
        self.cache = TreeCache(batch, 1, capacity=512)
        self._rotary = rotary
        self._forward = forward

    def read(self, inputs: Sequence[Float[Tensor, "_L X"]]) -> list[Float[Tensor, "_L H"]]:
        """Run committed inputs behind those before, and drop every node of a tree."""
        self.cache.commit([()] * len(self.cache))
        longest = max(len(states) for states in inputs)
        parts: list[list[Tensor]] = [[] for _ in inputs]
        for start in range(0, longest, CHUNK):
            chunk = [states[start : start + CHUNK] for states in inputs]
            nodes = [
                NewNodes.chain(torch.zeros(len(states), dtype=torch.int64)) for states in chunk
            ]
            for part, output in zip(parts, self.run(chunk, nodes), strict=True):
                part.append(output)
            self.cache.commit([range(len(states)) for states in chunk])
        return [
            torch.cat(part) if part else states.new_empty(0, states.shape[-1])
            for part, states in zip(parts, inputs, strict=True)
        ]

    def run(
        self, inputs: Sequence[Float[Tensor, "_N X"]], nodes: Sequence[NewNodes]
    ) -> list[Float[Tensor, "_N H"]]:
        """Run nodes of each row's tree; they stay in the cache until the next `read`."""
        counts = [len(states) for states in inputs]
        longest, first = max(counts), inputs[0]
        prefix_lengths = list(self.cache.lengths)
        kv_length = self.cache.reserve(longest)
        padded = first.new_zeros(len(inputs), longest, first.shape[-1])
        positions = torch.zeros(len(inputs), longest, dtype=torch.int64)
        for row, (states, node, prefix) in enumerate(
            zip(inputs, nodes, prefix_lengths, strict=True)
        ):
            padded[row, : counts[row]] = states
            positions[row, : counts[row]] = node.positions + prefix
        mask = build_masks(
            nodes,
            prefix_lengths,
            kv_length,
            kinds=_FULL,
            implementation="sdpa",
            dtype=padded.dtype,
            device=padded.device,
        )
        rotation = self._rotary(padded, positions.to(padded.device))
        output = self._forward(padded, Attend(rotation, mask, self.cache.hf))
        self.cache.wrote(counts)
        return [output[row, :count] for row, count in enumerate(counts)]

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only."""
        self.cache.keep(rows)
