"""Hydra heads: Medusa heads that see the tokens of the path before the one they guess.

With p_t a state of position t and e the target's embedding, head i reads

    z = [p_t; e(x_(t+1)); ...; e(x_(t+1+i))]
    y_1 = R z + r + SiLU(W z + w),    y_(l+1) = y_l + SiLU(A y_l + a),    logits = L y_n + c,

with the same A in all its layers, and its logits speak of x_(t+2+i) (Ankner et al. 2024,
arXiv 2402.05109). p_t is the target's hidden state f_t after its final norm or, with a prefix
layer, what one more causal decoder layer with a norm makes of f_0, ..., f_t.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from treespec.errors import ConfigError
from treespec.heads.base import DraftHeads, last_tap
from treespec.heads.layer import (
    Attend,
    LayerConfig,
    LayerRunner,
    attention_of,
    mlp_of,
    rotary_of,
)
from treespec.heads.medusa import (
    ResidualBlock,
    own_lm_head,
    require_hidden_size,
    require_lm_head,
    require_sizes,
)
from treespec.heads.vocabulary import DraftVocabulary
from treespec.tree.growth import GrowingTree


@dataclass(frozen=True, slots=True, kw_only=True)
class HydraConfig:
    """Sizes of Hydra heads.

    Attributes:
        num_heads: tokens that they look ahead behind the next one.
        num_layers: n, layers of a head, its first one included.
        hidden_size: H, of the target.
        prefix: the decoder layer over hidden states; None for none.
        lm_head: "each" head has an LM head of its own, or all use the "target"'s.
        lm_head_bias: whether LM heads of their own have a bias.
    """

    num_heads: int
    num_layers: int
    hidden_size: int
    prefix: LayerConfig | None
    lm_head: Literal["target", "each"]
    lm_head_bias: bool

    def __post_init__(self) -> None:
        require_sizes(
            num_heads=self.num_heads, num_layers=self.num_layers, hidden_size=self.hidden_size
        )
        require_lm_head(self.lm_head)
        if self.lm_head == "target" and self.lm_head_bias:
            raise ConfigError(
                'lm_head_bias is for LM heads of their own; with lm_head="target" it must be False'
            )
        if self.prefix is not None and self.prefix.hidden_size != self.hidden_size:
            raise ConfigError(
                f"the prefix layer's hidden_size is {self.prefix.hidden_size}, but the heads' is "
                f"{self.hidden_size}; they must be equal"
            )


class HydraHeads(DraftHeads):
    """Heads that read a state and the path from there, and a layer that may prepare the state.

    Args:
        config: their sizes.
        target: the model that they look ahead for.
        vocabulary: the tokens that they can propose; None for all.

    Raises:
        DrafterError: if the hidden size is not the target's.
    """

    family = "hydra"

    def __init__(
        self,
        config: HydraConfig,
        target: PreTrainedModel,
        vocabulary: DraftVocabulary | None = None,
    ) -> None:
        super().__init__(target, vocabulary)
        require_hidden_size(config.hidden_size, self)
        self.config = config
        self.taps = (last_tap(target),)
        self.max_depth = config.num_heads
        self.prefix = None if config.prefix is None else PrefixLayer(config.prefix)
        self.heads = nn.ModuleList()
        for index in range(config.num_heads):
            own = own_lm_head(self, bias=config.lm_head_bias) if config.lm_head == "each" else None
            self.heads.append(HydraHead(index, config, own))

    def forward(
        self, hidden: Float[Tensor, "B L H"], tokens: Int[Tensor, "B L"]
    ) -> Float[Tensor, "B L K D"]:
        """Logits of every head at every position of whole sequences, padded on the right if at all.

        Args:
            hidden: post-norm hidden states f_t.
            tokens: the token x_(t+1) that came after each of them.

        Returns:
            Of head i at position t the logits of x_(t+2+i). Where the sequence ends before
            x_(t+1+i), which the head would have to read, they mean nothing.
        """
        states = self.states(hidden)
        embedded = self.embed(tokens)
        inputs, logits = states, []
        for index in range(self.config.num_heads):
            ahead = embedded[:, index:]
            missing = ahead.new_zeros(
                ahead.shape[0], min(index, embedded.shape[1]), states.shape[-1]
            )
            inputs = torch.cat([inputs, torch.cat([ahead, missing], dim=1)], dim=-1)
            logits.append(self.head_logits(index, inputs))
        return torch.stack(logits, dim=-2)

    def states(self, hidden: Float[Tensor, "B L H"]) -> Float[Tensor, "B L H"]:
        """p_t of every position of whole sequences."""
        return hidden if self.prefix is None else self.prefix.of_sequences(hidden)

    def embed(self, tokens: Int[Tensor, "*B"]) -> Float[Tensor, "*B H"]:
        """The target's embeddings, in the heads' type and place."""
        return self.borrowed.embed(tokens).to(self.device, self.dtype)

    def head_logits(self, index: int, inputs: Float[Tensor, "*B Z"]) -> Float[Tensor, "*B D"]:
        """Logits of one head for its inputs z."""
        states: Tensor = self.heads[index](inputs)
        return states if self.config.lm_head == "each" else self.borrowed.logits(states)

    def begin(self, batch: int) -> "HydraSession":
        """See `DraftHeads.begin`."""
        return HydraSession(self, batch)


class HydraSession:
    """Each row's last state p_t, and the prefix layer's cache over committed positions.

    Attributes:
        runner: the prefix layer with its cache; None without one.
    """

    def __init__(self, heads: HydraHeads, batch: int) -> None:
        self._heads = heads
        self._last = torch.zeros(
            batch, heads.config.hidden_size, dtype=heads.dtype, device=heads.device
        )
        self.runner: LayerRunner | None = None
        if heads.prefix is not None:
            self.runner = LayerRunner(batch, heads.prefix.rotary, heads.prefix)

    def read(
        self,
        features: Sequence[Float[Tensor, "_L F"]],
        tokens: Sequence[Int[Tensor, " _L"]],
    ) -> list[Float[Tensor, "_M D"]]:
        """See `HeadSession.read`."""
        states = features if self.runner is None else self.runner.read(features)
        self._last = torch.stack(
            [new[-1] if len(new) else last for new, last in zip(states, self._last, strict=True)]
        )
        given = [row for row, new in enumerate(features) if len(new)]
        return self._ask(given, [[int(tokens[row][-1])] for row in given], len(features))

    def extend(
        self, trees: Sequence[GrowingTree], frontiers: Sequence[Sequence[int]]
    ) -> list[Float[Tensor, "_F D"]]:
        """See `HeadSession.extend`; every head is called once, for the nodes of all rows."""
        rows = [row for row, frontier in enumerate(frontiers) for _ in frontier]
        paths = [
            _path(tree, node)
            for tree, frontier in zip(trees, frontiers, strict=True)
            for node in frontier
        ]
        return self._ask(rows, paths, len(frontiers))

    def keep(self, rows: Sequence[int]) -> None:
        """See `HeadSession.keep`."""
        self._last = self._last[torch.tensor(rows, dtype=torch.int64, device=self._last.device)]
        if self.runner is not None:
            self.runner.keep(rows)

    def _ask(
        self, rows: Sequence[int], paths: Sequence[Sequence[int]], batch: int
    ) -> list[Float[Tensor, "_M D"]]:
        """Logits behind paths, given from the root on; `rows` names each path's row, in order."""
        heads, device = self._heads, self._last.device
        places: dict[int, list[int]] = defaultdict(list)  # by depth
        for place, path in enumerate(paths):
            places[len(path) - 1].append(place)
        parts = []
        for depth, chosen in places.items():
            states = self._last[torch.tensor([rows[place] for place in chosen], device=device)]
            embedded = heads.embed(torch.tensor([paths[place] for place in chosen]))
            inputs = torch.cat([states, embedded.flatten(start_dim=-2)], dim=-1)
            parts.append(heads.head_logits(depth, inputs))
        found = torch.cat(parts) if parts else self._last.new_empty(0, heads.num_columns)
        if len(parts) > 1:
            order = torch.tensor([place for chosen in places.values() for place in chosen])
            found = found[order.argsort().to(found.device)]
        return list(found.split([rows.count(row) for row in range(batch)]))


