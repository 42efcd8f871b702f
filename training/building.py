"""Fresh heads of the sizes that a training run asks for, around one target."""

from typing import Any

import torch
from transformers import PreTrainedModel

from treespec.errors import ConfigError
from treespec.heads.base import DraftHeads, last_tap
from treespec.heads.eagle import EagleHead, default_taps
from treespec.heads.eagle_config import EagleConfig
from treespec.heads.hydra import HydraConfig, HydraHeads
from treespec.heads.layer import LayerConfig
from treespec.heads.medusa import MedusaConfig, MedusaHeads
from treespec.heads.vocabulary import DraftVocabulary
from treespec.training.config import TrainConfig


def build_heads(
    config: TrainConfig, target: PreTrainedModel, vocabulary: DraftVocabulary | None = None
) -> DraftHeads:
    """Heads with fresh float32 weights, on the device of the target's LM head.

    Weights are drawn from `config.seed` alone, so that every process begins with the same ones;
    the global random state is left as it was.

    Args:
        config: family and sizes.
        target: the model that they are for; it is not changed.
        vocabulary: tokens that they can propose; None for all.

    Raises:
        ConfigError: if the target has sizes that the family's layer cannot have.
        DrafterError: if the heads do not fit the target.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        heads = _BUILDERS[config.family](config, target, vocabulary)
    return heads.to(device=heads.borrowed.device, dtype=torch.float32)


def _medusa(
    config: TrainConfig, target: PreTrainedModel, vocabulary: DraftVocabulary | None
) -> DraftHeads:
    sizes = MedusaConfig(
        num_heads=config.depth,
        num_layers=config.num_layers or 1,
        hidden_size=hidden_size_of(target),
        lm_head="each" if config.lm_head == "own" else "target",
    )
    return MedusaHeads(sizes, target, vocabulary)


def _hydra(
    config: TrainConfig, target: PreTrainedModel, vocabulary: DraftVocabulary | None
) -> DraftHeads:
    sizes = HydraConfig(
        num_heads=config.depth,
        num_layers=config.num_layers or 1,
        hidden_size=hidden_size_of(target),
        prefix=None if config.prefix is False else layer_like(target, config.intermediate_size),
        lm_head="each" if config.lm_head == "own" else "target",
        lm_head_bias=False,
    )
    return HydraHeads(sizes, target, vocabulary)


def _eagle(
    config: TrainConfig, target: PreTrainedModel, vocabulary: DraftVocabulary | None
) -> DraftHeads:
    is_third = config.family == "eagle3"
    last = last_tap(target)
    sizes = EagleConfig(
        version=3 if is_third else 1,
        layer=layer_like(target, config.intermediate_size),
        target_hidden_size=hidden_size_of(target),
        taps=(config.taps or default_taps(last)) if is_third else (last,),
        fc_bias=False,
        own_embedding=False,
        lm_head=config.lm_head,
        fc_norm=bool(config.fc_norm),
    )
    heads = EagleHead(sizes, target, vocabulary)
    if config.lm_head == "own":
        heads.borrowed.copy_rows(heads.lm_head)
    return heads


_BUILDERS = {"medusa": _medusa, "hydra": _hydra, "eagle": _eagle, "eagle3": _eagle}


def layer_like(target: PreTrainedModel, intermediate_size: int | None = None) -> LayerConfig:
    """Sizes of a decoder layer like the target's own.

    Args:
        target: the model.
        intermediate_size: of the MLP; None for the target's, or four times its hidden size where
            its layers differ.

    Raises:
        ConfigError: if its attention heads have an odd size.
    """
    text: Any = target.config.get_text_config(decoder=True)
    hidden, heads = int(text.hidden_size), int(text.num_attention_heads)
    head_dim = getattr(text, "head_dim", None) or hidden // heads
    if head_dim % 2:
        raise ConfigError(
            f"attention heads of {type(target).__name__} have {head_dim} numbers, and rotary "
            "positions need an even count; train medusa heads, or hydra heads with prefix=false"
        )
    theirs = getattr(text, "intermediate_size", None)
    usual = theirs if isinstance(theirs, int) else 4 * hidden
    key_heads = getattr(text, "num_key_value_heads", None)
    return LayerConfig(
        hidden_size=hidden,
        intermediate_size=intermediate_size or usual,
        num_attention_heads=heads,
        num_key_value_heads=key_heads if isinstance(key_heads, int) else heads,
        head_dim=head_dim,
        rms_norm_eps=float(getattr(text, "rms_norm_eps", None) or 1e-6),
        rope_theta=_rope_theta(text),
        max_position_embeddings=int(getattr(text, "max_position_embeddings", None) or 2048),
    )


def _rope_theta(text: Any) -> float:
    """The base of the target's rotary frequencies, or the usual one where it has none or several.

    Stretched frequencies are not taken over: the layer is trained with what it is given.
    """
    parameters = getattr(text, "rope_parameters", None)
    theta = parameters.get("rope_theta") if isinstance(parameters, dict) else None
    return float(theta) if theta else 10000.0


def hidden_size_of(target: PreTrainedModel) -> int:
    """Numbers in one hidden state of a target."""
    return int(target.config.get_text_config(decoder=True).hidden_size)
