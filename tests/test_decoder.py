"""The decoder's contract: what goes in, what comes out, what is refused and by which name."""

import math

import pytest
import torch
from transformers import DynamicCache, StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from tests.families import VOCAB, build, family
from tests.rig import DRAFTERS, SHAPES, OracleDrafter, plain_greedy, random_prompts
from treespec import BestFirst, Chain, LookupDrafter, TreeDecoder, row_seed
from treespec.errors import ConfigError

PROMPTS = random_prompts((7, 3, 5, 9), VOCAB)
NEW = 24


class Recorder(BaseStreamer):
    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.seen.append(value)

    def end(self) -> None:
        self.ended = True


@pytest.fixture(scope="module")
def target():
    return build(family("llama"), "sdpa")


@pytest.fixture(scope="module")
def texts(target):
    return [plain.tokens for plain in plain_greedy(target, PROMPTS, NEW)]


@pytest.fixture(scope="module")
def decoder(target, texts):
    return TreeDecoder(target, DRAFTERS["sibling"](texts), tree=SHAPES["right_leaning"])


def generate(decoder: TreeDecoder, rows: int = 4, **options: object):
    arguments = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0} | options
    return decoder.generate(
        PROMPTS.input_ids[:rows], attention_mask=PROMPTS.attention_mask[:rows], **arguments
    )


def test_the_default_drafter_needs_nothing(target, texts):
    output = generate(TreeDecoder(target))

    assert output.sequences[0, -NEW:].tolist() == texts[0][-NEW:]


def test_statistics_count_tokens_steps_and_drafts(decoder):
    output = generate(decoder)

    for stats in output.stats:
        assert stats.emitted == NEW
        assert stats.emitted == 1 + stats.steps + stats.accepted
        assert sum(stats.accepted_by_depth) == stats.accepted
        assert stats.accepted_by_depth[0] <= stats.steps
        assert stats.acceptance_length == (NEW - 1) / stats.steps
        assert stats.finish_reason == "length"


def test_plain_decoding_has_an_acceptance_length_of_one(target):
    output = generate(TreeDecoder(target, None))

    assert [stats.acceptance_length for stats in output.stats] == [1.0] * 4
    assert [stats.empty_drafts for stats in output.stats] == [0] * 4


def test_one_new_token_takes_no_step(decoder):
    output = generate(decoder, max_new_tokens=1)

    assert output.sequences.shape[1] == PROMPTS.width + 1
    assert math.isnan(output.stats[0].acceptance_length)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("depth", [1, 4, 8])
def test_exactly_max_new_tokens_come_out(target, texts, count, depth):
    output = generate(
        TreeDecoder(target, OracleDrafter(texts), tree=Chain(depth)), max_new_tokens=count
    )

    assert output.sequences.shape[1] == PROMPTS.width + count
    assert output.sequences[1, -count:].tolist() == texts[1][3 : 3 + count]


@pytest.mark.parametrize("place", range(8))
def test_an_end_token_inside_an_accepted_path_ends_the_row_there(target, texts, place):
    end = texts[0][PROMPTS.prompts[0].shape[1] + place]
    new = texts[0][PROMPTS.prompts[0].shape[1] :]
    stop = new.index(end) + 1
    recorder = Recorder()
    alone = TreeDecoder(target, DRAFTERS["sibling"](texts[:1]), tree=SHAPES["right_leaning"])
    output = alone.generate(
        PROMPTS.prompts[0],
        max_new_tokens=NEW,
        do_sample=False,
        eos_token_id=[end, VOCAB - 1],
        pad_token_id=0,
        streamer=recorder,
        return_dict_in_generate=True,
        output_scores=True,
    )

    assert output.sequences[0].tolist() == texts[0][: PROMPTS.prompts[0].shape[1] + stop]
    assert torch.cat(recorder.seen[1:]).tolist() == new[:stop]
    assert len(output.scores) == stop
    assert output.cache.get_seq_length() == output.sequences.shape[1] - 1
    assert output.stats[0].emitted == stop
    assert output.stats[0].finish_reason == "eos"


def test_rows_that_end_early_are_padded_and_leave_the_others_alone(target, texts, decoder):
    end = texts[2][5 + 4]
    output = generate(decoder, eos_token_id=end, pad_token_id=0)

    for row, text in enumerate(texts):
        new = text[PROMPTS.prompts[row].shape[1] :]
        stop = new.index(end) + 1 if end in new else NEW
        line = output.sequences[row, PROMPTS.width :].tolist()
        assert line[:stop] == new[:stop]
        assert set(line[stop:]) <= {0}


