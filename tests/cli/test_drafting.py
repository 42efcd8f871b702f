"""What the options about trees and drafters come to."""

import pytest
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.cli.conftest import byte_tokenizer
from treespec import (
    BestFirst,
    Chain,
    LookupDrafter,
    MergedDrafter,
    ModelDrafter,
    RecycleDrafter,
    StaticTree,
)
from treespec.cli.drafting import DrafterName, make_decoder, tree_shape
from treespec.cli.loading import Dtype
from treespec.drafters.plain import PlainDrafter


@pytest.mark.parametrize(
    ("tree", "budget", "depth", "width", "shape"),
    [
        (None, None, None, None, None),
        ("best-first", None, None, None, BestFirst()),
        ("best-first", 9, 4, 2, BestFirst(budget=9, depth=4, width=2)),
        (None, 9, None, None, BestFirst(budget=9)),
        (None, None, 4, None, BestFirst(depth=4)),
        ("chain", None, None, None, Chain(10)),
        ("chain", 7, None, None, Chain(7)),
        ("chain", None, 7, 1, Chain(7)),
        ("chain", 7, 3, None, Chain(3)),
        ("[[0], [1], [0, 0]]", None, None, None, StaticTree([[0], [1], [0, 0]])),
    ],
)
def test_options_say_the_shape(
    tree: str | None,
    budget: int | None,
    depth: int | None,
    width: int | None,
    shape: BestFirst | StaticTree | None,
) -> None:
    assert tree_shape(tree, budget, depth, width) == shape


@pytest.fixture(scope="module")
def target(model: str) -> PreTrainedModel:
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(model)
    return loaded


@pytest.mark.parametrize(
    ("name", "has_draft_model", "kind"),
    [
        (None, False, MergedDrafter),
        (None, True, ModelDrafter),
        (DrafterName.LOOKUP, False, LookupDrafter),
        (DrafterName.RECYCLE, False, RecycleDrafter),
        (DrafterName.MERGED, False, MergedDrafter),
        (DrafterName.MERGED, True, MergedDrafter),
        (DrafterName.MODEL, True, ModelDrafter),
        (DrafterName.NONE, False, PlainDrafter),
    ],
)
def test_options_say_the_drafter(
    target: PreTrainedModel,
    draft: str,
    name: DrafterName | None,
    has_draft_model: bool,
    kind: type,
) -> None:
    decoder = make_decoder(
        target,
        byte_tokenizer(),
        drafter=name,
        draft_model=str(draft) if has_draft_model else None,
        shape=Chain(3),
        dtype=Dtype.AUTO,
    )

    assert type(decoder.drafter) is kind
    assert decoder.tree == Chain(3)