class HydraHead(nn.Module):
    """One head: a first layer from its inputs to H, one block used n - 1 times, an LM head.

    Args:
        index: i; the head reads a state and i + 1 embeddings.
        config: the heads' sizes.
        lm_head: its own LM head; None if it uses the target's.
    """

    def __init__(self, index: int, config: HydraConfig, lm_head: nn.Linear | None) -> None:
        super().__init__()
        self._repeats = config.num_layers - 1
        self.first = FirstLayer((index + 2) * config.hidden_size, config.hidden_size)
        self.block = ResidualBlock(config.hidden_size, bias=True) if self._repeats else None
        self.lm_head = lm_head

    def forward(self, inputs: Float[Tensor, "*B Z"]) -> Float[Tensor, "*B X"]:
        """Logits, or states where the LM head is the target's."""
        states: Tensor = self.first(inputs)
        if self.block is not None:
            for _ in range(self._repeats):
                states = self.block(states)
        return states if self.lm_head is None else self.lm_head(states)


class FirstLayer(nn.Module):
    """R z + r + SiLU(W z + w); W begins at zero."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, size)
        self.residual = nn.Linear(inputs, size)
        nn.init.zeros_(self.linear.weight)

    def forward(self, inputs: Float[Tensor, "*B Z"]) -> Float[Tensor, "*B H"]:
        """States of the head's width."""
        states: Tensor = self.residual(inputs) + nn.functional.silu(self.linear(inputs))
        return states


class PrefixLayer(nn.Module):
    """Llama's decoder layer and final norm, over the target's hidden states."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm: nn.Module = LlamaRMSNorm(size, eps=eps)
        self.self_attn = attention_of(config, size)
        self.post_attention_layernorm: nn.Module = LlamaRMSNorm(size, eps=eps)
        self.mlp = mlp_of(config)
        self.norm: nn.Module = LlamaRMSNorm(size, eps=eps)
        self.rotary = rotary_of(config)

    def forward(self, hidden: Float[Tensor, "B N H"], attend: Attend) -> Float[Tensor, "B N H"]:
        """States of the nodes or positions that `attend` describes."""
        hidden = hidden + attend(self.self_attn, self.input_layernorm(hidden))
        hidden = hidden + self.mlp(self.post_attention_layernorm(hidden))
        states: Tensor = self.norm(hidden)
        return states

    def of_sequences(self, hidden: Float[Tensor, "B L H"]) -> Float[Tensor, "B L H"]:
        """States of whole sequences, every position seeing those before it."""
        positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        states: Tensor = self(hidden, Attend(self.rotary(hidden, positions), None))
        return states


def _path(tree: GrowingTree, node: int) -> list[int]:
    """Tokens from the root down to a node."""
    tokens = []
    while node >= 0:
        tokens.append(tree.tokens[node])
        node = tree.parents[node]
    return tokens[::-1]
