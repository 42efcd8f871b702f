"""Medusa's layouts: the first release's, full models, heads alone, and vLLM's."""

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

from treespec.errors import CheckpointError
from treespec.heads.formats.checkpoint import Recipe
from treespec.heads.formats.settings import Settings
from treespec.heads.formats.shapes import medusa_shapes
from treespec.heads.formats.tensors import StoredTensor, read_ids
from treespec.heads.vocabulary import DraftVocabulary

MEDUSA = re.compile(r"(medusa_head\.)?(\d+)\.(\d+)\.(linear\.)?(weight|bias)")
VLLM = re.compile(r"(medusa_heads\.)?blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
_VLLM_HEAD = re.compile(r"(medusa_heads\.)?lm_heads?(\.\d+)?\.weight")

Stored = Mapping[str, StoredTensor]


def medusa_recipe(stored: Stored, config: Settings) -> Recipe:
    """Of the first release, of a full model, and of heads that use the target's LM head.

    The counts are those of the tensors: configs in circulation say two heads where there are five.
    """
    found = [match for name in stored if (match := MEDUSA.fullmatch(name))]
    prefix = "medusa_head." if any(match[1] for match in found) else ""
    found = [match for match in found if (match[1] or "") == prefix]
    blocks = [match for match in found if match[4]]
    num_heads = count(match[2] for match in found)
    num_layers = count(match[3] for match in blocks) or 1
    first = next((stored[match[0]].shape for match in blocks if match[5] == "weight"), (1,))
    rows = [
        stored[match[0]].shape[0]
        for match in found
        if not match[4] and int(match[3]) == num_layers and stored[match[0]].shape
    ]
    settings = {
        "num_heads": num_heads,
        "num_layers": num_layers,
        "hidden_size": first[-1],
        "lm_head": "each" if rows else "target",
        "block_bias": any(match[5] == "bias" for match in blocks),
    }
    shapes = medusa_shapes(settings, rows[0] if rows else 0)
    base = frozenset(name for name in stored if prefix and not name.startswith(prefix))
    layout = "Medusa heads" if rows else "Medusa heads without LM heads of their own"
    return Recipe(
        layout=f"{layout} inside a full model" if base else layout,
        family="medusa",
        settings=settings,
        names={name: prefix + name for name in shapes},
        shapes=shapes,
        ignored=base,
        vocab_size=rows[0] if rows else None,
        base_model=config.optional_text("base_model_name_or_path"),
        base_is_tuned=bool(base),
        notes=_count_notes(config, num_heads, num_layers),
    )


def vllm_recipe(stored: Stored, config: Settings) -> Recipe:
    """Of heads in vLLM's layout."""
    found = [match for name in stored if (match := VLLM.fullmatch(name))]
    prefix = "medusa_heads." if any(match[1] for match in found) else ""
    num_heads = count(match[2] for match in found)
    num_layers = count(match[3] for match in found)
    first = next((stored[match[0]].shape for match in found if match[4] == "weight"), (1,))
    heads = [name for name in stored if _VLLM_HEAD.fullmatch(name)]
    is_shared = config.flag("original_lm_head") or f"{prefix}lm_head.weight" in heads
    is_shared = is_shared or (num_heads > 1 and heads == [f"{prefix}lm_heads.0.weight"])
    rows = stored[heads[0]].shape[0] if heads and stored[heads[0]].shape else 0
    map_name = next((name for name in ("token_map", f"{prefix}token_map") if name in stored), None)
    size = config.integer("vocab_size") if config.has("vocab_size") else None
    vocabulary = None if map_name is None else _vocabulary(stored[map_name], map_name, size)
    notes = _count_notes(config, num_heads, num_layers)
    if vocabulary is not None and not is_shared and rows and rows == size:
        vocabulary = None
        notes = (*notes, "token_map is not used, because the LM heads have a row for every token")
    if vocabulary is not None and not is_shared and rows not in (0, len(vocabulary)):
        raise CheckpointError(
            f"token_map names {len(vocabulary)} tokens, but the LM heads have {rows} rows; cut "
            "them to the rows that the map names"
        )
    settings = {
        "num_heads": num_heads,
        "num_layers": num_layers,
        "hidden_size": first[-1],
        "lm_head": "each" if heads and not is_shared else "target",
        "block_bias": any(match[4] == "bias" for match in found),
    }
    shapes = medusa_shapes(settings, rows)
    return Recipe(
        layout="Medusa heads in vLLM's layout",
        family="medusa",
        settings=settings,
        names={name: prefix + _vllm_name(name) for name in shapes},
        shapes=shapes,
        ignored=frozenset((*([map_name] if map_name else []), *(heads if is_shared else []))),
        vocabulary=vocabulary,
        vocab_size=size if vocabulary is not None or is_shared else rows or size,
        shared_lm_head=heads[0] if heads and is_shared else None,
        notes=notes,
    )


def count(indices: Iterable[str]) -> int:
    """How many there are if none is missing: the largest index and one.

    Raises:
        CheckpointError: for an index that no checkpoint has.
    """
    largest = max((int(index) for index in indices), default=-1)
    if largest > 255:
        raise CheckpointError(f"a tensor has the index {largest}, more than any heads have")
    return largest + 1


def vllm_names(names: Iterable[str]) -> dict[str, str]:
    """For each of our names vLLM's."""
    return {name: _vllm_name(name) for name in names}


def _vocabulary(stored: StoredTensor, name: str, vocab_size: int | None) -> Tensor:
    """The ids in a map, within the vocabulary as far as its size is known."""
    ids = read_ids(name, stored)
    if vocab_size is not None:
        DraftVocabulary(ids, vocab_size)
    return ids


def _vllm_name(name: str) -> str:
    head, layer, rest = name.split(".", 2)
    if rest.startswith("linear."):
        return f"blocks.{head}.layers.{layer}.{rest.removeprefix('linear.')}"
    return f"lm_heads.{head}.weight"


def _count_notes(config: Settings, num_heads: int, num_layers: int) -> tuple[str, ...]:
    """Where the config counts otherwise."""
    claims = {
        "medusa_num_heads": num_heads,
        "num_heads": num_heads,
        "medusa_num_layers": num_layers,
        "num_hidden_layers": num_layers,
    }
    if "medusa_num_heads" in config.values:  # in a full model the others speak of the target
        del claims["num_heads"], claims["num_hidden_layers"]
    elif "hidden_act" in config.values:
        return ()
    return tuple(
        f"config.json says {name} = {config.values[name]}, but there are {found}"
        for name, found in claims.items()
        if config.has(name) and config.values[name] != found
    )
