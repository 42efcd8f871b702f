"""Greedy tree decoding of many families against `model.generate`, and the refusal of the others."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import pytest
import torch
from transformers import PreTrainedModel

from tests.families import FAMILIES, REFUSED, VOCAB, Family, build, family, tiny_model
from tests.rig import (
    DRAFTERS,
    SHAPES,
    Batch,
    NearTies,
    Plain,
    plain_greedy,
    random_prompts,
)
from treespec import BestFirst, StaticTree, TokenTree, TreeDecoder, UnsupportedTargetError
from treespec.target import Target

pytest_plugins = ("tests.near_ties",)

NEW_TOKENS = 64
# The longest is longer than every family's window, the shortest is shorter.
PROMPTS = random_prompts([19, 12, 7, 3], VOCAB)
LAYOUTS = ("single", "left", "right")
TREES: dict[str, StaticTree | BestFirst] = {
    **SHAPES,
    "best_first": BestFirst(budget=11, depth=5, width=3),
}
# One case in so many runs by default.
SHARE = 10


@dataclass(frozen=True)
class Case:
    """One entry of the matrix."""

    family: Family
    attention: str
    drafter: str
    layout: str

    @property
    def name(self) -> str:
        return f"{self.family.name}-{self.attention}-{self.drafter}-{self.layout}"

    @property
    def digest(self) -> int:
        return zlib.crc32(self.name.encode())

    @property
    def tree(self) -> StaticTree | BestFirst:
        """Each case has one of the shapes, so that every family meets several."""
        return list(TREES.values())[self.digest // SHARE % len(TREES)]

    @property
    def batch(self) -> Batch:
        if self.layout == "single":
            return Batch(PROMPTS.prompts[:1])
        return Batch(PROMPTS.prompts, self.layout)


def matrix() -> Iterator[object]:
    """All cases; all but a fixed tenth, which has every family, are slow."""
    for each in FAMILIES:
        cases = [
            Case(each, attention, drafter, layout)
            for attention, drafter, layout in product(each.attentions, DRAFTERS, LAYOUTS)
        ]
        chosen = [case for case in cases if case.digest % SHARE == 0]
        chosen = chosen or [min(cases, key=lambda case: case.digest)]
        for case in cases:
            marks = () if case in chosen else (pytest.mark.slow,)
            yield pytest.param(case, id=case.name, marks=marks)


@lru_cache(maxsize=8)
def plain_texts(each: Family, attention: str) -> list[Plain]:
    """What the tiny model says to the prompts."""
    return plain_greedy(tiny_model(each, attention), PROMPTS, NEW_TOKENS)


@pytest.mark.parametrize("case", list(matrix()))
def test_tree_text_equals_plain_greedy_text(case: Case, near_ties: NearTies) -> None:
    model = tiny_model(case.family, case.attention)
    batch = case.batch
    plain = plain_texts(case.family, case.attention)[: len(batch.prompts)]
    drafter = DRAFTERS[case.drafter]([one.tokens for one in plain])
    decoder = TreeDecoder(model, drafter, tree=case.tree)

    output = decoder.generate(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
    )

    assert torch.equal(output.sequences[:, : batch.width], batch.input_ids)
    for row, one in enumerate(plain):
        near_ties.check(one, output.sequences[row, batch.width :].tolist(), f"row {row}")
    if case.drafter == "anti":
        assert all(stats.accepted == 0 for stats in output.stats)
    else:
        assert all(stats.accepted > 0 for stats in output.stats)


@pytest.mark.parametrize(
    "each",
    [
        pytest.param(
            each,
            id=each.name,
            marks=() if zlib.crc32(each.name.encode()) % SHARE == 0 else pytest.mark.slow,
        )
        for each in FAMILIES
    ],
)
def test_the_hook_behind_generate_gives_what_generate_gives(
    each: Family, near_ties: NearTies
) -> None:
    attention = each.attentions[-1]
    model = tiny_model(each, attention)
    plain = plain_texts(each, attention)
    drafter = DRAFTERS["sibling"]([one.tokens for one in plain])
    decoder = TreeDecoder(model, drafter, tree=TREES["ragged"])

    found = model.generate(
        PROMPTS.input_ids,
        attention_mask=PROMPTS.attention_mask,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        custom_generate=decoder.hook(),
    )

    assert torch.equal(found[:, : PROMPTS.width], PROMPTS.input_ids)
    for row, one in enumerate(plain):
        near_ties.check(one, found[row, PROMPTS.width :].tolist(), f"row {row}")


@pytest.mark.slow
@pytest.mark.parametrize("each", FAMILIES, ids=str)
def test_plain_text_does_not_depend_on_left_padding(each: Family, near_ties: NearTies) -> None:
    """Otherwise the reference of the matrix would be wrong."""
    attention = each.attentions[-1]
    for row, one in enumerate(plain_texts(each, attention)):
        single = Batch(PROMPTS.prompts[row : row + 1])
        alone = plain_greedy(tiny_model(each, attention), single, NEW_TOKENS)[0]
        near_ties.check(one, alone.new, f"row {row}")


def tree_logits_by_paths(
    model: PreTrainedModel, prompt: list[int], tree: TokenTree
) -> torch.Tensor:
    """Logits of every node, from a plain forward of every leaf's path."""
    rows = {}
    for leaf, children in enumerate(tree.topology.children):
        if not children:
            text = torch.tensor([[*prompt, *tree.path_tokens(leaf)]])
            logits = model(text, use_cache=False).logits[0, len(prompt) :]
            rows.update(zip(tree.topology.path_to(leaf), logits, strict=True))
    return torch.stack([rows[node] for node in range(len(tree))])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("each", FAMILIES, ids=str)
