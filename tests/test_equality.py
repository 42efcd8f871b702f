"""Sampled tree decoding against plain decoding with the same seed."""

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from tests.families import VOCAB, family, tiny_model
from tests.rig import (
    DRAFTERS,
    NEAR_TIE,
    SHAPES,
    Batch,
    NearTies,
    Plain,
    ScriptedDrafter,
    by_chance,
    first,
    last,
    nowhere,
    plain_greedy,
    random_prompts,
    top_gap,
)
from treespec import (
    BestFirst,
    Chain,
    Drafter,
    LookupDrafter,
    ModelDrafter,
    RecycleDrafter,
    TreeDecoder,
    default_drafter,
    row_seed,
)
from treespec.sampling import gumbel

NEW_TOKENS = 32
SEED = 11
TEMPERATURES = (0.3, 1.0, 1.5)
PROMPTS = random_prompts([9, 14, 3, 6], VOCAB, seed=2)
SHARE = 10

llama = family("llama")


def noisy_scores(
    model: PreTrainedModel, text: Sequence[int], start: int, seed: int, temperature: float
) -> Float[Tensor, "N V"]:
    """Logits over temperature plus noise, for the tokens of the text from `start` on."""
    with torch.no_grad():
        logits = model(torch.tensor([list(text)])).logits[0, start - 1 : -1]
    ids = torch.arange(logits.shape[1])
    noise = [gumbel(seed, position, ids) for position in range(start, len(text))]
    return logits / temperature + torch.stack(noise)


@lru_cache(maxsize=8)
def plain_samples(temperature: float) -> list[Plain]:
    """What the target says by itself, with the gaps of its perturbed logits."""
    model = tiny_model(llama, "sdpa")
    output = TreeDecoder(model, None).generate(
        input_ids=PROMPTS.input_ids,
        attention_mask=PROMPTS.attention_mask,
        max_new_tokens=NEW_TOKENS,
        do_sample=True,
        temperature=temperature,
        top_k=0,
        seed=SEED,
    )
    texts = []
    for row, prompt in enumerate(PROMPTS.prompts):
        new = output.sequences[row, PROMPTS.width :].tolist()
        text = [*prompt[0].tolist(), *new]
        scores = noisy_scores(model, text, prompt.shape[1], row_seed(SEED, row), temperature)
        texts.append(Plain(text, new, [top_gap(line) for line in scores]))
    return texts


def sample(
    decoder: TreeDecoder, batch: Batch, temperature: float, seed: int | Sequence[int]
) -> list[list[int]]:
    """New tokens of every row."""
    output = decoder.generate(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        max_new_tokens=NEW_TOKENS,
        do_sample=True,
        temperature=temperature,
        top_k=0,
        seed=seed,
    )
    return output.sequences[:, batch.width :].tolist()


def matrix() -> list[object]:
    """Temperatures, shapes, drafters and batches; all but a fixed tenth are slow."""
    cases = []
    for case in product(TEMPERATURES, SHAPES, DRAFTERS, (1, 4)):
        name = "-".join(map(str, case))
        marks = () if zlib.crc32(name.encode()) % SHARE == 0 else pytest.mark.slow
        cases.append(pytest.param(*case, id=name, marks=marks))
    return cases


@pytest.mark.parametrize(("temperature", "shape", "drafter", "rows"), matrix())
def test_sampled_tree_text_equals_plain_text_of_the_same_seed(
    temperature: float, shape: str, drafter: str, rows: int, near_ties: NearTies
) -> None:
    plain = plain_samples(temperature)[:rows]
    decoder = TreeDecoder(
        tiny_model(llama, "sdpa"),
        DRAFTERS[drafter]([one.tokens for one in plain]),
        tree=SHAPES[shape],
    )
    found = sample(decoder, Batch(PROMPTS.prompts[:rows]), temperature, SEED)
    for row, one in enumerate(plain):
        near_ties.check(one, found[row], f"row {row}")


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_plain_text_is_the_best_of_logits_over_temperature_plus_noise(temperature: float) -> None:
    model = tiny_model(llama, "sdpa")
    for row, one in enumerate(plain_samples(temperature)):
        start = len(one.tokens) - len(one.new)
        scores = noisy_scores(model, one.tokens, start, row_seed(SEED, row), temperature)
        for best, token, gap in zip(scores.argmax(dim=-1).tolist(), one.new, one.gaps, strict=True):
            assert best == token or gap < NEAR_TIE


