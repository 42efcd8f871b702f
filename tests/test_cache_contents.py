"""What stands in the caches, and at which positions, after every step of a generation."""

from collections.abc import Sequence
from itertools import product

import pytest
import torch
from torch import Tensor

from tests.families import VOCAB, build, family, tiny_model
from tests.rig import (
    DRAFTERS,
    SHAPES,
    Batch,
    ScriptedDrafter,
    by_chance,
    first,
    last,
    nowhere,
    plain_greedy,
    random_prompts,
)
from tests.watch import (
    Positions,
    WatchedTarget,
    WatchingDrafter,
    assert_cache_holds,
    fresh_forward,
)
from treespec import BestFirst, ModelDrafter, TreeDecoder
from treespec.drafters.base import Round

NEW_TOKENS = 24
PROMPTS = random_prompts([13, 4, 9, 6], VOCAB, seed=3)
# One for each way of storing: grouped heads, learned positions, one head for all, latent keys,
# sliding windows, chunks, and layers that reuse the keys and values of others.
NAMES = ("llama", "gpt2", "gpt_bigcode", "deepseek_v3", "gemma3", "llama4", "gemma3n")
DRAFTED = sorted(DRAFTERS)


def decode(
    decoder: TreeDecoder, batch: Batch = PROMPTS, new_tokens: int = NEW_TOKENS
) -> list[list[int]]:
    """New tokens of every row, greedily."""
    output = decoder.generate(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        max_new_tokens=new_tokens,
        do_sample=False,
    )
    return output.sequences[:, batch.width :].tolist()


def cases() -> list[object]:
    """Every family with one shape, and one family with every shape and drafter."""
    listed = [(name, "ragged", "half") for name in NAMES]
    listed += [("llama", shape, drafter) for shape, drafter in product(SHAPES, DRAFTED)]
    quick = {(name, "ragged", "half") for name in NAMES}
    quick |= {("llama", shape, "sibling") for shape in ("binary", "one_three_two", "ragged")}
    quick |= {("llama", "chain", "oracle"), ("llama", "star", "anti")}
    return [
        pytest.param(*case, id="-".join(case), marks=() if case in quick else pytest.mark.slow)
        for case in dict.fromkeys(listed)
    ]


@pytest.mark.parametrize(("name", "shape", "drafter"), cases())
def test_target_cache_and_logits_equal_a_fresh_forward_after_every_step(
    name: str, shape: str, drafter: str
) -> None:
    model = tiny_model(family(name), "sdpa")
    plain = plain_greedy(model, PROMPTS, NEW_TOKENS)
    steps = 0

    def look(rounds: Sequence[Round], committed: Sequence[Sequence[int]]) -> None:
        nonlocal steps
        steps += 1
        for row, (one, text) in enumerate(zip(rounds, committed, strict=True)):
            assert_cache_holds(target.cache, row, model, text[:-1])
            if one.tree is not None:
                path = list(one.acceptance.path)
                fresh = fresh_forward(model, text[:-1]).logits[-len(path) :]
                torch.testing.assert_close(one.output.logits[path], fresh, rtol=1e-4, atol=1e-4)

    watching = WatchingDrafter(DRAFTERS[drafter]([one.tokens for one in plain]), look)
    decoder = TreeDecoder(model, watching, tree=SHAPES[shape])
    decoder.target = target = WatchedTarget(model)

    assert decode(decoder) == [one.new for one in plain]
    assert steps > 4


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_draft_cache_equals_a_fresh_forward_after_every_step(name: str) -> None:
    model = tiny_model(family("llama"), "sdpa")
    draft = tiny_model(family(name), "sdpa")
    drafter = ModelDrafter(draft, least_gain=0.0)
    drafter.target = target = WatchedTarget(draft)
    depth, filled = 4, 0

    def look(rounds: Sequence[Round], committed: Sequence[Sequence[int]]) -> None:
        nonlocal filled
        for row, text in enumerate(committed):
            length = target.cache.lengths[row]
            assert_cache_holds(target.cache, row, draft, text[:length])
            if rounds[row].tree is not None and length:
                assert length >= len(text) - 1 - depth
                filled += 1

    tree = BestFirst(budget=12, depth=depth, width=3)
    decoder = TreeDecoder(model, WatchingDrafter(drafter, look), tree=tree)
    decode(decoder)
    assert filled > 20


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_positions_are_those_of_the_root_plus_depth_in_every_forward(name: str, side: str) -> None:
    model = build(family(name), "sdpa")
    plain = plain_greedy(model, PROMPTS, NEW_TOKENS)
    watching = WatchingDrafter(DRAFTERS["half"]([one.tokens for one in plain]))
    decoder = TreeDecoder(model, watching, tree=SHAPES["ragged"])
    positions = Positions()
    positions.watch(model)
    decode(decoder, Batch(PROMPTS.prompts, side))

    prefill, *steps = positions.recorded
    for row, prompt in enumerate(PROMPTS.prompts):
        assert prefill[row, : prompt.shape[1]].tolist() == list(range(prompt.shape[1]))
    for step, trees, roots in zip(steps, watching.trees, watching.roots, strict=True):
        for row, (tree, root) in enumerate(zip(trees, roots, strict=True)):
            assert step[row, : len(tree)].tolist() == (tree.topology.depths + root).tolist()