def test_a_users_criterion_sees_every_prefix_in_order(decoder):
    lengths = []

    class Counting(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            lengths.append(input_ids.shape[1])
            return torch.tensor([input_ids.shape[1] >= PROMPTS.width + 10])

    output = generate(decoder, stopping_criteria=[Counting()])

    assert {stats.finish_reason for stats in output.stats} == {"stop"}
    assert output.sequences.shape[1] == PROMPTS.width + 10
    assert sorted(lengths) == sorted(4 * list(range(PROMPTS.width + 1, PROMPTS.width + 11)))


def test_max_time_ends_a_row(decoder):
    output = generate(decoder, max_time=0.0)

    assert {stats.finish_reason for stats in output.stats} == {"time"}


def test_the_targets_own_positions_end_the_text(texts):
    short = build(family("llama"), "sdpa", max_position_embeddings=16)
    fed = []
    forward = short.model.forward
    short.model.forward = lambda **given: (
        fed.append(given["position_ids"].max()) or forward(**given)
    )
    decoder = TreeDecoder(short, LookupDrafter(), self_check=False)
    output = decoder.generate(PROMPTS.prompts[0], max_new_tokens=NEW, do_sample=False)

    assert output.stats[0].finish_reason == "context"
    assert output.sequences.shape[1] == 17
    assert max(fed) == 15


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing(target, texts, side):
    from dataclasses import replace

    batch = replace(PROMPTS, side=side)
    decoder = TreeDecoder(target, DRAFTERS["half"](texts), tree=SHAPES["binary"])
    output = decoder.generate(
        batch.input_ids,
        attention_mask=batch.attention_mask,
        max_new_tokens=NEW,
        do_sample=False,
        pad_token_id=0,
    )

    assert torch.equal(output.sequences[:, : PROMPTS.width], batch.input_ids)
    for row, text in enumerate(texts):
        assert output.sequences[row, PROMPTS.width :].tolist() == text[-NEW:]


def test_a_seed_gives_each_row_its_own_and_one_int_per_row_says_which(target):
    decoder = TreeDecoder(target, None)
    together = generate(decoder, do_sample=True, seed=5)
    seeds = [row_seed(5, row) for row in range(4)]

    assert together.seeds == seeds
    assert torch.equal(generate(decoder, do_sample=True, seed=seeds).sequences, together.sequences)


def test_a_row_samples_the_same_alone_and_in_a_batch(target):
    decoder = TreeDecoder(target, None)
    together = generate(decoder, do_sample=True, seed=5).sequences
    alone = decoder.generate(
        PROMPTS.prompts[2], max_new_tokens=NEW, do_sample=True, seed=row_seed(5, 2)
    ).sequences

    assert together[2, -NEW:].tolist() == alone[0, -NEW:].tolist()


def test_several_sequences_per_prompt_get_seeds_of_their_own(target):
    output = generate(TreeDecoder(target), rows=2, do_sample=True, num_return_sequences=3, seed=1)

    assert output.sequences.shape[0] == 6
    assert len({tuple(line) for line in output.sequences.tolist()}) == 6
    assert torch.equal(output.sequences[:3, : PROMPTS.width], PROMPTS.input_ids[:1].expand(3, -1))


def test_scores_and_logits_are_those_of_generate(target, decoder):
    options = {
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        "repetition_penalty": 1.3,
    }
    expected = target.generate(
        PROMPTS.input_ids,
        attention_mask=PROMPTS.attention_mask,
        max_new_tokens=NEW,
        do_sample=False,
        pad_token_id=0,
        **options,
    )
    output = generate(decoder, **options)

    assert torch.equal(output.sequences, expected.sequences)
    torch.testing.assert_close(output.scores, expected.scores, atol=1e-4, rtol=0)
    torch.testing.assert_close(output.logits, expected.logits, atol=1e-4, rtol=0)


def test_the_returned_cache_serves_the_next_turn_and_is_left_alone(target):
    decoder = TreeDecoder(target)
    first = generate(decoder, return_dict_in_generate=True)
    more = torch.randint(1, VOCAB, (4, 5), generator=torch.Generator().manual_seed(3))
    prompt = torch.cat([first.sequences, more], dim=1)
    mask = torch.cat([PROMPTS.attention_mask, torch.ones(4, NEW + 5, dtype=torch.int64)], dim=1)
    held = [layer.keys.clone() for layer in first.cache.layers]
    fed = []
    handle = target.model.embed_tokens.register_forward_hook(lambda *_args: fed.append(_args[1][0]))
    options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    second = decoder.generate(prompt, cache=first.cache, **options)
    handle.remove()

    assert fed[0].shape[1] == 6  # the last token of the first turn and the five new ones
    assert torch.equal(second.sequences, target.generate(prompt, **options))
    assert all(torch.equal(a, b.keys) for a, b in zip(held, first.cache.layers, strict=True))


def test_an_empty_cache_is_not_filled(target, texts):
    given = DynamicCache()
    output = generate(TreeDecoder(target), cache=given)

    assert output.sequences[0, -NEW:].tolist() == texts[0][-NEW:]
    assert given.get_seq_length() == 0


def test_the_hook_gives_what_generate_gives(target, decoder):
    options = {
        "attention_mask": PROMPTS.attention_mask,
        "max_new_tokens": NEW,
        "do_sample": False,
        "pad_token_id": 0,
    }
    hook = decoder.hook()
    found = target.generate(PROMPTS.input_ids, custom_generate=hook, **options)

    assert torch.equal(found, target.generate(PROMPTS.input_ids, **options))
    assert hook.last_output.stats[0].accepted > 0


def test_the_hook_takes_a_seed_in_either_place(target):
    decoder = TreeDecoder(target, None)
    options = {"max_new_tokens": 8, "do_sample": True}
    one = target.generate(PROMPTS.prompts[0], custom_generate=decoder.hook(seed=9), **options)
    other = target.generate(PROMPTS.prompts[0], custom_generate=decoder.hook(), seed=9, **options)

    assert torch.equal(one, other)


def test_the_hook_refuses_another_model(target, decoder):
    other = build(family("llama"), "eager")

    with pytest.raises(ConfigError, match="decodes for another LlamaForCausalLM"):
        other.generate(PROMPTS.prompts[0], custom_generate=decoder.hook(), max_new_tokens=2)


def test_two_generations_share_nothing(target, texts):
    decoder = TreeDecoder(target, tree=BestFirst())  # `AutoTree` remembers what steps cost
    first = generate(decoder).stats
    generate(decoder, rows=1)

    assert generate(decoder).stats == first
