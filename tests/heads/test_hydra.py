"""Hydra heads: what they say along a path, their prefix layer's cache, and how they begin."""

import pytest
import torch

import treespec.heads.layer
from tests.families import VOCAB, build, family, tiny_model
from tests.heads.reference import (
    ComparedSession,
    every_other,
    hydra,
    last_state,
    prefix_states,
    randomise,
    target_states,
    tiny_layer,
)
from tests.heads.scripted import ScriptedHeads
from tests.rig import plain_greedy, random_prompts
from treespec import BestFirst, Chain, MergedDrafter, TreeDecoder
from treespec.errors import ConfigError, DrafterError
from treespec.heads import HeadDrafter
from treespec.heads.hydra import HydraConfig, HydraHeads
from treespec.tree.growth import GrowingTree

HIDDEN = 32
PROMPTS = random_prompts((6, 2, 9), VOCAB)
TARGETS = ("llama", "qwen2", "qwen3")
SIZES = {
    "num_heads": 4,
    "num_layers": 3,
    "hidden_size": HIDDEN,
    "lm_head": "each",
    "lm_head_bias": True,
    "prefix": tiny_layer(),
}
TREE = BestFirst(budget=14, depth=4, width=3)


def make(target, *, vocabulary=None, seed=0, **sizes) -> HydraHeads:
    """Heads with random weights."""
    heads = HydraHeads(HydraConfig(**(SIZES | sizes)), target, vocabulary)
    randomise(heads, seed)
    return heads


@pytest.fixture(scope="module")
def target():
    return tiny_model(family("llama"), "sdpa")


def decode_compared(target, heads, *, shape=TREE, new=12, **options):
    """Decode beside a drafter that is often right, so that steps commit several tokens."""
    plain = plain_greedy(target, PROMPTS, new, eos=options.get("eos_token_id", ()))
    compared = ComparedSession(heads, hydra, [prompt[0].tolist() for prompt in PROMPTS.prompts])
    oracle = ScriptedHeads(target, [one.tokens for one in plain], [0, 0, 0], gaps=True)
    drafter = MergedDrafter([HeadDrafter(heads, least_gain=0.0), HeadDrafter(oracle)])
    output = TreeDecoder(target, drafter, tree=shape).generate(
        PROMPTS.input_ids,
        attention_mask=PROMPTS.attention_mask,
        max_new_tokens=new,
        do_sample=False,
        pad_token_id=0,
        **options,
    )
    texts = output.sequences[:, PROMPTS.width :].tolist()
    assert [text[: len(one.new)] for text, one in zip(texts, plain, strict=True)] == [
        one.new for one in plain
    ]
    assert max(stats.acceptance_length for stats in output.stats) > 1
    return compared


@pytest.mark.parametrize("prefix", [tiny_layer(), None], ids=["prefix", "no prefix"])
@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("name", TARGETS)
def test_all_it_says_while_decoding_equals_the_reference(name, reduced, prefix):
    target = tiny_model(family(name), "sdpa")
    sizes = {"lm_head": "target", "lm_head_bias": False} if reduced else {}
    vocabulary = every_other(VOCAB) if reduced else None
    heads = make(target, vocabulary=vocabulary, prefix=prefix, **sizes)

    compared = decode_compared(target, heads)

    assert set(compared.depths) == {0, 1, 2, 3}
    assert (compared.cache_checks > 20) == (prefix is not None)


@pytest.mark.parametrize(
    "sizes", [{"num_layers": 1}, {"lm_head_bias": False}, {"num_heads": 1}, {"num_heads": 2}]
)
def test_chains_of_other_sizes_equal_the_reference(target, sizes):
    heads = make(target, **sizes)

    compared = decode_compared(target, heads, shape=Chain(4))

    assert set(compared.depths) == set(range(heads.config.num_heads))


def test_the_prefix_cache_stays_right_when_prompts_come_in_pieces(target, monkeypatch):
    monkeypatch.setattr(treespec.heads.layer, "CHUNK", 3)

    assert decode_compared(target, make(target)).cache_checks > 20


