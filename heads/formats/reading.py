"""A checkpoint from its files: the format is told from the tensors, whatever files are called."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from treespec.errors import CheckpointError, ConfigError
from treespec.heads.formats.checkpoint import Checkpoint, Recipe, read_tensors, some_of
from treespec.heads.formats.eagle_layouts import eagle_recipe, is_eagle
from treespec.heads.formats.files import find_files
from treespec.heads.formats.hydra_layouts import HYDRA, PREFIX, hydra_recipe
from treespec.heads.formats.medusa_layouts import MEDUSA, VLLM, medusa_recipe, vllm_recipe
from treespec.heads.formats.own_layout import ENTRY, own_recipe
from treespec.heads.formats.settings import Settings
from treespec.heads.formats.tensors import StoredTensor, open_tensors

Stored = Mapping[str, StoredTensor]
_KNOWN = "Medusa, Hydra, EAGLE-1 to EAGLE-3, vLLM's, speculators' and treespec's own"


def read_checkpoint(path_or_repo: str | Path) -> Checkpoint:
    """Heads from a folder, a file or a repository, checked as far as possible without a target.

    Raises:
        CheckpointError: naming what is wrong with the file.
        DownloadError: if a repository cannot be had.
    """
    files = find_files(path_or_repo)
    config = Settings(files.config)
    seen: list[Stored] = []
    found: list[tuple[str, Stored, Recipe]] = []
    for groups in (files.safetensors, files.pickles):
        if found:
            break  # pickles beside safetensors are copies
        for group in groups:
            tensors = open_tensors(group)
            seen.append(tensors)
            recipe = _recipe(files.place, tensors, config)
            if recipe is not None:
                found.append((group[0].name, tensors, recipe))
    if not found:
        raise CheckpointError(_unknown(files.place, seen))
    if len(found) > 1:
        raise CheckpointError(
            f"{files.place} holds several heads, in {some_of(name for name, _, _ in found)}; "
            "give the file that you mean"
        )
    _, stored, recipe = found[0]
    return read_tensors(files.place, recipe, stored)


def _recipe(place: str, stored: Stored, config: Settings) -> Recipe | None:
    """What a file holds; None if no heads.

    Raises:
        CheckpointError: if it holds heads that cannot be loaded, saying where they came from.
    """
    try:
        return _recognise(stored, config)
    except (CheckpointError, ConfigError) as error:
        raise CheckpointError(f"{place}: {error}") from error


def _recognise(stored: Stored, config: Settings) -> Recipe | None:
    if any(name.startswith("heads.0.first.") for name in stored):
        return own_recipe("hydra", stored, config)
    if any(name.startswith("layer.self_attn.") for name in stored):
        return own_recipe("eagle", stored, config)
    if any(MEDUSA.fullmatch(name) for name in stored):
        if config.has(ENTRY):
            return own_recipe("medusa", stored, config)
        return medusa_recipe(stored, config)
    if any(VLLM.fullmatch(name) for name in stored):
        return vllm_recipe(stored, config)
    if any(HYDRA.fullmatch(name) or name.startswith(PREFIX) for name in stored):
        return hydra_recipe(stored, config)
    if any(name.startswith("attn.self_attn.") for name in stored):
        return hydra_recipe(stored, config)
    return eagle_recipe(stored, config) if is_eagle(stored) else None


def _unknown(place: str, seen: Sequence[Stored]) -> str:
    """Why nothing in the files is loaded."""
    names = [name for stored in seen for name in stored]
    if not names:
        return f"{place} holds no tensors; the file is empty"
    looks = f"its tensors are {some_of(names)}"
    if any("lora_" in name for name in names):
        looks = "it looks like a LoRA adapter"
    elif any(name.startswith(("model.layers.", "transformer.h.")) for name in names):
        looks = "it looks like a whole language model, which can draft through ModelDrafter"
    return f"{place} holds no draft heads of a known format ({_KNOWN}): {looks}"
