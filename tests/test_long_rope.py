"""Rotary embeddings whose frequencies depend on how long a forward is."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.families import VOCAB, build, family
from tests.rig import DRAFTERS, SHAPES, NearTies, plain_greedy, random_prompts
from treespec import TreeDecoder, UnsupportedOptionError
from treespec.support import inspect_support

SWITCH = 32
NEW_TOKENS = 40
DYNAMIC: dict[str, Any] = {
    "max_position_embeddings": SWITCH,
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
}
LONGROPE: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0, 3.0, 4.0, 5.0],
        "original_max_position_embeddings": SWITCH,
    }
}
SETTINGS = {"dynamic": DYNAMIC, "longrope": LONGROPE}


def reset(model: PreTrainedModel) -> None:
    """Make the model forget the longest text that it has seen: dynamic frequencies depend on it."""
    with torch.no_grad():
        model(torch.tensor([[1]]))


@pytest.mark.parametrize("drafter", ["half", "sibling"])
@pytest.mark.parametrize("length", [20, SWITCH - 1, SWITCH, SWITCH + 1])
@pytest.mark.parametrize("kind", SETTINGS)
def test_text_across_the_switch_equals_plain_text(
    kind: str, length: int, drafter: str, near_ties: NearTies
) -> None:
    model = build(family("llama"), "sdpa", **SETTINGS[kind])
    prompt = random_prompts([length], VOCAB, seed=length)
    reset(model)
    (plain,) = plain_greedy(model, prompt, NEW_TOKENS)
    decoder = TreeDecoder(model, DRAFTERS[drafter]([plain.tokens]), tree=SHAPES["ragged"])
    reset(model)
    output = decoder.generate(prompt.input_ids, max_new_tokens=NEW_TOKENS, do_sample=False)
    near_ties.check(plain, output.sequences[0, length:].tolist(), f"prompt of {length}")


@pytest.mark.parametrize("drafter", ["half", "sibling"])
@pytest.mark.parametrize("length", [20, SWITCH - 1, SWITCH, SWITCH + 1])
@pytest.mark.parametrize("name", ["phi3", "phimoe"])
def test_a_model_that_runs_its_text_anew_at_the_switch_is_followed(
    name: str, length: int, drafter: str, near_ties: NearTies
) -> None:
    scales = {"short_mscale": 1.1, "long_mscale": 1.2} if name == "phimoe" else {}
    parameters = LONGROPE["rope_parameters"] | scales
    model = build(
        family(name),
        "sdpa",
        original_max_position_embeddings=SWITCH,
        rope_parameters=parameters,
    )
    prompt = random_prompts([length], VOCAB, seed=length)
    (plain,) = plain_greedy(model, prompt, NEW_TOKENS)
    decoder = TreeDecoder(model, DRAFTERS[drafter]([plain.tokens]), tree=SHAPES["ragged"])
    output = decoder.generate(prompt.input_ids, max_new_tokens=NEW_TOKENS, do_sample=False)
    near_ties.check(plain, output.sequences[0, length:].tolist(), f"{name}, prompt of {length}")


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_batch_that_may_cross_the_switch_is_refused_and_a_shorter_one_is_not(kind: str) -> None:
    model = build(family("llama"), "sdpa", **SETTINGS[kind])
    batch = random_prompts([9, 5], VOCAB)
    decoder = TreeDecoder(model, None)
    options = {"attention_mask": batch.attention_mask, "do_sample": False}
    with pytest.raises(UnsupportedOptionError, match=f"LlamaForCausalLM.*position {SWITCH}"):
        decoder.generate(batch.input_ids, max_new_tokens=SWITCH, **options)
    short = decoder.generate(batch.input_ids, max_new_tokens=8, **options)
    assert short.sequences.shape == (2, 17)


def test_the_switch_is_found_where_layer_types_have_embeddings_of_their_own() -> None:
    model = build(
        family("gemma3"),
        "sdpa",
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
        },
    )
    support = inspect_support(model)
    assert support.rope_switch == 256
    assert support.rope_moves_on
    assert support.max_positions is None
