"""Draft heads to a folder in our own format."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from treespec.errors import CheckpointError
from treespec.heads.base import DraftHeads
from treespec.heads.eagle import EagleHead
from treespec.heads.formats.card import model_card
from treespec.heads.formats.checkpoint import Checkpoint, Recipe
from treespec.heads.formats.fingerprint import Fingerprint
from treespec.heads.formats.own_layout import VOCABULARY, own_config, own_shapes, settings_of
from treespec.heads.hydra import HydraHeads
from treespec.heads.medusa import MedusaHeads


def save_heads(
    heads: DraftHeads,
    folder: str | Path,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    base_model: str | None = None,
    acceptance: Mapping[str, float] | None = None,
) -> Path:
    """Write `config.json`, `model.safetensors` and a model card.

    Everything is written under another name first, so that a run that is killed leaves no half of
    a checkpoint.

    Args:
        heads: what to save.
        folder: where to; files of an earlier save are replaced.
        tokenizer: the target's, whose hash is stored; None for the one in the target's folder.
        base_model: what the target is called on the Hub; None for the name it was loaded by.
        acceptance: acceptance lengths by what they were measured on, for the card.

    Returns:
        The folder.

    Raises:
        CheckpointError: if a weight is not finite, or the folder is a file.
    """
    checkpoint = checkpoint_of(heads, tokenizer=tokenizer, base_model=base_model)
    tensors = dict(checkpoint.tensors)
    if checkpoint.recipe.vocabulary is not None:
        tensors[VOCABULARY] = checkpoint.recipe.vocabulary
    card = model_card(checkpoint, acceptance or {})
    return write_folder(folder, own_config(checkpoint.recipe), {"model.safetensors": tensors}, card)


def checkpoint_of(
    heads: DraftHeads,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    base_model: str | None = None,
) -> Checkpoint:
    """Heads without their target.

    Raises:
        CheckpointError: if a weight is not finite.
    """
    if not isinstance(heads, MedusaHeads | HydraHeads | EagleHead):
        raise CheckpointError(
            f"{type(heads).__name__} cannot be saved; of the families Medusa, Hydra and EAGLE can"
        )
    target = heads.borrowed.target
    vocabulary = heads.vocabulary
    settings = settings_of(heads.config)
    columns, vocab_size = heads.num_columns, heads.target_vocab_size
    shapes = own_shapes(heads.family, settings, columns=columns, vocab_size=vocab_size)
    tensors = {name: tensor.detach().cpu() for name, tensor in heads.state_dict().items()}
    broken = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if broken:
        raise CheckpointError(f"{broken[0]} has values that are not finite; nothing was saved")
    recipe = Recipe(
        layout=f"{heads.family} heads in treespec's own format",
        family=heads.family,
        settings=settings,
        names={name: name for name in shapes},
        shapes=shapes,
        vocabulary=None if vocabulary is None else vocabulary.ids.cpu(),
        vocab_size=vocab_size,
        base_model=base_model or name_of(target),
        fingerprint=Fingerprint.of(target, tokenizer),
    )
    return Checkpoint(place="the heads", recipe=recipe, tensors=tensors)


def name_of(target: PreTrainedModel) -> str | None:
    """What a target is called: its name on the Hub, or that of its folder, without the path."""
    name = str(target.name_or_path)
    if not name:
        return None
    return Path(name).name if Path(name).expanduser().exists() or name[0] in "./~" else name


def write_folder(
    folder: str | Path,
    config: Mapping[str, Any],
    weights: Mapping[str, Mapping[str, Tensor]],
    card: str | None = None,
) -> Path:
    """Write files of tensors, a config and a card; nothing has its name before all are whole.

    Raises:
        CheckpointError: if the folder is a file.
    """
    folder = Path(folder).expanduser().absolute()
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; give a folder to write to")
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for name, tensors in weights.items():
            _write(work / name, tensors)
        if card is not None:
            (work / "README.md").write_text(card, encoding="utf-8")
        # Last, so that a folder with a new config has the new weights.
        (work / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        _move(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A file of tensors, safetensors or a pickle by its ending."""
    if path.suffix == ".safetensors":
        save_file(_separate(tensors), path, metadata={"format": "pt"})
    else:
        torch.save(_separate(tensors), path)


def _move(work: Path, folder: Path) -> None:
    """Give finished files their names."""
    if not folder.exists():
        work.chmod(0o755)  # temporary folders are private
        work.rename(folder)
        return
    for path in sorted(work.iterdir(), key=lambda path: path.name == "config.json"):
        path.replace(folder / path.name)


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share no memory, as the format asks."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone().contiguous() if place in seen else tensor.contiguous()
        seen.add(place)
    return separate