def test_rows_that_advance_at_different_speeds_keep_their_own_caches() -> None:
    model = tiny_model(family("llama"), "sdpa")
    plain = plain_greedy(model, PROMPTS, NEW_TOKENS)
    lengths: list[list[int]] = []

    def look(rounds: Sequence[Round], committed: Sequence[Sequence[int]]) -> None:
        lengths.append(list(target.cache.lengths))
        for row, text in enumerate(committed):
            assert_cache_holds(target.cache, row, model, text[:-1])

    places = [first, nowhere, by_chance(0.5), last]
    watching = WatchingDrafter(ScriptedDrafter([one.tokens for one in plain], places), look)
    decoder = TreeDecoder(model, watching, tree=SHAPES["ragged"])
    decoder.target = target = WatchedTarget(model)

    assert decode(decoder) == [one.new for one in plain]
    # the rejected row is alone at the end, and gets one token a step
    assert [len(step) for step in lengths[-3:]] == [1, 1, 1]
    assert lengths[-1][0] - lengths[-2][0] == 1


def test_generating_leaves_nothing_in_the_model() -> None:
    model = build(family("gemma3"), "sdpa")
    plain = plain_greedy(model, PROMPTS, NEW_TOKENS)

    def state() -> dict[str, object]:
        found: dict[str, object] = {"config": model.config.to_dict()}
        found["generation_config"] = model.generation_config.to_dict()
        for name, module in model.named_modules():
            found[name] = sorted(vars(module)), list(module._forward_pre_hooks)
        return found

    weights: dict[str, Tensor] = {name: one.clone() for name, one in model.state_dict().items()}
    before = state()
    decode(TreeDecoder(model, DRAFTERS["half"]([one.tokens for one in plain])))
    assert state() == before
    for name, one in model.state_dict().items():
        assert torch.equal(one, weights[name])


@pytest.mark.parametrize("lengths", [(24, 8, 48), (3, 60, 1)], ids=str)
def test_a_decoder_serves_calls_of_any_length_one_after_another(lengths: Sequence[int]) -> None:
    model = tiny_model(family("gpt2"), "sdpa")
    plain = plain_greedy(model, PROMPTS, max(lengths))
    drafter = DRAFTERS["sibling"]([one.tokens for one in plain])
    decoder = TreeDecoder(model, drafter, tree=SHAPES["right_leaning"])
    for length in lengths:
        assert decode(decoder, new_tokens=length) == [one.new[:length] for one in plain]
