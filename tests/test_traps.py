"""Faults that speculative decoders are known for, each met on purpose."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from tests.families import VOCAB, Family, build, family, tiny_model
from tests.rig import (
    DRAFTERS,
    SHAPES,
    Batch,
    OracleDrafter,
    Placement,
    Plain,
    ScriptedDrafter,
    ScriptedSession,
    SiblingDrafter,
    nowhere,
    plain_greedy,
    random_prompts,
    tokens_ahead,
)
from tests.watch import Positions, WatchingDrafter
from treespec import (
    BestFirst,
    Chain,
    ModelDrafter,
    StaticTree,
    TokenTree,
    TreeDecoder,
    TreeLimits,
    TreeOutput,
    self_check,
)
from treespec.drafters.base import DraftContext
from treespec.target import Target

NEW_TOKENS = 24
PROMPTS = random_prompts([11, 4, 7], VOCAB, seed=4)
ONE = Batch(PROMPTS.prompts[:1])


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    """A tiny Llama."""
    return tiny_model(family("llama"), "sdpa")


@pytest.fixture(scope="module")
def plain(model: PreTrainedModel) -> list[Plain]:
    """What it says to the prompts."""
    return plain_greedy(model, PROMPTS, NEW_TOKENS)


def decode(decoder: TreeDecoder, batch: Batch = PROMPTS, **options: object) -> TreeOutput:
    """A greedy generation."""
    arguments = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0, **options}
    return decoder.generate(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, **arguments
    )


def new_tokens(output: TreeOutput, batch: Batch = PROMPTS) -> list[list[int]]:
    """What came after the prompts."""
    return output.sequences[:, batch.width :].tolist()


def texts(plain: Sequence[Plain]) -> list[list[int]]:
    """Prompts and what follows."""
    return [one.tokens for one in plain]


@pytest.mark.parametrize("shape", ["ragged", "one_three_two"])
@pytest.mark.parametrize("drafter", ["half", "sibling", "anti"])
def test_token_0_is_a_token_like_any_other(shape: str, drafter: str) -> None:
    model = build(family("llama"), "sdpa")
    said = [token for one in plain_greedy(model, PROMPTS, NEW_TOKENS) for token in one.new]
    common = max(set(said), key=said.count)
    with torch.no_grad():
        for table in (model.get_input_embeddings().weight, model.get_output_embeddings().weight):
            table[[0, common]] = table[[common, 0]]
    plain = plain_greedy(model, PROMPTS, NEW_TOKENS)
    assert sum(one.new.count(0) for one in plain) >= 5

    decoder = TreeDecoder(model, DRAFTERS[drafter](texts(plain)), tree=SHAPES[shape])

    assert new_tokens(decode(decoder)) == [one.new for one in plain]


class TwinDrafter(ScriptedDrafter):
    """All siblings carry the same, right token; with bad luck only the first has descendants."""

    def begin(self, prompts: Sequence[Tensor], context: DraftContext) -> "TwinSession":
        return TwinSession(self, [prompt.tolist() for prompt in prompts], context.vocab_size)


class TwinSession(ScriptedSession):
    def draft(
        self, committed: list[int], text: list[int], place: Placement, limits: TreeLimits
    ) -> TokenTree:
        ahead = [committed[-1], *tokens_ahead(committed, text)]
        return TokenTree.from_lists(
            limits.topology.parent_list, [ahead[depth] for depth in limits.topology.depth_list]
        )


@pytest.mark.parametrize("shape", SHAPES)
def test_siblings_with_one_token_count_once(
    model: PreTrainedModel, plain: list[Plain], shape: str
) -> None:
    decoder = TreeDecoder(model, TwinDrafter(texts(plain), nowhere), tree=SHAPES[shape])
    output = decode(decoder)
    assert new_tokens(output) == [one.new for one in plain]
    assert all(stats.accepted_by_depth[0] <= stats.steps for stats in output.stats)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(
    "tree",
    [
        BestFirst(budget=1, depth=1, width=1),
        BestFirst(budget=2, depth=8, width=8),
        BestFirst(budget=VOCAB + 60, depth=40, width=3),
        BestFirst(budget=VOCAB + 60, depth=3, width=VOCAB + 3),
        StaticTree([[0]]),
    ],
    ids=str,
)
def test_trees_of_any_size_change_nothing(
    model: PreTrainedModel, plain: list[Plain], tree: BestFirst | StaticTree, drafter: str
) -> None:
    decoder = TreeDecoder(model, DRAFTERS[drafter](texts(plain)), tree=tree)
    assert new_tokens(decode(decoder)) == [one.new for one in plain]


class SilentSession(ScriptedSession):
    def draft(
        self, committed: list[int], text: list[int], place: Placement, limits: TreeLimits
    ) -> TokenTree:
        return TokenTree.root_only(committed[-1])


class SilentDrafter(ScriptedDrafter):
    """Never has anything to propose."""

    def begin(self, prompts: Sequence[Tensor], context: DraftContext) -> SilentSession:
        return SilentSession(self, [prompt.tolist() for prompt in prompts], context.vocab_size)


def test_a_drafter_that_proposes_nothing_decodes_plainly(
    model: PreTrainedModel, plain: list[Plain]
) -> None:
    output = decode(TreeDecoder(model, SilentDrafter(texts(plain), nowhere), tree=Chain(3)))
    assert new_tokens(output) == [one.new for one in plain]
    for stats in output.stats:
        assert stats.steps == NEW_TOKENS - 1
        # in the last step only the next token was wanted, so that no draft was missed
        assert stats.empty_drafts == NEW_TOKENS - 2


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_a_tree_agrees_with_its_paths_in_bfloat16(name: str, attention: str) -> None:
    half = build(family(name), attention).to(torch.bfloat16)
    assert self_check(half).mean_deviation < 0.05


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_row_without_new_tokens_disturbs_nobody(attention: str) -> None:
    target = Target(build(family("llama"), attention))
    prompt = PROMPTS.prompts[0][0]
    beside, alone = target.new_cache(2), target.new_cache(1)
    outputs = target.prefill(beside, [prompt[:0], prompt])
    expected = target.prefill(alone, [prompt])[0]
    assert beside.lengths == [0, len(prompt)]
    torch.testing.assert_close(outputs[1].logits, expected.logits, rtol=1e-5, atol=1e-5)


class Collector(BaseStreamer):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = False

    def put(self, value: Tensor) -> None:
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


@pytest.mark.parametrize("drafter", ["oracle", "sibling"])
@pytest.mark.parametrize("form", [int, list, torch.tensor], ids=["int", "list", "tensor"])
def test_text_ends_at_whichever_token_is_declared_the_end(
    model: PreTrainedModel, plain: list[Plain], form: type, drafter: str
) -> None:
    decoder = TreeDecoder(model, DRAFTERS[drafter](texts(plain)[:1]), tree=SHAPES["right_leaning"])
    new = plain[0].new
    for end in dict.fromkeys(new):
        ids = [end] if form is int else [end, new[-1]]
        streamer = Collector()
        expected = new[: 1 + min(new.index(one) for one in ids)]
        eos = end if form is int else form(ids)

        output = decode(decoder, ONE, eos_token_id=eos, streamer=streamer)

        stats = output.stats[0]
        assert output.sequences[0].tolist() == [*ONE.prompts[0][0].tolist(), *expected]
        assert streamer.tokens == output.sequences[0].tolist()
        assert streamer.ended
        assert stats.emitted == len(expected)
        assert stats.finish_reason == "eos"
        assert sum(stats.accepted_by_depth) == stats.accepted
        # each step gives its accepted tokens and the next one, which the last may have to drop
        assert stats.emitted - 1 - stats.accepted in (stats.steps - 1, stats.steps)


@pytest.mark.parametrize("pad", [None, 0])
def test_a_batch_ends_as_generate_ends_it(
    model: PreTrainedModel, plain: list[Plain], pad: int | None
) -> None:
    end = plain[1].new[6]
    arguments = {
        "attention_mask": PROMPTS.attention_mask,
        "max_new_tokens": NEW_TOKENS,
        "do_sample": False,
        "eos_token_id": [end, plain[0].new[11]],
        "pad_token_id": pad,
    }
    expected = model.generate(PROMPTS.input_ids, **arguments)
    decoder = TreeDecoder(model, SiblingDrafter(texts(plain)), tree=SHAPES["ragged"])
    assert torch.equal(decoder.generate(PROMPTS.input_ids, **arguments).sequences, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": None, "max_length": 5}, "max_length"),
    ],
    ids=["nothing wanted", "prompt too long"],
)
def test_a_length_that_leaves_no_room_is_an_error(
    model: PreTrainedModel, options: dict[str, int | None], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        decode(TreeDecoder(model, None), ONE, **options)


def short_gpt2(positions: int) -> PreTrainedModel:
    """A model with learned positions, which fails behind the last of them."""
    base: Family = family("gpt2")
    long, short = build(base, "sdpa"), build(base, "sdpa", n_positions=positions)
    weights = long.state_dict()
    name = "transformer.wpe.weight"
    weights[name] = weights[name][:positions]
    short.load_state_dict(weights)
    return short


@pytest.mark.parametrize("tree", [Chain(8), BestFirst(budget=20, depth=8, width=3)], ids=str)
def test_the_last_position_of_the_target_is_used_and_none_behind_it(tree: BestFirst) -> None:
    limit, prompts = 40, random_prompts([30, 21], VOCAB, seed=6)
    plain = plain_greedy(tiny_model(family("gpt2"), "sdpa"), prompts, 30)
    short = short_gpt2(limit)
    decoder = TreeDecoder(short, OracleDrafter(texts(plain)), tree=tree)
    positions = Positions()
    positions.watch(short)

    output = decode(decoder, prompts, max_new_tokens=30)

    assert max(int(step.max()) for step in positions.recorded) == limit - 1
    for row, one in enumerate(plain):
        # the token behind the last position is still said, but never read
        said = limit + 1 - prompts.prompts[row].shape[1]
        assert new_tokens(output, prompts)[row][:said] == one.new[:said]
        assert output.stats[row].emitted == said
        assert output.stats[row].finish_reason == "context"


def test_a_draft_model_with_fewer_positions_falls_silent_behind_them(
    model: PreTrainedModel,
) -> None:
    limit, prompts = 32, random_prompts([30, 9], VOCAB, seed=7)
    plain = plain_greedy(model, prompts, 60)
    draft = short_gpt2(limit)
    watching = WatchingDrafter(ModelDrafter(draft, least_gain=0.0))
    positions = Positions()
    positions.watch(draft)

    output = decode(TreeDecoder(model, watching, tree=Chain(4)), prompts, max_new_tokens=60)

    assert new_tokens(output, prompts) == [one.new for one in plain]
    assert max(int(step.max()) for step in positions.recorded) < limit
    assert all(stats.empty_drafts > 20 for stats in output.stats)


@pytest.mark.parametrize(("target_size", "draft_size"), [(100, 96), (96, 100)])
@pytest.mark.parametrize("tree", [Chain(3), BestFirst(budget=12, depth=3, width=6)], ids=str)
def test_no_token_is_proposed_that_only_one_of_the_models_has(
    target_size: int, draft_size: int, tree: BestFirst
) -> None:
    model = build(family("llama"), "sdpa", vocab_size=target_size)
    draft = build(family("gpt2"), "sdpa", vocab_size=draft_size)
    with torch.no_grad():
        # ids that the other model lacks are made the likeliest of both
        for each in (model, draft):
            each.get_output_embeddings().weight[96:] *= 3
    plain = plain_greedy(model, PROMPTS, NEW_TOKENS)
    watching = WatchingDrafter(ModelDrafter(draft, least_gain=0.0))

    output = decode(TreeDecoder(model, watching, tree=tree))

    assert new_tokens(output) == [one.new for one in plain]
    assert target_size < draft_size or max(max(one.new) for one in plain) >= 96
    drafted = [token for trees in watching.trees for one in trees for token in one.token_list[1:]]
    assert max(drafted) < min(target_size, draft_size)
