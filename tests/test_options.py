"""Every processor of `generate`, alone and mixed: greedy trees say what `generate` says."""

from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from tests.families import VOCAB, build, family
from tests.rig import SHAPES, HalfDrafter, SiblingDrafter, random_prompts
from treespec import TreeDecoder

NEW = 24
PROMPTS = random_prompts((7, 3, 5, 9), VOCAB)
END = 11


class Alternating(LogitsProcessor):
    """A user's processor that depends on the length and on the last token."""

    def __call__(self, input_ids, scores):
        shifted = scores.clone()
        shifted[:, input_ids.shape[1] % VOCAB] += 3.0
        return shifted.scatter_add(1, input_ids[:, -1:], torch.full((len(scores), 1), -2.0))


OPTIONS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.4},
    "encoder_repetition": {"encoder_repetition_penalty": 1.4},
    "ngram": {"no_repeat_ngram_size": 2},
    "encoder_ngram": {"encoder_no_repeat_ngram_size": 1},
    "bad_words": {"bad_words_ids": [[n] for n in range(20, 40)] + [[3, 4]]},
    "sequence_bias": {"sequence_bias": [[[5], 2.0], [[7], -4.0], [[5, 9], 6.0]]},
    "suppress": {"suppress_tokens": list(range(40, 70))},
    "begin_suppress": {"begin_suppress_tokens": list(range(50))},
    "forced_eos": {"forced_eos_token_id": END, "eos_token_id": END},
    "min_length": {"min_length": 20, "eos_token_id": list(range(30))},
    "min_new_tokens": {"min_new_tokens": 9, "eos_token_id": list(range(30))},
    "allowed": {
        "prefix_allowed_tokens_fn": lambda row, text: [
            (int(text[-1]) * 7 + place + row) % VOCAB for place in range(9)
        ]
    },
    "decay": {"exponential_decay_length_penalty": (3, 1.5), "eos_token_id": END},
    "invalid_values": {"remove_invalid_values": True},
    "renormalize": {"renormalize_logits": True, "repetition_penalty": 1.2},
    "user": {"logits_processor": LogitsProcessorList([Alternating()])},
}

MIXTURES = {
    "penalties": ("repetition", "ngram"),
    "prompt": ("encoder_repetition", "encoder_ngram", "suppress"),
    "lengths": ("min_new_tokens", "decay", "bad_words"),
    "bias": ("sequence_bias", "user", "repetition"),
    "everything": ("repetition", "ngram", "bad_words", "suppress", "user", "renormalize"),
}
CASES = OPTIONS | {
    name: {key: value for part in parts for key, value in OPTIONS[part].items()}
    for name, parts in MIXTURES.items()
}
SHAPE_NAMES = ("chain", "binary", "right_leaning")


@pytest.fixture(scope="module")
def target():
    return build(family("llama"), "sdpa")


def arguments_for(rows: int, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "attention_mask": PROMPTS.attention_mask[:rows],
        "max_new_tokens": NEW,
        "do_sample": False,
        "pad_token_id": 0,
    } | options


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("name", CASES)
def test_greedy_trees_say_what_generate_says(target, name, rows):
    block = PROMPTS.input_ids[:rows]
    arguments = arguments_for(rows, CASES[name])
    expected = target.generate(block, **arguments)
    texts = [
        [*PROMPTS.prompts[row][0].tolist(), *expected[row, PROMPTS.width :].tolist()]
        for row in range(rows)
    ]
    accepted = 0
    for shape in SHAPE_NAMES:
        for drafter in (SiblingDrafter(texts), HalfDrafter(texts)):
            decoder = TreeDecoder(target, drafter, tree=SHAPES[shape])
            output = decoder.generate(block, **arguments)
            accepted += sum(stats.accepted for stats in output.stats)

            assert torch.equal(output.sequences, expected), (shape, type(drafter).__name__)
    assert accepted > 0


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 5},
        {"top_p": 0.6, "top_k": 0},
        {"min_p": 0.1, "top_k": 0},
        {"typical_p": 0.7, "top_k": 0},
        {"epsilon_cutoff": 0.02, "top_k": 0},
        {"eta_cutoff": 0.02, "top_k": 0},
        {"top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
        {"top_h": 0.5, "top_k": 0},
    ],
    ids=lambda options: "-".join(options),
)
@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_sampled_trees_say_what_plain_decoding_says(target, options, temperature):
    arguments = arguments_for(4, options) | {
        "do_sample": True,
        "temperature": temperature,
        "seed": 3,
    }
    block = PROMPTS.input_ids
    plain = TreeDecoder(target, None).generate(block, **arguments).sequences
    texts = [
        [*PROMPTS.prompts[row][0].tolist(), *plain[row, PROMPTS.width :].tolist()]
        for row in range(4)
    ]
    for drafter in (SiblingDrafter(texts), HalfDrafter(texts)):
        decoder = TreeDecoder(target, drafter, tree=SHAPES["right_leaning"])
        output = decoder.generate(block, **arguments)

        assert torch.equal(output.sequences, plain)
        assert sum(stats.accepted for stats in output.stats) > 0
