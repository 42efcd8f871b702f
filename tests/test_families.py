"""Greedy tree decoding of many families against `model.generate`, and the refusal of the others."""

import zlib
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tests.families import FAMILIES, REFUSED, VOCAB, Family, build, family, tiny_model
from tests.matrix import (
    NEW_TOKENS,
    PROMPTS,
    SHARE,
    TREES,
    Case,
    cases_of,
    default_share,
    plain_texts,
    run_case,
)
from tests.rig import DRAFTERS, Batch, NearTies, plain_greedy, random_prompts
from treespec import TokenTree, TreeDecoder, UnsupportedTargetError
from treespec.target import Target

PAGE = Path(__file__).parents[1] / "docs" / "supported_models.md"


def matrix() -> list[object]:
    """All cases; all but a fixed tenth, which has every family, are slow."""
    listed = []
    for each in FAMILIES:
        cases = cases_of(each, each.attentions)
        chosen = set(default_share(cases))
        for case in cases:
            marks = () if case in chosen else (pytest.mark.slow,)
            listed.append(pytest.param(case, id=case.name, marks=marks))
    return listed


@pytest.mark.parametrize("case", matrix())
def test_tree_text_equals_plain_greedy_text(case: Case, near_ties: NearTies) -> None:
    found = run_case(case, near_ties)
    if case.drafter == "anti":
        assert all(stats.accepted == 0 for stats in found)
    else:
        assert all(stats.accepted > 0 for stats in found)


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


# One row only: torch 2.13 generates C++ that does not compile for batches on a CPU.
@pytest.mark.slow
@pytest.mark.filterwarnings("default::DeprecationWarning")  # torch's compiler uses its own past
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
def test_tree_logits_on_flex_attention_equal_forwards_of_every_path(name: str) -> None:
    target = Target(build(family(name), "flex_attention"))
    tree = TokenTree.from_lists([-1, 0, 0, 1, 2, 2, 5, 6], [5, 8, 9, 1, 2, 3, 4, 6])
    prompt = PROMPTS.prompts[0][0]
    cache = target.new_cache(1)
    target.prefill(cache, [prompt])
    logits = target.score(cache, [tree])[0].logits
    with torch.no_grad():
        expected = tree_logits_by_paths(tiny_model(family(name), "eager"), prompt.tolist(), tree)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("each", REFUSED, ids=str)
def test_models_that_cannot_run_trees_are_refused_by_name(each: Family) -> None:
    model = build(each, "eager")
    name = type(model).__name__
    with pytest.raises(UnsupportedTargetError, match=name):
        TreeDecoder(model)
    assert f"`{name}`" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("attention", ["flash_attention_2", "flash_attention_3"])
def test_attention_without_masks_is_refused_with_what_to_load_instead(attention: str) -> None:
    model = build(family("llama"), "eager")
    model.config._attn_implementation = attention
    with pytest.raises(UnsupportedTargetError, match=rf"LlamaForCausalLM.*{attention}.*sdpa"):
        TreeDecoder(model)


def test_the_page_on_supported_models_has_every_family_that_is_tested() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [each.name for each in FAMILIES if f"| {each.name} |" not in page] == []
