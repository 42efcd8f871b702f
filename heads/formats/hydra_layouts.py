"""Hydra's layout."""

import re
from collections.abc import Mapping
from typing import Any

import torch

from treespec.errors import CheckpointError
from treespec.heads.formats.checkpoint import Recipe
from treespec.heads.formats.medusa_layouts import count
from treespec.heads.formats.settings import Settings, layer_variant
from treespec.heads.formats.shapes import hydra_shapes, prefix_shapes
from treespec.heads.formats.tensors import StoredTensor
from treespec.heads.layer import LayerConfig

HYDRA = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.(linear|res_connection)\.(weight|bias)")
_LM_HEAD = re.compile(r"hydra_lm_head\.(\d+)\.(1\.)?(weight|bias)")
PREFIX = "prefix_embeding_layer."  # as its authors spell it
_LAYER = f"{PREFIX}layers.0."
_STRAY = ("input_embed_fn.weight", f"{PREFIX}embed_tokens.weight")

Stored = Mapping[str, StoredTensor]


def hydra_recipe(stored: Stored, config: Settings) -> Recipe:
    """Of heads with or without a prefix layer.

    Raises:
        CheckpointError: for variants that guess from other inputs, and for layers that should be
            copies of one another and are not.
    """
    _require_known_variant(stored, config)
    found = [match for name in stored if (match := HYDRA.fullmatch(name))]
    num_heads = count(match[1] for match in found)
    if not num_heads:
        raise CheckpointError("Hydra's prefix layer without a single head; the file is incomplete")
    places = sorted({int(match[2]) for match in found})
    blocks = [place for place in places if place != places[0]]
    lm_heads = [match for name in stored if (match := _LM_HEAD.fullmatch(name))]
    weights = [stored[match[0]].shape for match in lm_heads if match[3] == "weight"]
    first = stored.get(f"hydra_mlp.0.{places[0] if places else 0}.linear.weight")
    settings: dict[str, Any] = {
        "num_heads": num_heads,
        "num_layers": len(places),
        "hidden_size": first.shape[0] if first and first.shape else 1,
        "prefix": None,
        "lm_head": "each" if lm_heads else "target",
        "lm_head_bias": any(match[3] == "bias" for match in lm_heads),
    }
    shapes = hydra_shapes(settings, weights[0][0] if weights and weights[0] else 0)
    inner = "1." if any(match[2] for match in lm_heads) else ""
    names = {name: _their_name(name, places, inner) for name in shapes}
    _require_equal_copies(stored, num_heads, blocks)
    copies = {match[0] for match in found if int(match[2]) in blocks[1:]}
    if any(name.startswith(PREFIX) for name in stored):
        settings["prefix"] = _prefix_layer(stored, settings["hidden_size"])
        prefix = prefix_shapes(settings["prefix"])
        shapes.update(prefix)
        names.update({name: _their_prefix_name(name) for name in prefix})
    return Recipe(
        layout="Hydra heads",
        family="hydra",
        settings=settings,
        names=names,
        shapes=shapes,
        ignored=frozenset({*copies, *_STRAY, f"{_LAYER}self_attn.rotary_emb.inv_freq"}),
        from_target=("prefix",) if settings["prefix"] else (),
        vocab_size=weights[0][0] if weights and weights[0] else None,
        base_model=config.optional_text("base_model_name_or_path"),
        notes=_count_notes(config, num_heads, len(places)),
    )


def _require_known_variant(stored: Stored, config: Settings) -> None:
    if any(name.startswith("attn.") for name in stored):
        raise CheckpointError(
            "these are Hydra heads of the architecture eagle-attn, which cannot be loaded; those "
            "called mlp and prefix-mlp can"
        )
    if not config.flag("grounded_heads", True):
        raise CheckpointError(
            "config.json says grounded_heads = false: heads that do not see the tokens before "
            "them; only grounded ones can be loaded"
        )
    offset = config.values.get("hidden_state_offset", 0)
    if offset not in (0, None):
        raise CheckpointError(
            f"config.json says hidden_state_offset = {offset!r}; only 0 can be loaded"
        )


def _their_name(name: str, places: list[int], inner: str) -> str:
    """The name in the file of one of ours; `inner` stands in front of a part of an LM head."""
    _, head, part, rest = name.split(".", 3)
    if part == "lm_head":
        return f"hydra_lm_head.{head}.{inner}{rest}"
    rest = rest.replace("residual.", "res_connection.")
    return f"hydra_mlp.{head}.{places[0 if part == 'first' else 1]}.{rest}"


def _their_prefix_name(name: str) -> str:
    part = name.removeprefix("prefix.")
    return f"{PREFIX}{part}" if part.startswith("norm.") else f"{_LAYER}{part}"


def _require_equal_copies(stored: Stored, num_heads: int, blocks: list[int]) -> None:
    """All blocks of a head are one module, saved once for each use."""
    for head in range(num_heads):
        for part in ("linear.weight", "linear.bias"):
            names = [f"hydra_mlp.{head}.{place}.{part}" for place in blocks]
            missing = [name for name in names if name not in stored]
            if missing and len(missing) < len(names):
                raise CheckpointError(f"Hydra heads without {missing[0]}; the file is incomplete")
            if missing or len(names) < 2:
                continue
            one = stored[names[0]].read()
            for name in names[1:]:
                if not torch.equal(one, stored[name].read()):
                    raise CheckpointError(
                        f"{names[0]} and {name} differ, but Hydra's layers after the first are one "
                        "module; heads with layers of their own cannot be loaded"
                    )


def _prefix_layer(stored: Stored, hidden_size: int) -> LayerConfig:
    """The prefix layer as far as its tensors tell; the target knows the number of its heads."""
    parts = {name.removeprefix(_LAYER) for name in stored if name.startswith(_LAYER)}

    def rows(name: str) -> int:
        tensor = stored.get(_LAYER + name)
        return tensor.shape[0] if tensor is not None and tensor.shape else 1

    variant: dict[str, Any] = dict(layer_variant(parts))
    return LayerConfig(
        hidden_size=hidden_size,
        intermediate_size=rows("mlp.gate_proj.weight"),
        num_attention_heads=rows("self_attn.q_proj.weight"),
        num_key_value_heads=rows("self_attn.k_proj.weight"),
        head_dim=1,
        **variant,
    )


def _count_notes(config: Settings, num_heads: int, num_layers: int) -> tuple[str, ...]:
    claims = {"hydra_num_heads": num_heads, "hydra_num_layers": num_layers}
    return tuple(
        f"config.json says {name} = {config.values[name]}, but there are {found}"
        for name, found in claims.items()
        if config.has(name) and config.values[name] != found
    )
