"""EAGLE heads: one decoder layer that continues the target's features token by token.

At position t the layer is given the token x_(t+1) and a hidden state of position t: at committed
positions made of the target's features, at the nodes of a tree what the layer itself gave for the
parent. Its output of position t stands for position t + 1 and gives the logits of x_(t+2).

EAGLE-1, which EAGLE-2 uses too (Li et al. 2024, arXiv 2401.15077 and 2406.16858), predicts the
target's own last feature; EAGLE-3 (arXiv 2503.01840) has features of several of the target's layers
and an LM head of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from treespec.errors import DrafterError
from treespec.heads.base import DraftHeads, last_tap
from treespec.heads.eagle_config import EagleConfig
from treespec.heads.eagle_session import EagleSession
from treespec.heads.layer import Attend, attention_of, mlp_of, rotary_of
from treespec.heads.vocabulary import DraftVocabulary

__all__ = ["EagleConfig", "EagleHead", "EagleLayer", "Predictions", "default_taps"]

_INITIAL_STD = 0.02  # what transformers draws its weights with


@dataclass(frozen=True, slots=True)
class Predictions:
    """What the head says at every position of a text.

    Attributes:
        states: `[B, L, H]`, hidden states to go on with; in version 1 the predicted features.
        logits: `[B, L, D]`, of the token two after the position.
    """

    states: Float[Tensor, "B L H"]
    logits: Float[Tensor, "B L D"]


class EagleLayer(nn.Module):
    """The decoder layer: attention and MLP; version 3 has norms of both inputs."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        layer, size = config.layer, config.layer.hidden_size
        if config.version == 3:
            self.input_layernorm = LlamaRMSNorm(size, layer.rms_norm_eps)
            self.hidden_norm = LlamaRMSNorm(size, layer.rms_norm_eps)
        self.self_attn = attention_of(layer, 2 * size if config.version == 3 else size)
        self.post_attention_layernorm = LlamaRMSNorm(size, layer.rms_norm_eps)
        self.mlp = mlp_of(layer)

    def forward(
        self, residual: Float[Tensor, "B N H"], inputs: Float[Tensor, "B N X"], attend: Attend
    ) -> Float[Tensor, "B N H"]:
        """The residual stream after attention over the inputs, and after the MLP."""
        states = residual + attend(self.self_attn, inputs)
        output: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return output


