"""EAGLE's layouts: version 1, and version 3 as its authors, SpecForge and speculators write it.

EAGLE-2 differs from EAGLE-1 in how it makes trees, not in what is in the file.
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from treespec.errors import CheckpointError
from treespec.heads.formats.checkpoint import Recipe
from treespec.heads.formats.settings import Settings, layer_config
from treespec.heads.formats.shapes import eagle_shapes
from treespec.heads.formats.tensors import StoredTensor
from treespec.heads.formats.vocabulary_maps import eagle_vocabulary

_LAYER = re.compile(r"(midlayer|layers\.0)\.(.+)")
_VERSION_3 = ("d2t", "t2d", "norm.weight", "layers.0.hidden_norm.weight")
_IGNORED = frozenset(
    {"d2t", "t2d", "verifier_lm_head.weight", "verifier_norm.weight"}
    | {f"{layer}.self_attn.rotary_emb.inv_freq" for layer in ("midlayer", "layers.0")}
)
_IDS = "eagle_aux_hidden_state_layer_ids"
_AFTER = re.compile(r"Eagle3\w*ForCausalLM")  # vLLM's own names of classes

Stored = Mapping[str, StoredTensor]


def is_eagle(stored: Stored) -> bool:
    """Whether the names are those of an EAGLE head."""
    return any(_LAYER.fullmatch(name) for name in stored)


def eagle_recipe(stored: Stored, config: Settings) -> Recipe:
    """Of a head of either version."""
    is_third = any(name in stored for name in _VERSION_3) or any(
        name.startswith("midlayer.") for name in stored
    )
    if not config.values:
        raise CheckpointError(
            "an EAGLE head without config.json cannot be loaded: the tensors do not tell the "
            "number of attention heads; keep config.json beside the weights"
        )
    return _third(stored, config) if is_third else _first(stored, config)


def _first(stored: Stored, config: Settings) -> Recipe:
    _require_one_layer(config)
    settings = _common(stored, config, version=1)
    settings["target_hidden_size"] = settings["layer"].hidden_size
    settings["embedding_norm"] = "embed_layernorm.weight" in stored
    vocab_size = config.integer("vocab_size") if config.has("vocab_size") else None
    rows = _rows(stored, "lm_head.weight") or vocab_size or 0
    shapes = eagle_shapes(
        settings,
        num_taps=1,
        columns=rows,
        vocab_size=vocab_size or _rows(stored, "embed_tokens.weight") or 0,
    )
    return Recipe(
        layout="an EAGLE-1 or EAGLE-2 head",
        family="eagle",
        settings=settings,
        names=_names(stored, shapes),
        shapes=shapes,
        ignored=_IGNORED,
        from_target=("taps",),
        vocab_size=vocab_size,
    )


def _third(stored: Stored, config: Settings) -> Recipe:
    layer = config.part("transformer_layer_config")
    is_speculators = bool(layer.values)
    kind = config.text("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise CheckpointError(f"config.json says speculators_model_type = {kind!r}, not eagle3")
    layer = layer if is_speculators else config
    _require_one_layer(layer)
    settings = _common(stored, layer, version=3)
    size = settings["layer"].hidden_size
    settings["target_hidden_size"] = config.integer("target_hidden_size", size)
    inner = config.part("eagle_config")
    settings["norm_before_residual"] = config.flag(
        "norm_before_residual", inner.flag("norm_before_residual")
    )
    settings["norm_before_fc"] = "input_norm.weight" in stored
    settings["fc_norm"] = "fc_norm.0.weight" in stored
    settings["feedback"] = _feedback(config, is_speculators)
    taps, notes = _taps(config)
    num_taps = _num_taps(stored, settings["target_hidden_size"], taps)
    vocab_size = layer.integer("vocab_size") if layer.has("vocab_size") else None
    vocabulary = _vocabulary(stored, config, vocab_size)
    shapes = eagle_shapes(
        settings,
        num_taps=num_taps,
        columns=_rows(stored, "lm_head.weight") or 0,
        vocab_size=vocab_size or _rows(stored, "embed_tokens.weight") or 0,
    )
    if taps is not None:
        settings["taps"] = taps
    verifier = config.part("speculators_config").part("verifier")
    return Recipe(
        layout="an EAGLE-3 head in speculators' layout" if is_speculators else "an EAGLE-3 head",
        family="eagle3",
        settings=settings,
        names=_names(stored, shapes),
        shapes=shapes,
        ignored=_IGNORED,
        from_target=() if taps is not None else ("taps",),
        vocabulary=vocabulary,
        vocab_size=vocab_size,
        base_model=verifier.optional_text("name_or_path"),
        base_architectures=tuple(map(str, verifier.values.get("architectures") or ())),
        notes=notes,
    )


def _common(stored: Stored, layer: Settings, *, version: int) -> dict[str, Any]:
    """Settings that both versions have."""
    parts = [match[2] for name in stored if (match := _LAYER.fullmatch(name))]
    return {
        "version": version,
        "layer": layer_config(layer, parts),
        "fc_bias": "fc.bias" in stored,
        "own_embedding": "embed_tokens.weight" in stored,
        "lm_head": "own" if "lm_head.weight" in stored else "target",
    }


def _require_one_layer(config: Settings) -> None:
    layers = config.integer("num_hidden_layers", 1)
    if layers != 1:
        raise CheckpointError(
            f"{config.where} says num_hidden_layers = {layers}; an EAGLE head has one layer"
        )


def _feedback(config: Settings, is_speculators: bool) -> str:
    """What the next level is fed; two projects mean different things by `norm_output`.

    In speculators and vLLM it says that the normed state is fed back. In SpecForge it says that
    there is a norm before the LM head, as everywhere.
    """
    architectures = config.values.get("architectures") or []
    if is_speculators or any(_AFTER.fullmatch(str(name)) for name in architectures):
        return "post_norm" if config.flag("norm_output") else "pre_norm"
    if not config.flag("norm_output", True):
        raise CheckpointError(
            "config.json says norm_output = false: an EAGLE-3 head without a norm before its LM "
            "head, which cannot be loaded"
        )
    return "pre_norm"


def _taps(config: Settings) -> tuple[tuple[int, ...] | None, tuple[str, ...]]:
    """Indices of the target's hidden states, and what there is to say about them.

    At the top level and in speculators an index is the number of layers below. In `eagle_config`
    it names the layer whose output is meant, which is one less.
    """
    inner = config.part("eagle_config").integers(_IDS)
    shifted = None if inner is None else tuple(index + 1 for index in inner)
    top = config.integers(_IDS)
    if top is None or shifted is None or top == shifted:
        return (shifted if top is None else top), ()
    return top, (
        f"config.json names hidden states {list(top)} for vLLM, but {list(shifted)} for SGLang; "
        "the former are used",
    )


def _num_taps(stored: Stored, size: int, taps: tuple[int, ...] | None) -> int:
    """How many states are fused, from the width of `fc`, which the config must agree with."""
    weight = stored.get("fc.weight")
    if weight is None or len(weight.shape) != 2:
        return len(taps) if taps else 3
    width = weight.shape[1]
    if width % size:
        raise CheckpointError(
            f"fc.weight reads {width} numbers, which is no multiple of the target's hidden size "
            f"{size} in config.json; set target_hidden_size there"
        )
    if taps is not None and len(taps) * size != width:
        raise CheckpointError(
            f"config.json names {len(taps)} hidden states of the target, {list(taps)}, but "
            f"fc.weight reads {width // size} of size {size}"
        )
    if taps is None and width // size != 3:
        raise CheckpointError(
            f"fc.weight reads {width // size} hidden states of size {size}, but config.json names "
            f"none; without {_IDS} there must be 3"
        )
    return width // size


def _vocabulary(stored: Stored, config: Settings, vocab_size: int | None) -> Tensor | None:
    rows = _rows(stored, "lm_head.weight")
    claimed = config.integer("draft_vocab_size") if config.has("draft_vocab_size") else None
    if rows is not None and claimed is not None and rows != claimed:
        raise CheckpointError(
            f"config.json says draft_vocab_size = {claimed}, but lm_head.weight has {rows} rows"
        )
    columns = rows or claimed or vocab_size
    return eagle_vocabulary(stored, columns=columns, vocab_size=vocab_size)


def _rows(stored: Stored, name: str) -> int | None:
    tensor = stored.get(name)
    return tensor.shape[0] if tensor is not None and tensor.shape else None


def _names(stored: Stored, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """For each of our names the file's."""
    layer = "midlayer." if any(name.startswith("midlayer.") for name in stored) else "layers.0."
    return {
        name: name.replace("layer.", layer, 1) if name.startswith("layer.") else name
        for name in shapes
    }
