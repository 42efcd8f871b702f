"""The target: trees, prefill and taps give what plain forwards of the same texts give."""

import pytest
import torch

from tests.families import VOCAB, build, family, tiny_model
from treespec.target import Target
from treespec.tree.token_tree import TokenTree

LLAMA = "llama"


@pytest.fixture
def target() -> Target:
    return Target(tiny_model(family(LLAMA), "sdpa"))


def texts(*lengths: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(VOCAB, (length,), generator=generator) for length in lengths]


def plain_logits(target: Target, ids: torch.Tensor) -> torch.Tensor:
    return target.model(ids[None], use_cache=False).logits[0]


def test_prefill_of_ragged_rows_gives_each_rows_last_logits(target):
    prompts = texts(9, 1, 5)
    outputs = target.prefill(target.new_cache(3), prompts)

    for prompt, output in zip(prompts, outputs, strict=True):
        torch.testing.assert_close(
            output.logits, plain_logits(target, prompt)[-1:], atol=1e-5, rtol=0
        )


def test_prefill_in_chunks_equals_prefill_at_once(target, monkeypatch):
    prompts = texts(23, 7)
    whole = target.prefill(target.new_cache(2), prompts, taps=(1,), top=3)
    monkeypatch.setattr("treespec.target.PREFILL_CHUNK", 5)
    chunked = target.prefill(target.new_cache(2), prompts, taps=(1,), top=3)

    for one, other in zip(whole, chunked, strict=True):
        torch.testing.assert_close(one.logits, other.logits, atol=1e-5, rtol=0)
        torch.testing.assert_close(one.hidden[1], other.hidden[1], atol=1e-5, rtol=0)
        assert torch.equal(one.top_ids, other.top_ids)


def test_prefill_returns_the_most_probable_ids_of_every_position(target):
    (prompt,) = texts(6)
    output = target.prefill(target.new_cache(1), [prompt], top=4)[0]

    assert torch.equal(output.top_ids, plain_logits(target, prompt).topk(4).indices)


@pytest.mark.parametrize("tap", [0, 1, -1])
def test_taps_are_the_models_own_hidden_states(target, tap):
    (prompt,) = texts(6)
    states = target.model(prompt[None], output_hidden_states=True, use_cache=False).hidden_states
    index = tap % len(states)
    cache = target.new_cache(1)
    prefill = target.prefill(cache, [prompt[:4]], taps=(index,))[0]
    tree = TokenTree.from_lists([-1, 0], prompt[4:].tolist())
    step = target.score(cache, [tree], taps=(index,))[0]

    found = torch.cat([prefill.hidden[index], step.hidden[index]])

    torch.testing.assert_close(found, states[index][0], atol=1e-5, rtol=0)


def test_extending_level_by_level_equals_scoring_the_tree_at_once(target):
    from treespec.attention import NewNodes

    (prompt,) = texts(6)
    tree = TokenTree.from_lists([-1, 0, 0, 1, 2], [4, 8, 15, 16, 23])
    at_once = target.new_cache(1)
    target.prefill(at_once, [prompt])
    expected = target.score(at_once, [tree])[0].logits
    by_level = target.new_cache(1)
    target.prefill(by_level, [prompt])
    found = []
    for start, end in [(0, 1), (1, 3), (3, 5)]:
        nodes = NewNodes(
            tree.tokens[start:end],
            tree.topology.depths[:end],
            tree.topology.ancestor_mask[start:end, :end],
        )
        found.append(target.extend(by_level, [nodes])[0].logits)

    torch.testing.assert_close(torch.cat(found), expected, atol=1e-5, rtol=0)


def test_changing_a_sibling_leaves_the_other_nodes_logits_alone(target):
    (prompt,) = texts(6)
    outputs = []
    for token in (15, 42):
        cache = target.new_cache(1)
        target.prefill(cache, [prompt])
        tree = TokenTree.from_lists([-1, 0, 0, 1, 1], [4, 8, token, 16, 23])
        outputs.append(target.score(cache, [tree])[0].logits)

    assert torch.equal(outputs[0][[0, 1, 3, 4]], outputs[1][[0, 1, 3, 4]])
    assert not torch.equal(outputs[0][2], outputs[1][2])


def test_positions_are_prefix_length_plus_depth(target, monkeypatch):
    seen = []
    forward = target.model.forward

    def recording(**arguments: object) -> object:
        seen.append(arguments["position_ids"])
        return forward(**arguments)

    cache = target.new_cache(2)
    target.prefill(cache, texts(6, 3))
    recording.__signature__ = None  # type: ignore[attr-defined]
    monkeypatch.setattr(target.model, "forward", recording)
    tree = TokenTree.from_lists([-1, 0, 0, 1], [4, 8, 15, 16])
    target.score(cache, [tree, TokenTree.root_only(3)])

    assert seen[0][0].tolist() == [6, 7, 7, 8]
    assert seen[0][1, 0].item() == 3


def test_the_vocabulary_is_as_large_as_the_logits():
    model = build(family(LLAMA), "eager")

    assert Target(model).vocab_size == model.lm_head.weight.shape[0]
