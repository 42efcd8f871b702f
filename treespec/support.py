"""What a model is, and whether token trees can be scored with it; others are refused here."""

import inspect
from dataclasses import dataclass

from transformers import PreTrainedConfig, PreTrainedModel

from treespec.attention import LayerKind, require_implementation
from treespec.cache import layers_of
from treespec.errors import UnsupportedTargetError

# A dummy layer stores nothing: it reads the keys and values of another layer, in the same forward.
_KEPT_LAYERS = ("DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer")
_SWITCHING_ROPE = ("dynamic", "longrope")
# Models whose `generate` runs the whole text again when it passes the switch, so that no key of
# the old frequencies stays in the cache.
_RECOMPUTING = ("phi3", "phimoe", "phi4_multimodal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """What treespec needs to know about a model.

    Attributes:
        model_class: name of its class.
        implementation: its attention implementation.
        num_layers: layers with keys and values.
        kinds: the layer types and what they see of the past.
        vocab_size: number of logits.
        max_positions: positions that it can embed; None without a limit.
        rope_switch: position at which its rotary frequencies change for the whole forward; None
            where they never do.
        rope_moves_on: whether they go on changing with every position behind the switch (dynamic
            NTK), so that nothing can be drafted there.
        rope_recomputes: whether `generate` runs the whole text anew when it reaches the switch.
    """

    model_class: str
    implementation: str
    num_layers: int
    kinds: tuple[LayerKind, ...]
    vocab_size: int
    max_positions: int | None
    rope_switch: int | None
    rope_moves_on: bool
    rope_recomputes: bool


def inspect_support(model: PreTrainedModel) -> Support:
    """Find out how to run trees on `model`.

    Raises:
        UnsupportedTargetError: naming its class and the part that cannot work.
    """
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedTargetError(
            f"the target is a {name}; give a transformers model, as "
            "AutoModelForCausalLM.from_pretrained returns it"
        )
    config = model.config.get_text_config(decoder=True)
    _refuse_architecture(model, config, name)
    layers = layers_of(config)
    for index, layer in enumerate(layers):
        if layer not in _KEPT_LAYERS:
            raise UnsupportedTargetError(
                f"{name}: layer {index} caches with {layer}, which cannot drop the rows of a "
                "rejected branch; every layer of the target must use attention over kept keys and "
                "values"
            )
    rope_kind, rope_switch = _rope_switch(config)
    return Support(
        model_class=name,
        implementation=require_implementation(config._attn_implementation, name),
        num_layers=len(layers),
        kinds=_layer_kinds(config, layers),
        vocab_size=_vocab_size(model, config),
        max_positions=_max_positions(config, rope_kind),
        rope_switch=rope_switch,
        rope_moves_on=rope_kind == "dynamic",
        rope_recomputes=config.model_type in _RECOMPUTING
        and rope_kind == "longrope"
        and getattr(config, "original_max_position_embeddings", None) == rope_switch,
    )


def _refuse_architecture(model: PreTrainedModel, config: PreTrainedConfig, name: str) -> None:
    parameters = inspect.signature(model.forward).parameters
    if model.config.is_encoder_decoder:
        raise UnsupportedTargetError(
            f"{name} is an encoder-decoder model; only decoder-only causal LMs work"
        )
    if model._is_stateful:
        raise UnsupportedTargetError(
            f"{name} carries a recurrent state, which cannot hold several branches nor drop a "
            "rejected one; use a model whose layers are all attention"
        )
    if not {"cache", "past_key_values"} & parameters.keys():
        raise UnsupportedTargetError(
            f"{name} takes no cache of keys and values, on top of which trees are scored; use a "
            "model whose forward has a past_key_values or cache argument"
        )
    if "position_ids" not in parameters or _has_alibi(config):
        raise UnsupportedTargetError(
            f"{name} takes positions from cache slots (ALiBi) instead of position_ids, so that "
            "nodes at one depth cannot share a position; use a model with rotary or learned "
            "positions"
        )
    if getattr(config, "attention_layers", None) and "local" in config.attention_layers:
        raise UnsupportedTargetError(
            f"{name} has local attention layers that measure their window by cache slot; it "
            "cannot run trees"
        )


def _has_alibi(config: PreTrainedConfig) -> bool:
    nested = getattr(config, "attn_config", None)
    return bool(getattr(config, "alibi", False) or getattr(nested, "alibi", False))


def _layer_kinds(config: PreTrainedConfig, layers: list[str]) -> tuple[LayerKind, ...]:
    """Distinct layer types in order of appearance."""
    window = getattr(config, "sliding_window", None)
    names = getattr(config, "layer_types", None)
    if names is None:
        sliding = "DynamicSlidingWindowLayer" in layers
        names = ["sliding_attention" if sliding else "full_attention"]
    kinds = {
        "full_attention": LayerKind("full_attention"),
        "sliding_attention": LayerKind("sliding_attention", window=window),
        "chunked_attention": LayerKind(
            "chunked_attention", chunk=getattr(config, "attention_chunk_size", None)
        ),
    }
    unknown = [name for name in names if name not in kinds]
    if unknown:
        raise UnsupportedTargetError(
            f"layers of type {unknown[0]!r} are not known to work on trees; known are "
            f"{', '.join(kinds)}"
        )
    return tuple(kinds[name] for name in dict.fromkeys(names))


def _vocab_size(model: PreTrainedModel, config: PreTrainedConfig) -> int:
    head = model.get_output_embeddings()
    return int(head.weight.shape[0]) if head is not None else int(config.vocab_size)


def _max_positions(config: PreTrainedConfig, rope_kind: str | None) -> int | None:
    """Positions that the model is made for; dynamic NTK has no end, it scales with the text."""
    return None if rope_kind == "dynamic" else getattr(config, "max_position_embeddings", None)


def _rope_switch(config: PreTrainedConfig) -> tuple[str | None, int | None]:
    """Kind of a rotary embedding whose frequencies depend on the forward, and where they change."""
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    by_layer_type = [one for one in given.values() if isinstance(one, dict)]
    for parameters in by_layer_type or [given]:
        kind = parameters.get("rope_type", parameters.get("type"))
        if kind in _SWITCHING_ROPE:
            original = parameters.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", None
            )
            return kind, int(original or config.max_position_embeddings)
    return None, None