def test_a_row_says_the_same_alone_and_in_a_batch() -> None:
    decoder = TreeDecoder(tiny_model(llama, "sdpa"), None)
    together = sample(decoder, PROMPTS, 1.0, SEED)
    for row, prompt in enumerate(PROMPTS.prompts):
        assert sample(decoder, Batch((prompt,)), 1.0, row_seed(SEED, row)) == [together[row]]


def test_padding_on_the_right_changes_no_sample() -> None:
    decoder = TreeDecoder(tiny_model(llama, "sdpa"), None)
    left = sample(decoder, PROMPTS, 1.0, SEED)
    assert sample(decoder, Batch(PROMPTS.prompts, "right"), 1.0, SEED) == left


def test_every_row_may_have_its_own_seed() -> None:
    decoder = TreeDecoder(tiny_model(llama, "sdpa"), None)
    seeds = [5, 5, 7, 123456789]
    together = sample(decoder, PROMPTS, 1.0, seeds)
    for row, prompt in enumerate(PROMPTS.prompts):
        assert sample(decoder, Batch((prompt,)), 1.0, seeds[row]) == [together[row]]


def test_different_seeds_give_different_texts() -> None:
    decoder = TreeDecoder(tiny_model(llama, "sdpa"), None)
    batch = Batch(PROMPTS.prompts[:1])
    texts = {tuple(sample(decoder, batch, 1.0, seed)[0]) for seed in range(8)}
    assert len(texts) == 8


def test_rows_with_drafters_of_different_luck_stay_apart() -> None:
    plain = plain_samples(1.0)
    places = [first, nowhere, by_chance(0.5), last]
    drafter = ScriptedDrafter([one.tokens for one in plain], places)
    for shape in SHAPES.values():
        decoder = TreeDecoder(tiny_model(llama, "sdpa"), drafter, tree=shape)
        assert sample(decoder, PROMPTS, 1.0, SEED) == [one.new for one in plain]


def draft_model(draw: str) -> ModelDrafter:
    """A model of another family, as deep as the limits allow."""
    return ModelDrafter(tiny_model(family("gpt2"), "sdpa"), draw=draw, least_gain=0.0)


REAL_DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "model by shared noise": lambda: draft_model("shared"),
    "model by probability": lambda: draft_model("topk"),
    "lookup": LookupDrafter,
    "recycling": RecycleDrafter,
    "default": default_drafter,
}


@pytest.mark.parametrize(
    "tree",
    [BestFirst(budget=12, depth=4, width=4), pytest.param(Chain(4), marks=pytest.mark.slow)],
    ids=["tree", "chain"],
)
@pytest.mark.parametrize("drafter", REAL_DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_drafter_changes_a_token(
    temperature: float, drafter: str, tree: BestFirst, near_ties: NearTies
) -> None:
    model = tiny_model(llama, "sdpa")
    decoder = TreeDecoder(model, REAL_DRAFTERS[drafter](), tree=tree)
    if temperature:
        plain = plain_samples(temperature)
        found = sample(decoder, PROMPTS, temperature, SEED)
    else:
        plain = plain_greedy(model, PROMPTS, NEW_TOKENS)
        output = decoder.generate(
            input_ids=PROMPTS.input_ids,
            attention_mask=PROMPTS.attention_mask,
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
        )
        found = output.sequences[:, PROMPTS.width :].tolist()
    for row, one in enumerate(plain):
        near_ties.check(one, found[row], f"row {row}")


@pytest.mark.parametrize("temperature", [0.3, 1.5])
def test_a_draft_that_is_the_target_is_accepted_whole_under_shared_noise(
    temperature: float,
) -> None:
    model = tiny_model(llama, "sdpa")
    decoder = TreeDecoder(model, ModelDrafter(model, least_gain=0.0), tree=Chain(3))
    output = decoder.generate(
        input_ids=PROMPTS.prompts[0],
        max_new_tokens=NEW_TOKENS + 1,
        do_sample=True,
        temperature=temperature,
        top_k=0,
        seed=SEED,
    )
    # 32 tokens after the first are 8 steps of 3 accepted tokens and the next one
    assert output.stats[0].steps == 8
    assert output.stats[0].accepted == 24
