"""What a checkpoint holds, without its target."""

from dataclasses import dataclass
from pathlib import Path

from treespec.heads.formats.card import sizes_of
from treespec.heads.formats.checkpoint import Checkpoint
from treespec.heads.formats.reading import read_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsReport:
    """What is known of draft heads from their files.

    Attributes:
        place: where they are.
        layout: the format.
        family: "medusa", "hydra", "eagle" or "eagle3".
        sizes: heads, layers, widths, by their names.
        taps: indices of the target's hidden states that they read; None for the last
            one, or with "eagle3" where the target decides.
        draft_vocab_size: D, how many tokens they can propose; None if the file does not tell.
        vocab_size: V, of the target; None if the file does not tell.
        has_map: whether they propose a part of the target's tokens.
        dtype: of the weights.
        num_parameters: how many there are.
        num_bytes: of the weights.
        base_model: what the target is called.
        base_is_tuned: whether the target was trained together with them.
        needs: what a target must be for them to run.
        notes: what is odd about the files.
    """

    place: str
    layout: str
    family: str
    sizes: dict[str, str]
    taps: tuple[int, ...] | None
    draft_vocab_size: int | None
    vocab_size: int | None
    has_map: bool
    dtype: str
    num_parameters: int
    num_bytes: int
    base_model: str | None
    base_is_tuned: bool
    needs: tuple[str, ...]
    notes: tuple[str, ...]


def inspect_heads(path_or_repo: str | Path) -> HeadsReport:
    """What there is at a place.

    Raises:
        CheckpointError: if it cannot be loaded, with the reason.
        DownloadError: if a repository cannot be had.
    """
    checkpoint = read_checkpoint(path_or_repo)
    recipe, tensors = checkpoint.recipe, checkpoint.tensors.values()
    vocabulary = recipe.vocabulary
    return HeadsReport(
        place=checkpoint.place,
        layout=recipe.layout,
        family=recipe.family,
        sizes=sizes_of(recipe),
        taps=recipe.settings.get("taps"),
        draft_vocab_size=recipe.vocab_size if vocabulary is None else len(vocabulary),
        vocab_size=recipe.vocab_size,
        has_map=vocabulary is not None,
        dtype=str(checkpoint.dtype).removeprefix("torch."),
        num_parameters=sum(tensor.numel() for tensor in tensors),
        num_bytes=sum(tensor.nbytes for tensor in tensors),
        base_model=recipe.base_model,
        base_is_tuned=recipe.base_is_tuned,
        needs=_needs(checkpoint),
        notes=recipe.notes,
    )


def _needs(checkpoint: Checkpoint) -> tuple[str, ...]:
    """What a target must have, as parts of a sentence."""
    recipe = checkpoint.recipe
    settings = recipe.settings
    fingerprint = recipe.fingerprint
    size = settings.get("target_hidden_size") or settings["hidden_size"]
    needs = [f"a target with hidden size {size}"]
    if recipe.vocab_size is not None:
        needs.append(f"{recipe.vocab_size} logits")
    if fingerprint is not None:
        needs.append(f"{fingerprint.num_hidden_layers} layers")
        needs.append(f"architecture {fingerprint.model_type}")
    elif "taps" in settings:
        needs.append(f"at least {max(settings['taps'])} layers")
    if fingerprint is not None and fingerprint.tokenizer:
        needs.append("the tokenizer that they were saved with")
    if recipe.base_is_tuned:
        needs.append("the weights in the same place")
    return tuple(needs)