@torch.no_grad()
def test_tree_logits_of_a_ragged_batch_equal_forwards_of_every_path(
    each: Family, attention: str
) -> None:
    if attention not in each.attentions:
        pytest.skip(f"{each} has no {attention} attention")
    model = tiny_model(each, attention)
    target = Target(model)
    prompts = [prompt[0] for prompt in PROMPTS.prompts]
    trees = [
        TokenTree.from_lists([-1, 0, 0, 1, 2, 2, 5, 6], [5, 8, 9, 1, 2, 3, 4, 6]),
        TokenTree.root_only(7),
        TokenTree.from_lists([-1, 0, 1, 2, 2], [9, 9, 9, 9, 3]),
        TokenTree.from_lists([-1, 0, 0, 0], [1, 2, 3, 4]),
    ]
    cache = target.new_cache(len(prompts), capacity=8)

    target.prefill(cache, prompts)
    outputs = target.score(cache, trees)

    for prompt, tree, output in zip(prompts, trees, outputs, strict=True):
        expected = tree_logits_by_paths(model, prompt.tolist(), tree)
        torch.testing.assert_close(output.logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "lengths",
    [
        (8,),
        (3, 7, 8, 9, 30),
        *(pytest.param((length,), marks=pytest.mark.slow) for length in (3, 7, 9, 30)),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["mistral", "gemma3", "llama4", "gpt_oss"])
def test_text_around_the_window_equals_plain_text(
    name: str, lengths: tuple[int, ...], attention: str, near_ties: NearTies
) -> None:
    each = family(name)
    if attention not in each.attentions:
        pytest.skip(f"{each} has no {attention} attention")
    model = tiny_model(each, attention)
    batch = random_prompts(lengths, VOCAB, seed=1)
    plain = plain_greedy(model, batch, 40)
    for tree in (TREES["chain"], TREES["right_leaning"]):
        drafter = DRAFTERS["sibling"]([one.tokens for one in plain])
        output = TreeDecoder(model, drafter, tree=tree).generate(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            max_new_tokens=40,
            do_sample=False,
        )
        for row, one in enumerate(plain):
            found = output.sequences[row, batch.width :].tolist()
            near_ties.check(one, found, f"prompt of {lengths[row]}")


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("each", [each for each in FAMILIES if each.flex], ids=str)
def test_flex_attention_gives_plain_text(each: Family, drafter: str, near_ties: NearTies) -> None:
    model = build(each, "flex_attention")
    plain = plain_texts(each, "eager")
    decoder = TreeDecoder(
        model, DRAFTERS[drafter]([one.tokens for one in plain]), tree=TREES["ragged"]
    )
    output = decoder.generate(
        input_ids=PROMPTS.input_ids,
        attention_mask=PROMPTS.attention_mask,
        max_new_tokens=16,
        do_sample=False,
    )
    for row, one in enumerate(plain):
        found = output.sequences[row, PROMPTS.width :].tolist()
        near_ties.check(Plain(one.tokens, one.new[:16], one.gaps), found, f"row {row}")


@pytest.mark.parametrize("each", REFUSED, ids=str)
def test_models_that_cannot_run_trees_are_refused_by_name(each: Family) -> None:
    model = build(each, "eager")
    with pytest.raises(UnsupportedTargetError, match=type(model).__name__):
        TreeDecoder(model)


@pytest.mark.parametrize("attention", ["flash_attention_2", "flash_attention_3"])
def test_attention_without_masks_is_refused_with_what_to_load_instead(attention: str) -> None:
    model = build(family("llama"), "eager")
    model.config._attn_implementation = attention
    with pytest.raises(UnsupportedTargetError, match=rf"LlamaForCausalLM.*{attention}.*sdpa"):
        TreeDecoder(model)
