"""EAGLE heads against their formulas: sessions over trees, whole texts, unrolled training steps."""

import pytest
import torch
from transformers import DynamicCache

from tests.families import VOCAB, build, family, tiny_model
from tests.heads.eagle_cases import VARIANTS, H, asked, config_of, head_of, pairs, path_of
from tests.heads.eagle_reference import Reference
from treespec.errors import CheckpointError, ConfigError, DrafterError
from treespec.heads import DraftVocabulary
from treespec.heads.eagle import EagleHead, default_taps
from treespec.tree.growth import GrowingTree

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
_ATTENTION = {f"layer.self_attn.{name}_proj.weight" for name in "qkvo"}
_LAYER = _ATTENTION | {
    "layer.post_attention_layernorm.weight",
    "layer.mlp.gate_proj.weight",
    "layer.mlp.up_proj.weight",
    "layer.mlp.down_proj.weight",
    "fc.weight",
}
_LATER = _LAYER | {
    "layer.input_layernorm.weight",
    "layer.hidden_norm.weight",
    "norm.weight",
    "lm_head.weight",
}


def lower_triangle(size: int) -> torch.Tensor:
    return torch.ones(size, size, dtype=torch.bool).tril()


@torch.no_grad()
def check_round(head, session, features, tokens, new, *, width):
    """Read the `new` pairs at the end of every row, grow trees, and compare all logits."""
    reference = Reference(head)
    roots = session.read(
        [row[len(row) - count :] for row, count in zip(features, new, strict=True)],
        [row[len(row) - count :] for row, count in zip(tokens, new, strict=True)],
    )
    assert session.lengths == [len(row) for row in tokens]
    trees = [GrowingTree(int(row[-1])) for row in tokens]
    found = asked(session, trees, 5, width=width, seed=sum(new))
    depths = set()
    for row, (feature, text) in enumerate(zip(features, tokens, strict=True)):
        assert roots[row].shape == (min(new[row], 1), head.num_columns)
        for logits in roots[row]:
            torch.testing.assert_close(logits, reference.path(feature, text.tolist(), ()), **CLOSE)
        for node, logits in found[row].items():
            expected = reference.path(feature, text.tolist(), path_of(trees[row], node))
            torch.testing.assert_close(logits, expected, **CLOSE)
            depths.add(trees[row].depths[node])
    assert depths == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("variant", "width"), [(variant, 3) for variant in VARIANTS] + [("1", 1), ("3", 1)]
)
def test_a_session_predicts_what_the_formulas_say(variant, width):
    head = head_of(variant)
    features, tokens = pairs(head, (3, 4, 5))
    before = (1, 4, 2)
    session = head.begin(3)

    check_round(
        head,
        session,
        [row[:count] for row, count in zip(features, before, strict=True)],
        [row[:count] for row, count in zip(tokens, before, strict=True)],
        before,
        width=width,
    )
    # The second row has nothing new, and grows another tree from the same root.
    check_round(head, session, features, tokens, (2, 0, 3), width=width)


@torch.no_grad()
def test_a_long_prompt_is_read_in_pieces(monkeypatch):
    head = head_of("3")
    features, tokens = pairs(head, (11, 1, 6))
    whole, pieces = head.begin(3), head.begin(3)
    expected = whole.read(features, tokens)
    monkeypatch.setattr("treespec.heads.layer.CHUNK", 4)
    found = pieces.read(features, tokens)

    assert pieces.lengths == [11, 1, 6]
    for row in range(3):
        torch.testing.assert_close(found[row], expected[row], **CLOSE)
        for mine, theirs in zip(pieces.committed(row), whole.committed(row), strict=True):
            torch.testing.assert_close(mine, theirs, **CLOSE)


@torch.no_grad()
def test_reading_nothing_forgets_the_trees_and_keeps_the_roots():
    head = head_of("3")
    features, tokens = pairs(head, (3, 2))
    session = head.begin(2)
    session.read(features, tokens)
    first = asked(session, [GrowingTree(5), GrowingTree(6)], 3)
    empty = session.read([row[:0] for row in features], [row[:0] for row in tokens])
    second = asked(session, [GrowingTree(5), GrowingTree(6)], 3)

    assert [row.shape for row in empty] == [(0, head.num_columns)] * 2
    for before, after in zip(first, second, strict=True):
        assert before.keys() == after.keys()
        for node in before:
            torch.testing.assert_close(before[node], after[node], **CLOSE)