class EagleHead(DraftHeads):
    """EAGLE-1, EAGLE-2 or EAGLE-3.

    `forward` is a whole text at once. A trainer that feeds the head its own states back unrolls it
    by hand: `step(fuse(features), embed(tokens), attend(...))`, then `step(feedback(outputs),
    embed(later_tokens), attend(...))`; `logits(outputs)` and the loss at each of them.

    Args:
        config: version, sizes and variant.
        target: the model it was trained for.
        vocabulary: the tokens it can propose; None for all.

    Raises:
        DrafterError: if it does not fit the target.
    """

    def __init__(
        self,
        config: EagleConfig,
        target: PreTrainedModel,
        vocabulary: DraftVocabulary | None = None,
    ) -> None:
        super().__init__(target, vocabulary)
        _require_fit(config, target)
        self.config = config
        self.taps = config.taps
        size, eps = config.layer.hidden_size, config.layer.rms_norm_eps
        fused = config.target_hidden_size * len(config.taps)
        self.fc = nn.Linear(2 * size if config.version == 1 else fused, size, bias=config.fc_bias)
        self.layer = EagleLayer(config)
        if config.embedding_norm:
            self.embed_layernorm = LlamaRMSNorm(size, eps)
        if config.norm_before_fc:
            self.input_norm = LlamaRMSNorm(fused, eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(
                LlamaRMSNorm(config.target_hidden_size, eps) for _ in config.taps
            )
        if config.version == 3:
            self.norm = LlamaRMSNorm(size, eps)
        if config.own_embedding:
            self.embed_tokens = nn.Embedding(self.target_vocab_size, size)
        if config.lm_head == "own":
            self.lm_head = nn.Linear(size, self.num_columns, bias=False)
        self.rotary = rotary_of(config.layer)
        self.reset_parameters()

    @property
    def family(self) -> str:
        """Name of the family, by version."""
        return "eagle3" if self.config.version == 3 else "eagle"

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all weights anew, for training from scratch.

        Version 3 starts as a layer that passes its hidden state through, and an own embedding as a
        copy of the target's where the sizes allow it.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear) and module is not self.fc:
                nn.init.normal_(module.weight, std=_INITIAL_STD)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, LlamaRMSNorm | Qwen3RMSNorm):
                nn.init.ones_(module.weight)
        self.fc.reset_parameters()
        if self.config.version == 3:
            attention: Any = self.layer.self_attn
            mlp: Any = self.layer.mlp
            nn.init.zeros_(attention.o_proj.weight)
            nn.init.zeros_(mlp.down_proj.weight)
        if self.config.own_embedding:
            theirs: Any = self.borrowed.target.get_input_embeddings()
            if theirs.weight.shape == self.embed_tokens.weight.shape:
                self.embed_tokens.weight.copy_(theirs.weight)
            else:
                nn.init.normal_(self.embed_tokens.weight, std=_INITIAL_STD)

    def fuse(self, features: Float[Tensor, "*N F"]) -> Float[Tensor, "*N H"]:
        """Hidden states of committed positions, from the target's features."""
        if self.config.version == 1:
            return features
        if self.config.norm_before_fc:
            features = self.input_norm(features)
        if self.config.fc_norm:
            parts = features.split(self.config.target_hidden_size, dim=-1)
            features = torch.cat(
                [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1
            )
        hidden: Tensor = self.fc(features)
        return hidden

    def embed(self, tokens: Int[Tensor, "*N"]) -> Float[Tensor, "*N H"]:
        """Token embeddings, the target's or its own."""
        if not self.config.own_embedding:
            return self.borrowed.embed(tokens).to(self.device, self.dtype)
        states: Tensor = self.embed_tokens(tokens.to(self.device))
        return states

    def attend(
        self, positions: Int[Tensor, "B N"], *, mask: Tensor | None = None, cache: Any = None
    ) -> Attend:
        """How one step attends.

        Args:
            positions: of the inputs.
            mask: `[B, 1, N, K]`, true where an input sees a key; None for plain causal attention
                among the inputs, which is wrong with keys of earlier steps in the cache.
            cache: gives the keys and values of earlier steps in front of new ones, as
                transformers' `DynamicCache` does, with gradient.
        """
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        return Attend(self.rotary(like, positions.to(self.device)), mask, cache)

    def step(
        self,
        hidden: Float[Tensor, "B N H"],
        embeddings: Float[Tensor, "B N H"],
        attend: Attend,
    ) -> Float[Tensor, "B N H"]:
        """Outputs of the layer, before any norm.

        Args:
            hidden: `fuse` of committed positions, or `feedback` of the outputs of parents.
            embeddings: of the token after each position.
            attend: who sees whom.
        """
        if self.config.embedding_norm:
            embeddings = self.embed_layernorm(embeddings)
        if self.config.version == 1:
            residual = inputs = self.fc(torch.cat([embeddings, hidden], dim=-1))
        else:
            normed = self.layer.hidden_norm(hidden)
            residual = normed if self.config.norm_before_residual else hidden
            inputs = torch.cat([self.layer.input_layernorm(embeddings), normed], dim=-1)
        outputs: Tensor = self.layer(residual, inputs, attend)
        return outputs

    def feedback(self, outputs: Float[Tensor, "*N H"]) -> Float[Tensor, "*N H"]:
        """Hidden states that children of these outputs are fed."""
        if self.config.feedback == "post_norm":
            outputs = self.norm(outputs)
        return outputs

    def logits(self, outputs: Float[Tensor, "*N H"]) -> Float[Tensor, "*N D"]:
        """Logits of the token behind the outputs' own."""
        if self.config.version == 3:
            outputs = self.norm(outputs)
        if self.config.lm_head == "target":
            return self.borrowed.logits(outputs)
        logits: Tensor = self.lm_head(outputs)
        return logits

    def forward(
        self,
        features: Float[Tensor, "B L F"],
        tokens: Int[Tensor, "B L"],
        mask: Tensor | None = None,
    ) -> Predictions:
        """Predictions at every position of a text, from the target's features at all of them.

        Args:
            features: f_t at position t.
            tokens: x_(t+1) at position t.
            mask: as in `attend`; None for plain causal attention.
        """
        positions = torch.arange(tokens.shape[1]).expand(tokens.shape[0], -1)
        attend = self.attend(positions, mask=mask)
        outputs = self.step(self.fuse(features), self.embed(tokens), attend)
        return Predictions(self.feedback(outputs), self.logits(outputs))

    def begin(self, batch: int) -> EagleSession:
        """See `DraftHeads.begin`."""
        return EagleSession(self, batch)


def default_taps(num_layers: int) -> tuple[int, ...]:
    """EAGLE-3's usual inputs of an early, a middle and a late layer; small targets repeat some."""
    usual: Sequence[int] = (2, num_layers // 2, num_layers - 3)
    return tuple(sorted(min(max(tap, 0), num_layers - 1) for tap in usual))


def _require_fit(config: EagleConfig, target: PreTrainedModel) -> None:
    """Refuse a target that the head was not made for."""
    name, last = type(target).__name__, last_tap(target)
    size = config.layer.hidden_size
    text_config: Any = target.config.get_text_config(decoder=True)
    found = {"hidden states": (text_config.hidden_size, config.target_hidden_size)}
    if not config.own_embedding:
        embedding: Any = target.get_input_embeddings()
        found["embeddings"] = (embedding.weight.shape[1], size)
    if config.lm_head == "target":
        head: Any = target.get_output_embeddings()
        found["inputs of the LM head"] = (head.weight.shape[1], size)
    for what, (theirs, mine) in found.items():
        if theirs != mine:
            raise DrafterError(
                f"the {what} of {name} have size {theirs}, but the EAGLE head was made for "
                f"{mine}; load it with the target that it was trained for"
            )
    if any(not 0 <= tap <= last for tap in config.taps):
        raise DrafterError(
            f"the EAGLE head reads hidden states {list(config.taps)}, but {name} has 0 to {last}; "
            "load it with the target that it was trained for"
        )
    if config.version == 1 and config.taps != (last,):
        raise DrafterError(
            f"EAGLE version 1 continues the final hidden state, which has index {last} in {name}, "
            f"but taps is {config.taps}; set it to ({last},)"
        )
