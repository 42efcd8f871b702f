"""EAGLE as its papers write it: a whole path anew for every prediction, no cache and no mask.

Written on plain tensors by name, so that it shares nothing with the modules under test but their
weights.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.heads.eagle import EagleHead
from treespec.heads.layer import LayerConfig


class Reference:
    """Predictions of one head, path by path.

    Args:
        head: whose weights to take.
    """

    def __init__(self, head: EagleHead) -> None:
        self.config = head.config
        self.weights = {name: value.detach() for name, value in head.state_dict().items()}
        target = head.borrowed.target
        self.target_embeddings = target.get_input_embeddings().weight.detach()
        self.target_rows = target.get_output_embeddings().weight.detach()
        self.ids = None if head.vocabulary is None else head.vocabulary.ids

    def path(
        self, features: Float[Tensor, "P F"], tokens: Sequence[int], path: Sequence[int]
    ) -> Float[Tensor, " D"]:
        """Logits of the token after `path`.

        Args:
            features: the target's features of positions 0 to P - 1.
            tokens: the token after each of them.
            path: tokens of a node's ancestors and its own, without the root; () for the root.
        """
        states, text = [self.fused(feature) for feature in features], list(tokens)
        for token in path:
            states.append(self.fed_back(self.output(states, text)))
            text.append(token)
        return self.logits(self.output(states, text))

    def fused(self, feature: Float[Tensor, " F"]) -> Float[Tensor, " H"]:
        """The hidden state of a committed position."""
        if self.config.version == 1:
            return feature
        if self.config.norm_before_fc:
            feature = self.norm("input_norm", feature)
        parts = list(feature.reshape(len(self.config.taps), -1))
        if self.config.fc_norm:
            parts = [self.norm(f"fc_norm.{place}", part) for place, part in enumerate(parts)]
        return self.linear("fc", torch.cat(parts))

    def fed_back(self, output: Float[Tensor, " H"]) -> Float[Tensor, " H"]:
        """The hidden state of a drafted position."""
        return self.norm("norm", output) if self.config.feedback == "post_norm" else output

    def logits(self, output: Float[Tensor, " H"]) -> Float[Tensor, " D"]:
        """What follows, by the head's or the target's LM head."""
        if self.config.version == 3:
            output = self.norm("norm", output)
        if self.config.lm_head == "own":
            return self.linear("lm_head", output)
        logits = self.target_rows @ output
        return logits if self.ids is None else logits[self.ids]

    def output(
        self, states: Sequence[Float[Tensor, " H"]], tokens: Sequence[int]
    ) -> Float[Tensor, " H"]:
        """The layer's output at the last of these positions."""
        read = [self.read(state, token) for state, token in zip(states, tokens, strict=True)]
        keys, values = [], []
        for position, (_, inputs) in enumerate(read):
            key = self.heads("k_proj", inputs)
            keys.append(rotated(self.normed_head("k_norm", key), position, self.config.layer))
            values.append(self.heads("v_proj", inputs))
        residual, inputs = read[-1]
        query = self.normed_head("q_norm", self.heads("q_proj", inputs))
        query = rotated(query, len(read) - 1, self.config.layer)
        group = self.config.layer.num_attention_heads // self.config.layer.num_key_value_heads
        mixed = []
        for head, one in enumerate(query):
            seen = torch.stack([key[head // group] for key in keys])
            weights = (seen @ one / math.sqrt(self.config.layer.head_dim)).softmax(dim=0)
            mixed.append(weights @ torch.stack([value[head // group] for value in values]))
        attended = residual + self.linear("layer.self_attn.o_proj", torch.cat(mixed))
        inner = self.norm("layer.post_attention_layernorm", attended)
        gate = self.linear("layer.mlp.gate_proj", inner)
        up = gate * torch.sigmoid(gate) * self.linear("layer.mlp.up_proj", inner)
        return attended + self.linear("layer.mlp.down_proj", up)

    def read(
        self, state: Float[Tensor, " H"], token: int
    ) -> tuple[Float[Tensor, " H"], Float[Tensor, " X"]]:
        """The residual stream and the input of attention at one position."""
        embedding = self.weights.get("embed_tokens.weight", self.target_embeddings)[token]
        if self.config.version == 1:
            if self.config.embedding_norm:
                embedding = self.norm("embed_layernorm", embedding)
            fused = self.linear("fc", torch.cat([embedding, state]))
            return fused, fused
        normed = self.norm("layer.hidden_norm", state)
        inputs = torch.cat([self.norm("layer.input_layernorm", embedding), normed])
        return normed if self.config.norm_before_residual else state, inputs

    def heads(self, name: str, inputs: Float[Tensor, " X"]) -> Float[Tensor, "heads K"]:
        """One of the attention's projections, head by head."""
        projected = self.linear(f"layer.self_attn.{name}", inputs)
        return projected.reshape(-1, self.config.layer.head_dim)

    def normed_head(self, name: str, states: Float[Tensor, "heads K"]) -> Float[Tensor, "heads K"]:
        """Queries or keys as Qwen3 norms them."""
        if not self.config.layer.qk_norm:
            return states
        return torch.stack([self.norm(f"layer.self_attn.{name}", state) for state in states])

    def linear(self, name: str, inputs: Float[Tensor, " X"]) -> Float[Tensor, " Y"]:
        """A projection, with its bias if it has one."""
        output = self.weights[f"{name}.weight"] @ inputs
        return output + self.weights.get(f"{name}.bias", torch.zeros(1))

    def norm(self, name: str, state: Float[Tensor, " X"]) -> Float[Tensor, " X"]:
        """Root mean square norm."""
        scale = torch.sqrt((state * state).mean() + self.config.layer.rms_norm_eps)
        return self.weights[f"{name}.weight"] * state / scale


def rotated(
    states: Float[Tensor, "heads K"], position: int, layer: LayerConfig
) -> Float[Tensor, "heads K"]:
    """Rotary embedding: pairs of coordinates half a head apart, turned by the position."""
    half = layer.head_dim // 2
    angles = position * layer.rope_theta ** (-torch.arange(half) / half)
    first, second = states[:, :half], states[:, half:]
    return torch.cat(
        [
            first * angles.cos() - second * angles.sin(),
            second * angles.cos() + first * angles.sin(),
        ],
        dim=-1,
    )
