"""The best static tree for heads, and where it is kept: in the heads' own `config.json`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from treespec.errors import CheckpointError, DataError, InvalidTreeError
from treespec.heads.formats.files import find_files
from treespec.heads.formats.own_layout import ENTRY
from treespec.training.files import replace_text
from treespec.training.results import Evaluation
from treespec.training.tables import markdown_of
from treespec.tree.planning import calibrated, to_paths
from treespec.tree.shapes import StaticTree

TREE_ENTRY = "treespec_tree"
"""Name of the tree in `config.json`; readers of heads pass over it."""
EVALUATION_FILE = "evaluation.json"

_CONFIG, _CARD = "config.json", "README.md"
_BEGIN, _END = "<!-- evaluation -->", "<!-- end of evaluation -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedTree:
    """A static tree and what it was made from.

    Attributes:
        paths: in Medusa's notation, as `StaticTree` takes them.
        budget: draft tokens that it was allowed.
        acceptance_length: tokens per pass of the target that the table promises.
        texts: what the table was measured on.
    """

    paths: tuple[tuple[int, ...], ...]
    budget: int
    acceptance_length: float
    texts: str

    @property
    def tree(self) -> StaticTree:
        """The tree, for `TreeDecoder`."""
        return StaticTree(self.paths)


def best_tree(found: Evaluation, budget: int, depth: int | None = None) -> CalibratedTree:
    """The static tree that accepts most, by the evaluation's table of depths and ranks.

    Args:
        found: an evaluation on texts like those to be decoded.
        budget: most draft tokens.
        depth: most levels; None for all that were measured.

    Raises:
        ConfigError: if a bound is out of range.
        DataError: if no guess was ever right, so that no tree is worth anything.
    """
    plan = calibrated(found.table, budget, depth)
    paths = to_paths(plan.topology)
    if not paths:
        raise DataError(
            f"a tree of {budget} draft tokens has no use for these heads: none of the first "
            f"{len(found.table[0]) if found.table else 0} guesses was right on {found.texts}; "
            "raise the budget, or train the heads longer"
        )
    return CalibratedTree(
        paths=tuple(tuple(path) for path in paths),
        budget=budget,
        acceptance_length=float(plan.acceptance_length),
        texts=found.texts,
    )


def store_tree(folder: str | Path, tree: CalibratedTree) -> Path:
    """Write a tree into the `config.json` of saved heads, in place of an earlier one.

    Returns:
        The config's path.

    Raises:
        CheckpointError: if the folder has no heads that `save_heads` wrote.
    """
    path = saved_folder(folder) / _CONFIG
    config = {**_config_of(path), TREE_ENTRY: asdict(tree)}
    replace_text(path, json.dumps(config, indent=2) + "\n")
    return path


def load_tree(path_or_repo: str | Path) -> CalibratedTree | None:
    """The tree that is stored with heads; None if there is none.

    Args:
        path_or_repo: as for `load_heads`.

    Raises:
        CheckpointError: if it is damaged, or there are no heads.
        DownloadError: if a repository cannot be had.
    """
    files = find_files(path_or_repo)
    entry = files.config.get(TREE_ENTRY)
    if entry is None:
        return None
    try:
        tree = CalibratedTree(
            paths=_paths(entry["paths"]),
            budget=int(entry["budget"]),
            acceptance_length=float(entry["acceptance_length"]),
            texts=str(entry["texts"]),
        )
        StaticTree(tree.paths)
    except (KeyError, TypeError, ValueError, InvalidTreeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(
            f"{TREE_ENTRY} in the {_CONFIG} of {files.place} is no tree: {reason}; run `treespec "
            "calibrate` again"
        ) from error
    return tree


def store_evaluation(folder: str | Path, found: Evaluation) -> Path:
    """Write an evaluation beside saved heads, and its tables into their model card.

    Returns:
        Path of the JSON file.

    Raises:
        CheckpointError: if the folder has no heads that `save_heads` wrote.
    """
    place = saved_folder(folder)
    card = place / _CARD
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    replace_text(card, _with_section(text, markdown_of(found)))
    path = place / EVALUATION_FILE
    replace_text(path, found.to_json())
    return path


def saved_folder(folder: str | Path) -> Path:
    """The folder of heads that `save_heads` wrote, to which a tree can be added.

    Raises:
        CheckpointError: if it is anything else.
    """
    place = Path(folder).expanduser()
    if not (place / _CONFIG).is_file():
        raise CheckpointError(
            f"{folder} is no folder of saved heads, which has a {_CONFIG}; give the folder that "
            "`treespec train` or save_heads wrote"
        )
    if not isinstance(_config_of(place / _CONFIG).get(ENTRY), Mapping):
        raise CheckpointError(
            f"{folder} holds heads in another project's format; write them anew with "
            "load_heads(...).save_pretrained(folder), and use that folder"
        )
    return place


def _with_section(card: str, section: str) -> str:
    """A card with this section in place of an earlier one, or at its end."""
    block = f"{_BEGIN}\n\n## Evaluation\n\n{section}\n{_END}\n"
    before, begin, rest = card.partition(_BEGIN)
    if not begin:
        return f"{card.rstrip()}\n\n{block}" if card.strip() else block
    _, _, after = rest.partition(_END)
    return before + block + after.removeprefix("\n")


def _config_of(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not JSON ({error}); save the heads again") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds no object of settings; save the heads again")
    return config


def _paths(value: object) -> tuple[tuple[int, ...], ...]:
    """Paths from JSON.

    Raises:
        TypeError: if they are no lists of child ranks.
    """
    if not isinstance(value, Sequence) or not value or isinstance(value, str):
        raise TypeError("paths must be lists of child ranks")
    for path in value:
        if not isinstance(path, Sequence) or any(type(rank) is not int for rank in path):
            raise TypeError(f"the path {path!r} is no list of child ranks")
    return tuple(tuple(path) for path in value)