@torch.no_grad()
def test_kept_rows_go_on_in_their_new_order():
    head = head_of("3")
    features, tokens = pairs(head, (3, 2, 4))
    session, alone = head.begin(3), head.begin(1)
    session.read(features, tokens)
    session.keep([2, 0])
    alone.read(features[:1], tokens[:1])
    tree = GrowingTree(5)
    node = tree.add(0, 7, 0.0)
    found = session.extend([GrowingTree(1), tree], [[], [node]])

    assert session.lengths == [4, 3]
    assert found[0].shape == (0, head.num_columns)
    torch.testing.assert_close(found[1], alone.extend([tree], [[node]])[0], **CLOSE)


@torch.no_grad()
def test_a_node_of_depth_d_is_read_at_the_position_of_the_root_plus_d_minus_1():
    head = head_of("3")
    seen = []
    head.rotary.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[1]))
    features, tokens = pairs(head, (4, 1))
    session = head.begin(2)
    session.read(features, tokens)
    trees = [GrowingTree(1), GrowingTree(2)]
    level = [[tree.add(0, 3, 0.0), tree.add(0, 4, 0.0)] for tree in trees]
    session.extend(trees, level)
    session.extend(trees, [[tree.add(1, 5, 0.0)] for tree in trees])
    session.extend(trees, [[tree.add(3, 6, 0.0)] for tree in trees])

    # Roots stand behind as many tokens as there are pairs: at positions 4 and 1.
    assert [positions.tolist() for positions in seen] == [
        [[0, 1, 2, 3], [0, 0, 0, 0]],
        [[4, 4], [1, 1]],
        [[5], [2]],
        [[6], [3]],
    ]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_whole_text_gives_what_the_formulas_say_and_gradients_to_every_weight(variant):
    head = head_of(variant)
    reference = Reference(head)
    features, tokens = pairs(head, (5, 5))
    found = head(torch.stack(features), torch.stack(tokens))
    masked = head(torch.stack(features), torch.stack(tokens), lower_triangle(5)[None, None])
    (found.logits.square().sum() + found.states.sum()).backward()

    torch.testing.assert_close(found.logits, masked.logits, **CLOSE)
    torch.testing.assert_close(found.states, masked.states, **CLOSE)
    for row in range(2):
        for end in range(1, 6):
            expected = reference.path(features[row][:end], tokens[row][:end].tolist(), ())
            torch.testing.assert_close(found.logits[row, end - 1].detach(), expected, **CLOSE)
    assert all(parameter.grad is not None for parameter in head.parameters())
    assert all(parameter.grad.abs().sum() > 0 for parameter in head.parameters())
    assert all(parameter.grad is None for parameter in head.borrowed.target.parameters())


@pytest.mark.parametrize("variant", ["1_bias", "3", "3_narrow"])
def test_steps_that_feed_the_head_its_own_states_equal_drafting_from_every_position(variant):
    """EAGLE-3's training: causal over true positions, and each earlier step of the same index."""
    head = head_of(variant)
    reference = Reference(head)
    (features,), (tokens,) = pairs(head, (7,))
    size, cache = 5, DynamicCache()
    mask = lower_triangle(size)
    hidden = head.fuse(features[None, :size])
    for step in range(3):
        later = tokens[None, step : size + step]
        attend = head.attend(torch.arange(size)[None] + step, mask=mask[None, None], cache=cache)
        outputs = head.step(hidden, head.embed(later), attend)
        for end in range(1, size + 1):
            text = tokens.tolist()
            expected = reference.path(features[:end], text[:end], text[end : end + step])
            torch.testing.assert_close(head.logits(outputs)[0, end - 1].detach(), expected, **CLOSE)
        hidden = head.feedback(outputs)
        mask = torch.cat([mask, torch.eye(size, dtype=torch.bool)], dim=1)
    head.logits(outputs).square().sum().backward()

    assert all(parameter.grad is not None for parameter in head.parameters())


@torch.no_grad()
def test_a_bfloat16_head_says_about_the_same_and_turns_positions_exactly():
    exact, rounded = head_of("3"), head_of("3").to(torch.bfloat16)
    features, tokens = pairs(exact, (6, 2))
    tree = GrowingTree(3)
    node = tree.add(0, 4, 0.0)
    found = []
    for head in (exact, rounded):
        session = head.begin(2)
        read = session.read([row.to(head.dtype) for row in features], tokens)
        found.append([*read, *session.extend([tree, tree], [[node], [node]])])

    assert torch.equal(exact.rotary.inv_freq, rounded.rotary.inv_freq)
    for mine, theirs in zip(*found, strict=True):
        assert theirs.dtype == torch.bfloat16
        torch.testing.assert_close(theirs.float(), mine, atol=0.15, rtol=0.05)