def test_the_prefix_cache_stays_right_when_rows_leave(target):
    plain = plain_greedy(target, PROMPTS, 12)
    ends = [plain[0].new[3], plain[2].new[7]]

    assert decode_compared(target, make(target), eos_token_id=ends).cache_checks > 12


@pytest.mark.parametrize("prefix", [tiny_layer(), None], ids=["prefix", "no prefix"])
@pytest.mark.parametrize("reduced", [False, True])
def test_forward_over_sequences_equals_the_formula(target, prefix, reduced):
    sizes = {"lm_head": "target", "lm_head_bias": False} if reduced else {}
    vocabulary = every_other(VOCAB) if reduced else None
    heads = make(target, vocabulary=vocabulary, prefix=prefix, **sizes)
    texts = torch.randint(VOCAB, (2, 8), generator=torch.Generator().manual_seed(2)).tolist()
    hidden = torch.stack([target_states(target, text[:-1]) for text in texts])
    tokens = torch.tensor(texts)[:, 1:]

    logits = heads(hidden, tokens)

    assert logits.shape == (2, 7, 4, heads.num_columns)
    for row, text in enumerate(texts):
        for t in range(7):
            state = last_state(heads, hidden[row, : t + 1])
            for head in range(min(4, 7 - t)):
                path = text[t + 1 : t + head + 2]
                expected = hydra(heads, state, path)
                torch.testing.assert_close(logits[row, t, head], expected, atol=1e-5, rtol=1e-5)


def test_sequences_shorter_than_the_heads_look_ahead_have_logits(target):
    heads = make(target)

    assert heads(torch.zeros(1, 2, HIDDEN), torch.tensor([[3, 4]])).shape == (1, 2, 4, VOCAB)


def test_gradients_reach_every_parameter_and_not_the_target():
    target = build(family("llama"), "sdpa")
    heads = make(target)

    heads(torch.randn(2, 6, HIDDEN), torch.ones(2, 6, dtype=torch.int64)).logsumexp(
        -1
    ).sum().backward()

    assert all(parameter.grad is not None for parameter in heads.parameters())
    assert all(parameter.grad is None for parameter in target.parameters())


