"""What is trained is what drafts: unrolled heads against their own sessions."""

import pytest
import torch

from tests.training.training_cases import (
    FAMILIES,
    HIDDEN,
    VOCAB,
    example,
    settings,
    tiny_target,
)
from treespec.errors import ConfigError
from treespec.heads import DraftVocabulary
from treespec.heads.base import DraftHeads
from treespec.training.building import build_heads, layer_like
from treespec.training.features import FeatureSource
from treespec.training.packing import Batch
from treespec.training.unroll import step_mask, unroll
from treespec.tree.growth import GrowingTree

CLOSE = {"atol": 2e-4, "rtol": 2e-4}
LENGTH = 9


def heads_of(family, *, reduced=False, seed=0, **changes):
    """Heads whose every weight is random and matters."""
    vocabulary = DraftVocabulary(torch.arange(0, VOCAB, 2).flip(0), VOCAB) if reduced else None
    heads = build_heads(settings(family, **changes), tiny_target(), vocabulary)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in heads.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 1:
                weight.add_(0.1 * noise)
            else:
                weight.copy_(noise * 0.7 * weight.shape[-1] ** -0.5)
    return heads


def text_of(seed=0, length=LENGTH, name="a"):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, VOCAB, (length,), generator=generator)
    return example(tokens, (0, length), name)


def source_of(heads, **changes):
    options = {"needs_final": False, "data": None, "device": heads.device} | changes
    return FeatureSource(tiny_target(), heads.taps, **options)


@torch.no_grad()
def unrolled_logits(heads, batch, depth):
    """Logits of every depth at every position, `[B, L, K, D]`."""
    everywhere = torch.ones(batch.tokens.shape, dtype=torch.bool)
    places = [everywhere.clone() for _ in range(depth)]
    for index, place in enumerate(places):
        place[:, batch.tokens.shape[1] - 1 - index :] = False  # no tokens to read there
    found = torch.full((*batch.tokens.shape, depth, heads.num_columns), float("nan"))
    features = source_of(heads).of(batch)
    for index, one in enumerate(unroll(heads, batch, features, places)):
        found[:, :, index][places[index]] = one.guess.to_logits(one.guess.states)
    return found


@torch.no_grad()
def drafted_logits(heads, tokens, position, depth):
    """What a session says behind the pair of a position, along the path of the text itself."""
    output = tiny_target()(tokens[None], output_hidden_states=True)
    features = torch.cat([output.hidden_states[tap][0] for tap in heads.taps], dim=-1)
    session = heads.begin(1)
    found = [session.read([features[: position + 1]], [tokens[1 : position + 2]])[0][0]]
    tree, node = GrowingTree(int(tokens[position + 1])), 0
    for step in range(1, depth):
        node = tree.add(node, int(tokens[position + 1 + step]), 0.0)
        found.append(session.extend([tree], [[node]])[0][0])
    return torch.stack(found)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("medusa", {"num_layers": 2}),
        ("medusa", {"lm_head": "own"}),
        ("hydra", {"num_layers": 2, "reduced": True}),
        ("hydra", {"prefix": False, "lm_head": "own"}),
        ("eagle", {"reduced": True}),
        ("eagle3", {"reduced": True, "fc_norm": True}),
        ("eagle3", {"lm_head": "own", "taps": (2, 0)}),
    ],
)
def test_training_sees_the_logits_that_drafting_sees(family, changes):
    heads, one = heads_of(family, **changes), text_of()
    depth = settings(family).depth

    logits = unrolled_logits(heads, Batch.of([one], LENGTH), depth)[0]

    for position in range(LENGTH - depth - 1):
        expected = drafted_logits(heads, one.tokens, position, depth)
        torch.testing.assert_close(logits[position], expected, **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_is_not_seen_by_its_neighbours_in_the_batch(family):
    heads, depth = heads_of(family), settings(family).depth
    short, first, second = text_of(1, 7, "a"), text_of(2, 12, "b"), text_of(3, 12, "c")

    alone = unrolled_logits(heads, Batch.of([short], 16), depth)[0]
    beside = unrolled_logits(heads, Batch.of([short, first], 16), depth)[0]
    other = unrolled_logits(heads, Batch.of([short, second], 16), depth)[0]

    for position in range(7 - depth - 1):
        torch.testing.assert_close(beside[position], alone[position], **CLOSE)
        assert torch.equal(beside[position], other[position])


def test_a_later_step_sees_the_past_and_its_own_earlier_steps():
    mask = step_mask(3, 2, torch.device("cpu"))[0, 0].int().tolist()
    assert mask == [
        [1, 0, 0, 1, 0, 0, 1, 0, 0],
        [1, 1, 0, 0, 1, 0, 0, 1, 0],
        [1, 1, 1, 0, 0, 1, 0, 0, 1],
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_features_are_those_of_the_targets_own_forward(family):
    heads = heads_of(family)
    source = source_of(heads, needs_final=True)

    features = source.of(Batch.of([text_of(0, 6), text_of(1, 9)], 16))

    assert not source.is_stored
    for row, (length, seed) in enumerate([(6, 0), (9, 1)]):
        tokens = text_of(seed, length).tokens
        output = tiny_target()(tokens[None], output_hidden_states=True)
        wanted = torch.cat([output.hidden_states[tap][0] for tap in heads.taps], dim=-1)
        torch.testing.assert_close(features.inputs[row, :length], wanted.detach(), **CLOSE)
        law = heads.borrowed.logits(features.final[row, :length])
        torch.testing.assert_close(law, output.logits[0].detach(), **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_fresh_heads_are_the_seeds_own_and_leave_the_random_state(family):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build_heads(settings(family, seed=3), tiny_target())

    assert torch.equal(before, torch.get_rng_state())
    torch.rand(7)
    again = build_heads(settings(family, seed=3), tiny_target())
    for mine, theirs in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.dtype == torch.float32


def test_a_layer_is_sized_like_the_targets():
    layer = layer_like(tiny_target())
    assert (layer.hidden_size, layer.num_attention_heads, layer.num_key_value_heads) == (
        HIDDEN,
        4,
        2,
    )
    assert layer_like(tiny_target(), 24).intermediate_size == 24


def test_heads_of_an_unknown_kind_are_refused():
    class Others(DraftHeads):
        family = "others"

        def begin(self, batch):
            raise NotImplementedError

    heads = Others(tiny_target())
    batch = Batch.of([text_of()], 16)
    features = source_of(heads_of("medusa")).of(batch)
    with pytest.raises(ConfigError, match="Others cannot be trained; Medusa, Hydra and EAGLE can"):
        unroll(heads, batch, features, [])
