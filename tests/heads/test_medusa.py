"""Medusa heads: what they say, how they begin, and how little they compute for a tree."""

import pytest
import torch

from tests.families import VOCAB, build, family, tiny_model
from tests.heads.reference import (
    ComparedSession,
    every_other,
    medusa,
    randomise,
    target_states,
)
from tests.heads.scripted import ScriptedHeads
from tests.rig import plain_greedy, random_prompts
from treespec import BestFirst, Chain, MergedDrafter, StaticTree, TreeDecoder
from treespec.errors import ConfigError, DrafterError
from treespec.heads import HeadDrafter
from treespec.heads.medusa import MedusaConfig, MedusaHeads
from treespec.tree.growth import GrowingTree

HIDDEN = 32
PROMPTS = random_prompts((6, 2, 9), VOCAB)
TARGETS = ("llama", "qwen2", "qwen3")


def make(target, *, vocabulary=None, seed=0, **sizes) -> MedusaHeads:
    """Heads with random weights."""
    config = MedusaConfig(
        **({"num_heads": 4, "hidden_size": HIDDEN, "lm_head": "each"} | sizes),
    )
    heads = MedusaHeads(config, target, vocabulary)
    randomise(heads, seed)
    return heads


@pytest.fixture(scope="module")
def target():
    return tiny_model(family("llama"), "sdpa")


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"num_layers": 3},
        {"block_bias": False},
        {"lm_head": "target"},
        {"lm_head": "target", "num_layers": 2, "num_heads": 1},
    ],
)
def test_forward_equals_the_formula_head_by_head(target, sizes, reduced):
    heads = make(target, vocabulary=every_other(VOCAB) if reduced else None, **sizes)
    hidden = torch.randn(2, 3, HIDDEN, generator=torch.Generator().manual_seed(1))

    logits = heads(hidden)

    assert logits.shape == (2, 3, heads.max_depth, heads.num_columns)
    for head in range(heads.max_depth):
        for place in ((0, 0), (1, 2)):
            expected = medusa(heads, hidden[place], [0] * (head + 1))
            torch.testing.assert_close(logits[place][head], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [Chain(4), BestFirst(budget=14, depth=4, width=3)], ids=str)
@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("name", TARGETS)
def test_all_it_says_while_decoding_equals_the_reference(name, reduced, shape):
    target = tiny_model(family(name), "sdpa")
    heads = make(
        target,
        vocabulary=every_other(VOCAB) if reduced else None,
        lm_head="target" if reduced else "each",
    )
    plain = plain_greedy(target, PROMPTS, 14)
    compared = ComparedSession(heads, medusa, [one.tokens[: -len(one.new)] for one in plain])
    oracle = ScriptedHeads(target, [one.tokens for one in plain], [0, 0, 0], gaps=True)
    drafter = MergedDrafter([HeadDrafter(heads), HeadDrafter(oracle)])

    output = TreeDecoder(target, drafter, tree=shape).generate(
        PROMPTS.input_ids,
        attention_mask=PROMPTS.attention_mask,
        max_new_tokens=14,
        do_sample=False,
        pad_token_id=0,
    )

    assert output.sequences[:, PROMPTS.width :].tolist() == [one.new for one in plain]
    assert set(compared.depths) == {0, 1, 2, 3}
    assert max(stats.acceptance_length for stats in output.stats) > 1


def test_heads_are_named_as_medusa_names_them(target):
    each = make(target, num_heads=2, num_layers=2)
    shared = make(target, num_heads=1, lm_head="target", block_bias=False)

    assert {name: tuple(tensor.shape) for name, tensor in each.state_dict().items()} == {
        f"{head}.{name}": shape
        for head in (0, 1)
        for name, shape in (
            ("0.linear.weight", (HIDDEN, HIDDEN)),
            ("0.linear.bias", (HIDDEN,)),
            ("1.linear.weight", (HIDDEN, HIDDEN)),
            ("1.linear.bias", (HIDDEN,)),
            ("2.weight", (VOCAB, HIDDEN)),
        )
    }
    assert list(shared.state_dict()) == ["0.0.linear.weight"]


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("name", ["llama", "llama_tied"])
def test_fresh_heads_begin_near_the_target_and_share_no_weight_with_it(name, reduced):
    target = build(family(name), "sdpa")
    before = target.lm_head.weight.clone()
    vocabulary = every_other(VOCAB) if reduced else None
    config = MedusaConfig(num_heads=3, hidden_size=HIDDEN, lm_head="each")
    heads = MedusaHeads(config, target, vocabulary)

    weights = heads.state_dict()
    for head in range(3):
        bias = weights[f"{head}.0.linear.bias"]
        assert not weights[f"{head}.0.linear.weight"].any()
        assert 0 < float(bias.abs().max()) <= HIDDEN**-0.5
        rows = before if vocabulary is None else before[vocabulary.ids]
        assert torch.equal(weights[f"{head}.1.weight"], rows)
    randomise(heads)
    assert torch.equal(target.lm_head.weight, before)
    assert all(parameter.requires_grad for parameter in heads.parameters())