@torch.no_grad()
def test_a_fresh_head_of_version_3_passes_its_hidden_states_through():
    head = EagleHead(config_of("3"), tiny_model(family("llama"), "sdpa"))
    (features,), (tokens,) = pairs(head, (4,))
    states = head(features[None], tokens[None]).states

    assert torch.equal(states, head.fuse(features[None]))
    assert head.fc.weight.abs().sum() > 0


def test_a_fresh_head_with_its_own_embedding_begins_with_a_copy_of_the_targets():
    target = tiny_model(family("llama"), "sdpa")
    head = EagleHead(config_of("1_own"), target)
    theirs = target.get_input_embeddings().weight

    assert torch.equal(head.embed_tokens.weight, theirs)
    assert head.embed_tokens.weight.data_ptr() != theirs.data_ptr()


@pytest.mark.parametrize(
    ("variant", "keys"),
    [
        ("1", _LAYER),
        ("1_own", _LAYER | {"embed_tokens.weight", "lm_head.weight"}),
        ("1_embedding_norm", _LAYER | {"embed_layernorm.weight"}),
        ("3", _LATER),
        ("3_target_head", _LATER - {"lm_head.weight"}),
        ("3_fc_norm", _LATER | {f"fc_norm.{place}.weight" for place in range(3)}),
        ("3_norm_before_fc", _LATER | {"input_norm.weight"}),
    ],
)
def test_the_state_dict_has_these_names(variant, keys):
    assert set(head_of(variant).state_dict()) == keys


def test_family_and_taps_follow_the_configuration():
    first, third = head_of("1"), head_of("3_repeated_taps")

    assert (first.family, first.taps) == ("eagle", (2,))
    assert (third.family, third.taps) == ("eagle3", (1, 1, 0))
    assert (first.num_columns, third.num_columns) == (VOCAB, VOCAB)
    assert head_of("3").num_columns == (VOCAB + 1) // 2


@pytest.mark.parametrize(
    ("layers", "taps"), [(32, (2, 16, 29)), (80, (2, 40, 77)), (2, (0, 1, 1)), (1, (0, 0, 0))]
)
def test_usual_taps_exist_in_targets_of_any_depth(layers, taps):
    assert default_taps(layers) == taps


@pytest.mark.usefixtures("_unchecked_types")
@pytest.mark.parametrize(
    ("variant", "changes", "message"),
    [
        ("3", {"version": 2}, "version is 2"),
        ("3", {"lm_head": "mine"}, "lm_head is 'mine'"),
        ("3", {"feedback": "both"}, "feedback is 'both'"),
        ("3", {"taps": ()}, "taps is empty"),
        ("1", {"taps": (1, 2)}, "one tap"),
        ("1", {"target_hidden_size": 48}, "size 48, not 32"),
        ("1", {"fc_norm": True, "feedback": "post_norm"}, "fc_norm, feedback='post_norm' needs"),
        ("3", {"embedding_norm": True}, "version 1"),
        ("3", {"target_hidden_size": 48}, "set own_embedding=True and lm_head='own'"),
    ],
)
def test_contradictions_in_a_configuration_are_named(variant, changes, message):
    with pytest.raises(ConfigError, match=message):
        config_of(variant, **changes)


@pytest.mark.parametrize(
    ("variant", "changes", "message"),
    [
        ("3", {"taps": (0, 1, 3)}, r"reads hidden states \[0, 1, 3\], but .* has 0 to 2"),
        ("1", {"taps": (1,)}, r"taps is \(1,\); set it to \(2,\)"),
        ("3_narrow", {"target_hidden_size": 48}, "hidden states of .* have size 32"),
    ],
)
def test_a_target_that_does_not_fit_is_refused(variant, changes, message):
    with pytest.raises(DrafterError, match=message):
        EagleHead(config_of(variant, **changes), tiny_model(family("llama"), "sdpa"))


def test_a_target_of_another_width_is_refused():
    target = build(family("llama"), "sdpa", hidden_size=2 * H)

    with pytest.raises(DrafterError, match=f"have size {2 * H}, but .* made for {H}"):
        EagleHead(config_of("3"), target)


def test_a_vocabulary_of_a_larger_target_is_refused():
    vocabulary = DraftVocabulary(torch.arange(4), VOCAB + 1)

    with pytest.raises(CheckpointError, match=f"for {VOCAB + 1} tokens"):
        EagleHead(config_of("3"), tiny_model(family("llama"), "sdpa"), vocabulary)