def test_heads_are_named_with_one_shared_block(target):
    names = set(make(target, num_heads=1).state_dict())
    bare = set(
        make(
            target, num_heads=1, num_layers=1, prefix=None, lm_head="target", lm_head_bias=False
        ).state_dict()
    )

    first = {
        f"heads.0.first.{part}.{kind}"
        for part in ("linear", "residual")
        for kind in ("weight", "bias")
    }
    layer = {f"self_attn.{name}_proj.weight" for name in "qkvo"}
    layer |= {f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")}
    layer |= {"input_layernorm.weight", "post_attention_layernorm.weight", "norm.weight"}
    assert bare == first
    assert names == (
        first
        | {"heads.0.block.linear.weight", "heads.0.block.linear.bias"}
        | {"heads.0.lm_head.weight", "heads.0.lm_head.bias"}
        | {f"prefix.{name}" for name in layer}
    )


@pytest.mark.parametrize("reduced", [False, True])
def test_fresh_heads_begin_with_zero_weights_and_a_copy_of_the_lm_head(reduced):
    target = build(family("llama_tied"), "sdpa")
    before = target.lm_head.weight.clone()
    vocabulary = every_other(VOCAB) if reduced else None
    heads = HydraHeads(HydraConfig(**SIZES), target, vocabulary)

    for index, head in enumerate(heads.heads):
        assert tuple(head.first.linear.weight.shape) == (HIDDEN, (index + 2) * HIDDEN)
        assert not head.first.linear.weight.any()
        assert not head.block.linear.weight.any()
        assert head.first.residual.weight.any()
        rows = before if vocabulary is None else before[vocabulary.ids]
        assert torch.equal(head.lm_head.weight, rows)
        assert not head.lm_head.bias.any()
    randomise(heads)
    assert torch.equal(target.lm_head.weight, before)


def test_own_lm_heads_begin_with_the_bias_of_the_target():
    target = build(family("phi"), "sdpa")
    vocabulary = every_other(VOCAB)
    heads = HydraHeads(HydraConfig(**SIZES), target, vocabulary)

    assert target.lm_head.bias.any()
    assert torch.equal(heads.heads[0].lm_head.bias, target.lm_head.bias[vocabulary.ids])


def test_nodes_of_several_depths_are_answered_in_their_order(target):
    heads = make(target)
    states = [target_states(target, [1, 2, 3]), target_states(target, [5, 6])]
    deep = GrowingTree(4)
    for parent, token in ((0, 8), (0, 9), (1, 3), (3, 2)):
        deep.add(parent, token, 0.0)
    flat = GrowingTree(7)
    flat.add(0, 11, 0.0)
    with torch.no_grad():
        session = heads.begin(2)
        session.read(states, [torch.tensor([2, 3, 4]), torch.tensor([6, 7])])
        first, second = session.extend([deep, flat], [[4, 2, 3], [1]])
        empty, again = session.extend([deep, flat], [[], [1]])

    ends = [last_state(heads, one) for one in states]
    for logits, path in zip(first, ([4, 8, 3, 2], [4, 9], [4, 8, 3]), strict=True):
        torch.testing.assert_close(logits, hydra(heads, ends[0], path), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(second[0], hydra(heads, ends[1], [7, 11]), atol=1e-5, rtol=1e-5)
    assert empty.shape == (0, VOCAB)
    torch.testing.assert_close(again, second)


def test_a_head_runs_once_a_level_for_the_nodes_of_all_rows(target, monkeypatch):
    heads, asked = make(target), []
    head_logits = heads.head_logits

    def counting(index, inputs):
        asked.append((index, tuple(inputs.shape)))
        return head_logits(index, inputs)

    monkeypatch.setattr(heads, "head_logits", counting)
    trees = [GrowingTree(4), GrowingTree(7)]
    for tree, token in ((trees[0], 8), (trees[0], 9), (trees[1], 11)):
        tree.add(0, token, 0.0)
    with torch.no_grad():
        session = heads.begin(2)
        session.read([torch.zeros(3, HIDDEN)] * 2, [torch.tensor([1, 2, 4])] * 2)
        session.extend(trees, [[1, 2], [1]])

    assert asked == [(0, (2, 2 * HIDDEN)), (1, (3, 3 * HIDDEN))]


def test_bfloat16_heads_keep_the_frequencies_of_their_rotary_embedding(target):
    exact = make(target)
    heads = make(target).bfloat16()
    text = list(range(1, 60))
    states = target_states(target, text)

    frequencies = dict(heads.prefix.rotary.named_buffers())["inv_freq"]
    assert torch.equal(frequencies, dict(exact.prefix.rotary.named_buffers())["inv_freq"])
    with torch.no_grad():
        found = heads.states(states[None].bfloat16())[0]
    torch.testing.assert_close(found.float(), prefix_states(exact, states)[0], atol=0.15, rtol=0.1)


def test_bfloat16_heads_decode_a_bfloat16_target():
    target = build(family("llama"), "sdpa").bfloat16()
    heads = make(target).bfloat16()

    output = TreeDecoder(
        target, HeadDrafter(heads, least_gain=0.0), tree=TREE, self_check=False
    ).generate(
        PROMPTS.input_ids,
        attention_mask=PROMPTS.attention_mask,
        max_new_tokens=12,
        do_sample=False,
        pad_token_id=0,
    )

    assert output.sequences.shape == (3, PROMPTS.width + 12)
    assert all(stats.drafted > 0 for stats in output.stats)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_layers": 0}, "num_layers must be an integer of at least 1, got 0"),
        ({"lm_head": "own"}, 'lm_head must be "target" or "each"'),
        ({"lm_head": "target"}, "lm_head_bias is for LM heads of their own"),
        ({"prefix": tiny_layer(16)}, "prefix layer's hidden_size is 16, but the heads' is 32"),
    ],
)
@pytest.mark.usefixtures("_unchecked_types")
def test_impossible_sizes_are_refused(sizes, message):
    with pytest.raises(ConfigError, match=message):
        HydraConfig(**(SIZES | sizes))


def test_heads_of_another_width_are_refused(target):
    with pytest.raises(DrafterError, match="hidden_size is 48"):
        HydraHeads(HydraConfig(**(SIZES | {"hidden_size": 48, "prefix": None})), target)