def test_gradients_reach_the_blocks_and_not_the_target():
    target = build(family("llama"), "sdpa")
    heads = make(target, lm_head="target")

    heads(torch.randn(2, HIDDEN)).logsumexp(-1).sum().backward()

    assert all(parameter.grad is not None for parameter in heads.parameters())
    assert all(parameter.grad is None for parameter in target.parameters())


def growing(tokens, parents) -> GrowingTree:
    tree = GrowingTree(tokens[0])
    for token, parent in zip(tokens[1:], parents, strict=True):
        tree.add(parent, token, 0.0)
    return tree


def test_a_head_runs_once_a_step_for_all_nodes_of_its_depth(target, monkeypatch):
    heads, asked = make(target), []
    head_logits = heads.head_logits

    def counting(head, hidden):
        asked.append((head, tuple(hidden.shape)))
        return head_logits(head, hidden)

    monkeypatch.setattr(heads, "head_logits", counting)
    states = [target_states(target, [1, 2, 3]), target_states(target, [5, 6])]
    with torch.no_grad():
        session = heads.begin(2)
        session.read(states, [torch.tensor([2, 3, 4]), torch.tensor([6, 7])])
        trees = [growing([4, 8, 9, 3], [0, 0, 1]), growing([7, 8], [0])]
        wide = session.extend(trees, [[1, 2], [1]])
        mixed = session.extend(trees, [[2, 3], []])

    assert asked == [(0, (2, HIDDEN)), (1, (2, HIDDEN)), (2, (2, HIDDEN))]
    assert wide[0].stride(0) == 0
    assert [len(logits) for logits in mixed] == [2, 0]
    for logits, path in ((wide[0][1], [4, 9]), (mixed[0][0], [4, 9]), (mixed[0][1], [4, 8, 3])):
        expected = medusa(heads, states[0][-1], path)
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def test_a_row_with_nothing_to_read_goes_on_from_its_last_state(target):
    heads = make(target)
    states = target_states(target, [1, 2, 3])
    nothing = torch.empty(0, HIDDEN), torch.empty(0, dtype=torch.int64)
    with torch.no_grad():
        session = heads.begin(2)
        session.read([states, states[:1]], [torch.tensor([2, 3, 4]), torch.tensor([2])])
        first, second = session.read([nothing[0], states[:2]], [nothing[1], torch.tensor([2, 3])])
        session.keep([0])
        tree = growing([4, 8], [0])
        later = session.extend([tree], [[1]])[0]

    assert first.shape == (0, VOCAB)
    assert second.shape == (1, VOCAB)
    torch.testing.assert_close(later[0], medusa(heads, states[-1], [4, 8]), atol=1e-5, rtol=1e-5)


def test_trees_are_no_deeper_than_there_are_heads(target):
    heads = make(target, num_heads=2)
    output = TreeDecoder(target, HeadDrafter(heads), tree=StaticTree([[0], [0, 0], [0, 0, 0]]))

    stats = output.generate(PROMPTS.prompts[0], max_new_tokens=6, do_sample=False).stats[0]

    # Five steps, of which the last may not draft and the one before by one level only.
    assert stats.drafted <= 2 * stats.steps


def test_bfloat16_heads_decode_a_bfloat16_target(target):
    target = build(family("llama"), "sdpa").bfloat16()
    heads = make(target).bfloat16()
    options = {"max_new_tokens": 12, "do_sample": False}

    plain = TreeDecoder(target, None, self_check=False).generate(PROMPTS.prompts[0], **options)
    drafter = HeadDrafter(heads)
    output = TreeDecoder(target, drafter, self_check=False).generate(PROMPTS.prompts[0], **options)

    assert heads(torch.zeros(1, HIDDEN, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert output.sequences.shape == plain.sequences.shape
    assert output.stats[0].drafted > 0


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_heads": 0}, "num_heads must be an integer of at least 1, got 0"),
        ({"num_layers": 1.5}, "num_layers must be an integer of at least 1, got 1.5"),
        ({"lm_head": "own"}, 'lm_head must be "target" or "each", got \'own\''),
    ],
)
@pytest.mark.usefixtures("_unchecked_types")
def test_impossible_sizes_are_refused(sizes, message):
    with pytest.raises(ConfigError, match=message):
        MedusaConfig(**({"num_heads": 2, "hidden_size": HIDDEN, "lm_head": "each"} | sizes))


def test_heads_of_another_width_are_refused(target):
    config = MedusaConfig(num_heads=2, hidden_size=48, lm_head="each")

    with pytest.raises(DrafterError, match="hidden_size is 48, but the LM head of Llama"):
        MedusaHeads(config, target)
