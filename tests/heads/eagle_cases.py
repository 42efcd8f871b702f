"""EAGLE heads of every variant with random weights on tiny targets, and trees to ask them for."""

import random
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from tests.families import VOCAB, family, tiny_model
from treespec.heads import DraftVocabulary
from treespec.heads.eagle import EagleConfig, EagleHead, EagleSession
from treespec.heads.layer import LayerConfig
from treespec.tree.growth import GrowingTree

H = 32
_LAYER = {
    "hidden_size": H,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
_QWEN2 = {**_LAYER, "qkv_bias": True, "rope_theta": 1000.0}
_QWEN3 = {**_LAYER, "head_dim": 16, "qk_norm": True, "rms_norm_eps": 1e-5, "rope_theta": 5e5}
_NARROW = {**_LAYER, "hidden_size": 20, "num_key_value_heads": 1, "o_bias": True, "mlp_bias": True}

# name -> (target, layer, settings); "reduced" draws from every other token.
VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "1": ("llama", _LAYER, {"version": 1}),
    "1_bias": ("qwen2", _QWEN2, {"version": 1, "fc_bias": True}),
    "1_qwen3": ("qwen3", _QWEN3, {"version": 1, "reduced": True}),
    "1_embedding_norm": ("llama", _LAYER, {"version": 1, "embedding_norm": True}),
    "1_own": ("llama", _LAYER, {"version": 1, "own_embedding": True, "lm_head": "own"}),
    "3": ("llama", _LAYER, {"reduced": True}),
    "3_all_tokens": ("qwen2", _QWEN2, {"own_embedding": True}),
    "3_qwen3": ("qwen3", _QWEN3, {"reduced": True, "fc_bias": True}),
    "3_target_head": ("llama", _LAYER, {"lm_head": "target", "reduced": True}),
    "3_repeated_taps": ("llama", _LAYER, {"taps": (1, 1, 0)}),
    "3_normed_residual": ("llama", _LAYER, {"norm_before_residual": True}),
    "3_fc_norm": ("llama", _LAYER, {"fc_norm": True}),
    "3_norm_before_fc": ("llama", _LAYER, {"norm_before_fc": True}),
    "3_post_norm": ("llama", _LAYER, {"feedback": "post_norm"}),
    "3_narrow": (
        "llama",
        _NARROW,
        {
            "own_embedding": True,
            "norm_before_residual": True,
            "fc_norm": True,
            "norm_before_fc": True,
            "feedback": "post_norm",
        },
    ),
}
_DEFAULTS: dict[int, dict[str, Any]] = {
    1: {"taps": (2,), "lm_head": "target"},
    3: {"taps": (0, 1, 2), "lm_head": "own"},
}


def config_of(variant: str, **changes: Any) -> EagleConfig:
    """The variant's configuration."""
    _, layer, settings = VARIANTS[variant]
    version = settings.get("version", 3)
    defaults = {"version": 3, "fc_bias": False, "own_embedding": False, "target_hidden_size": H}
    merged = {**defaults, **_DEFAULTS[version], **settings, **changes}
    merged.pop("reduced", None)
    return EagleConfig(layer=LayerConfig(**layer), **merged)


def head_of(variant: str, target: PreTrainedModel | None = None, seed: int = 0) -> EagleHead:
    """A head of the variant whose every weight is random and matters."""
    name, _, settings = VARIANTS[variant]
    target = tiny_model(family(name), "sdpa") if target is None else target
    vocab = target.config.vocab_size
    reduced = settings.get("reduced", False)
    vocabulary = DraftVocabulary(torch.arange(0, vocab, 2).flip(0), vocab) if reduced else None
    head = EagleHead(config_of(variant), target, vocabulary)
    generator = torch.Generator().manual_seed(seed)
    # Version 1 has no norm behind its layer: larger weights would let its states, and with them
    # the rounding, grow from level to level.
    gain = 0.7 if head.config.version == 1 else 1.4
    with torch.no_grad():
        for parameter in head.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(noise * gain * parameter.shape[-1] ** -0.5)
    return head


def pairs(
    head: EagleHead, lengths: Sequence[int], seed: int = 0
) -> tuple[list[Float[Tensor, "_L F"]], list[Int[Tensor, " _L"]]]:
    """Random features and tokens, row by row."""
    generator = torch.Generator().manual_seed(seed)
    width = head.config.target_hidden_size * len(head.config.taps)
    features = [torch.randn(length, width, generator=generator) for length in lengths]
    tokens = [torch.randint(VOCAB, (length,), generator=generator) for length in lengths]
    return features, tokens


def path_of(tree: GrowingTree, node: int) -> list[int]:
    """Tokens from below the root to the node."""
    tokens: list[int] = []
    while node > 0:
        tokens.insert(0, tree.tokens[node])
        node = tree.parents[node]
    return tokens


def grown_level(
    tree: GrowingTree, frontier: Sequence[int], rng: random.Random, *, width: int, most: int
) -> list[int]:
    """Give frontier nodes children, and choose some of those in any order as the next frontier."""
    added = [
        tree.add(parent, rng.randrange(VOCAB), 0.0) for parent in frontier for _ in range(width)
    ]
    return rng.sample(added, min(most, len(added)))


def asked(
    session: EagleSession,
    trees: Sequence[GrowingTree],
    depth: int,
    *,
    width: int = 2,
    seed: int = 0,
) -> list[dict[int, Float[Tensor, " D"]]]:
    """Grow trees level by level; per row the logits of every node that was asked for."""
    rng = random.Random(seed)
    found: list[dict[int, Tensor]] = [{} for _ in trees]
    frontiers: list[list[int]] = [[0] for _ in trees]
    for _ in range(depth):
        # Rows draw apart: wide and narrow frontiers, and one that stops early.
        frontiers = [
            grown_level(tree, frontier, rng, width=width, most=max(1, row))
            for row, (tree, frontier) in enumerate(zip(trees, frontiers, strict=True))
        ]
        for row, logits in enumerate(session.extend(trees, frontiers)):
            found[row].update(zip(frontiers[row], logits, strict=True))
        if width > 1 and rng.random() < 0.3:
            frontiers[0] = []
    return found
