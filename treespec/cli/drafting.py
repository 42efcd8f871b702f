"""Trees and drafters from command-line options."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from treespec import (
    BestFirst,
    Chain,
    LookupDrafter,
    MergedDrafter,
    ModelDrafter,
    RecycleDrafter,
    StaticTree,
    TreeDecoder,
)
from treespec.cli.loading import Dtype, load_model, load_tokenizer
from treespec.drafters.base import Drafter
from treespec.errors import ConfigError, InvalidTreeError

_CHAIN_LENGTH = 10


class DrafterName(StrEnum):
    """Drafters that need no files but, perhaps, a draft model."""

    LOOKUP = "lookup"
    RECYCLE = "recycle"
    MERGED = "merged"
    MODEL = "model"
    NONE = "none"


DrafterOption = Annotated[
    DrafterName | None,
    typer.Option(
        metavar="DRAFTER",
        help="What drafts: lookup (continuations of earlier text), recycle (the model's own "
        "earlier guesses), merged (both, and the draft model if one is given), model (the draft "
        "model alone), none (plain decoding). By default model where --draft-model is given, "
        "merged otherwise.",
        show_default=False,
    ),
]
DraftModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL", help="Smaller causal LM with the same tokenizer.", show_default=False
    ),
]
TreeOption = Annotated[
    str | None,
    typer.Option(
        metavar="SHAPE",
        help="best-first (grown anew each step, most promising nodes first), chain (one path), or "
        "the paths of a static tree: lists of child ranks as JSON, '[[0],[1],[0,0]]', or a file "
        "that holds them. By default the library's choice.",
        show_default=False,
    ),
]
BudgetOption = Annotated[
    int | None, typer.Option(min=1, help="Most draft tokens a step.", show_default=False)
]
DepthOption = Annotated[
    int | None, typer.Option(min=1, help="Most levels of the tree.", show_default=False)
]
WidthOption = Annotated[
    int | None, typer.Option(min=1, help="Most children of a node.", show_default=False)
]


def tree_shape(
    tree: str | None, budget: int | None, depth: int | None, width: int | None
) -> BestFirst | StaticTree | None:
    """The tree that the options ask for; None for the library's choice."""
    given = {"--budget": budget, "--depth": depth, "--width": width}
    bounds = {name: value for name, value in given.items() if value is not None}
    if tree is None and not bounds:
        return None
    if tree in (None, "best-first"):
        return BestFirst(**{name.removeprefix("--"): value for name, value in bounds.items()})
    if tree == "chain":
        if width not in (None, 1):
            raise typer.BadParameter(
                "a chain has one child a node; leave the width out", param_hint="--width"
            )
        return Chain(min((v for v in (budget, depth) if v is not None), default=_CHAIN_LENGTH))
    if bounds:
        raise typer.BadParameter(
            f"the paths of a static tree say its size; leave {', '.join(bounds)} out",
            param_hint="--tree",
        )
    return _static_tree(str(tree))


def _static_tree(text: str) -> StaticTree:
    source = text
    if not text.lstrip().startswith("["):
        try:
            source = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(
                f"{text!r} is no shape and no readable file; give best-first, chain, or paths such "
                "as '[[0],[1],[0,0]]'",
                param_hint="--tree",
            ) from error
    try:
        paths = json.loads(source)
    except json.JSONDecodeError as error:
        raise typer.BadParameter(
            f"the paths are not JSON ({error}); write them as '[[0],[1],[0,0]]'",
            param_hint="--tree",
        ) from error
    if not _is_paths(paths):
        raise typer.BadParameter(
            "the paths are not lists of child ranks; write them as '[[0],[1],[0,0]]'",
            param_hint="--tree",
        )
    try:
        return StaticTree(paths)
    except (InvalidTreeError, ConfigError) as error:
        raise typer.BadParameter(str(error), param_hint="--tree") from error


def _is_paths(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(path, list) for path in value)
        and all(type(rank) is int for path in value for rank in path)
    )


def check_drafter(name: DrafterName | None, draft_model: str | None) -> None:
    """Refuse a drafter and a draft model that do not go together, before anything is loaded."""
    if name is DrafterName.MODEL and draft_model is None:
        raise typer.BadParameter(
            "the drafter 'model' needs a draft model; give one with --draft-model",
            param_hint="--drafter",
        )
    if draft_model is not None and name not in (None, DrafterName.MODEL, DrafterName.MERGED):
        raise typer.BadParameter(
            f"the drafter {str(name)!r} takes no draft model; leave it out, or choose model or "
            "merged",
            param_hint="--draft-model",
        )


def make_decoder(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    drafter: DrafterName | None,
    draft_model: str | None,
    shape: BestFirst | StaticTree | None,
    dtype: Dtype,
) -> TreeDecoder:
    """A decoder for a drafter that `check_drafter` has let pass."""
    if drafter is None and draft_model is None:
        return TreeDecoder(target, tree=shape)
    if drafter is DrafterName.NONE:
        return TreeDecoder(target, None, tree=shape)
    parts: list[Drafter] = []
    if drafter in (DrafterName.LOOKUP, DrafterName.MERGED):
        parts.append(LookupDrafter())
    if drafter in (DrafterName.RECYCLE, DrafterName.MERGED):
        parts.append(RecycleDrafter())
    if draft_model is not None:
        parts.append(_model_drafter(draft_model, target, tokenizer, dtype))
    return TreeDecoder(target, parts[0] if len(parts) == 1 else MergedDrafter(parts), tree=shape)


def _model_drafter(
    name: str, target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, dtype: Dtype
) -> ModelDrafter:
    device = torch.device(target.device)
    model = load_model(name, dtype=dtype, device=device, hint="--draft-model")
    own = load_tokenizer(name, hint="--draft-model")
    return ModelDrafter(model, tokenizer=own, target_tokenizer=tokenizer)
