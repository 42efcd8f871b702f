"""The drafter of all head families: whatever the heads say, the text is the target's own."""

from functools import lru_cache

import pytest
import torch
from torch import Tensor

from tests.families import VOCAB, build, family, tiny_model
from tests.heads.reference import every_other, randomise, tiny_layer
from tests.heads.scripted import MirrorHeads, ScriptedHeads
from tests.rig import plain_greedy, random_prompts
from tests.watch import WatchingDrafter
from treespec import BestFirst, Chain, LookupDrafter, MergedDrafter, StaticTree, TreeDecoder
from treespec.errors import ConfigError, DrafterError
from treespec.heads import DraftHeads, HeadDrafter
from treespec.heads.hydra import HydraConfig, HydraHeads
from treespec.heads.medusa import MedusaConfig, MedusaHeads

NEW = 20
BATCHES = {
    "ragged": random_prompts((7, 3, 5, 9), VOCAB),
    "one": random_prompts((6,), VOCAB, seed=1),
    "short": random_prompts((1, 4, 1), VOCAB, seed=2),
}
SHAPES = {
    "chain": Chain(4),
    "tree": BestFirst(budget=39, depth=3, width=3),
    "static": StaticTree([[0], [1], [2], [2, 0], [2, 1], [2, 2], [2, 2, 0], [2, 2, 1], [2, 2, 2]]),
}
GREEDY = {"do_sample": False}
SAMPLED = {"do_sample": True, "temperature": 1.0, "top_k": 0, "seed": 5}


@pytest.fixture(scope="module")
def target():
    return tiny_model(family("llama"), "sdpa")


def generate(decoder, batch="ragged", new=NEW, **options):
    prompts = BATCHES[batch]
    return decoder.generate(
        prompts.input_ids,
        attention_mask=prompts.attention_mask,
        max_new_tokens=new,
        pad_token_id=0,
        **options,
    )


@lru_cache
def plain(batch: str, sampled: bool) -> tuple[Tensor, list[list[int]]]:
    """What plain decoding says, as a block and as one text a row."""
    decoder = TreeDecoder(tiny_model(family("llama"), "sdpa"), None)
    sequences = generate(decoder, batch, **(SAMPLED if sampled else GREEDY)).sequences
    prompts = BATCHES[batch]
    pads = [prompts.width - prompt.shape[1] for prompt in prompts.prompts]
    return sequences, [line[pad:].tolist() for line, pad in zip(sequences, pads, strict=True)]


RANKS = {"oracle": 0, "sibling": 2, "adversarial": None, "broken": 0}


def heads_of(kind: str, target, texts) -> DraftHeads:
    if kind == "medusa":
        heads: DraftHeads = MedusaHeads(
            MedusaConfig(num_heads=3, hidden_size=32, lm_head="each"), target
        )
        randomise(heads)
    elif kind == "hydra":
        heads = HydraHeads(
            HydraConfig(
                num_heads=3,
                num_layers=2,
                hidden_size=32,
                prefix=tiny_layer(),
                lm_head="each",
                lm_head_bias=True,
            ),
            target,
        )
        randomise(heads)
    else:
        ranks = [0, 2, None, 1] if kind == "mixed" else [RANKS[kind]] * len(texts)
        heads = ScriptedHeads(target, texts, ranks, broken=kind == "broken")
    return heads


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("shape", "batch"),
    [("chain", "ragged"), ("tree", "ragged"), ("static", "ragged"), ("tree", "one")],
)
@pytest.mark.parametrize("kind", [*RANKS, "mixed", "medusa", "hydra"])
def test_output_equals_plain_decoding(target, kind, shape, batch, sampled):
    expected, texts = plain(batch, sampled)
    drafter = HeadDrafter(heads_of(kind, target, texts), least_gain=0.0)
    decoder = TreeDecoder(target, drafter, tree=SHAPES[shape])

    output = generate(decoder, batch, **(SAMPLED if sampled else GREEDY))

    assert torch.equal(output.sequences, expected)
    lengths = [stats.acceptance_length for stats in output.stats]
    if kind == "oracle" and shape != "static":
        assert min(lengths) > 3
    if kind == "sibling" and shape != "chain":
        # Noise shuffles the siblings, and the static tree goes on below the third only.
        assert min(lengths) > (1.5 if shape == "static" and sampled else 2.5)
    if kind == "broken":
        assert [stats.drafted for stats in output.stats] == [0] * len(texts)


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("draw", ["shared", "topk"])
def test_sampled_text_is_plain_decoding_s_under_both_draws(target, draw, reduced):
    expected, texts = plain("ragged", True)
    vocabulary = every_other(VOCAB) if reduced else None
    heads = ScriptedHeads(target, texts, [0, 2, None, 1], vocabulary=vocabulary)
    watched = WatchingDrafter(HeadDrafter(heads, draw=draw))

    output = generate(TreeDecoder(target, watched, tree=SHAPES["tree"]), **SAMPLED)

    assert torch.equal(output.sequences, expected)
    proposed = {t for trees in watched.trees for tree in trees for t in tree.token_list[1:]}
    assert not reduced or proposed <= set(heads.vocabulary.ids.tolist())
    assert output.stats[0].acceptance_length > 1.2


RULES = [
    ("rejection", "swor"),
    ("rejection", "iid"),
    ("traversal", "swor"),
    ("traversal", "iid"),
    ("kseq", "iid_paths"),
]


@pytest.mark.parametrize(("rule", "draw"), RULES)
def test_every_rule_decodes_greedily_to_the_plain_text(target, rule, draw):
    expected, texts = plain("ragged", False)
    drafter = HeadDrafter(ScriptedHeads(target, texts, [0, 2, None, 1]), draw=draw)

    output = generate(TreeDecoder(target, drafter, tree=SHAPES["tree"], verifier=rule), **GREEDY)

    assert torch.equal(output.sequences, expected)


@pytest.mark.parametrize(("rule", "draw"), RULES)
def test_heads_that_mirror_the_target_are_accepted_whole_by_every_rule(target, rule, draw):
    texts = [prompt[0].tolist() for prompt in BATCHES["ragged"].prompts]
    heads = MirrorHeads(target, texts, [0] * 4)
    drafter = HeadDrafter(heads, draw=draw, least_gain=0.0)
    shape = BestFirst(budget=9, depth=3, width=3)

    output = generate(
        TreeDecoder(target, drafter, tree=shape, verifier=rule), new=12, **(SAMPLED | {"seed": 3})
    )

    # 11 tokens after the first, at least 3 a step; one more step for what rounding may reject.
    assert all(stats.emitted == 12 and stats.steps <= 5 for stats in output.stats)


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("draw", ["swor", "iid"])
def test_trees_carry_the_law_that_their_tokens_were_drawn_from(target, draw, reduced):
    texts = plain("ragged", False)[1]
    vocabulary = every_other(VOCAB) if reduced else None
    heads = ScriptedHeads(target, texts, [0, 2, None, 1], vocabulary=vocabulary)
    watched = WatchingDrafter(HeadDrafter(heads, draw=draw))
    options = SAMPLED | {"temperature": 0.7}
    generate(
        TreeDecoder(target, watched, tree=SHAPES["tree"], verifier="rejection"), "one", **options
    )

    columns = slice(None) if vocabulary is None else vocabulary.ids
    for (tree,), (root,) in zip(watched.trees, watched.roots, strict=True):
        for node, below in enumerate(tree.topology.children):
            if below:
                law = torch.zeros(VOCAB)
                logits = heads.say(0, root + tree.topology.depth_list[node])
                law[columns] = (logits / 0.7).softmax(-1)
                torch.testing.assert_close(tree.draft_probs[node], law)
    assert len(watched.trees) > 3


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["mixed", "medusa", "hydra"])
def test_merged_with_lookup_the_text_is_still_plain_decoding_s(target, kind, sampled):
    expected, texts = plain("ragged", sampled)
    heads = HeadDrafter(heads_of(kind, target, texts))
    watched = WatchingDrafter(MergedDrafter([heads, LookupDrafter()]))

    output = generate(
        TreeDecoder(target, watched, tree=SHAPES["tree"]), **(SAMPLED if sampled else GREEDY)
    )

    assert torch.equal(output.sequences, expected)
    assert any(tree.sources[1:].any() for trees in watched.trees for tree in trees)
    if kind == "mixed":
        assert output.stats[0].acceptance_length > 3


@pytest.mark.parametrize("kind", ["mixed", "medusa", "hydra"])
def test_rows_that_end_early_leave_the_others_as_they_were(target, kind):
    batch = BATCHES["ragged"]
    _, texts = plain("ragged", False)
    ends = [texts[0][7 + 4], texts[3][9 + 9]]
    expected = plain_greedy(target, batch, NEW, eos=ends)
    drafter = HeadDrafter(heads_of(kind, target, texts), least_gain=0.0)

    output = generate(TreeDecoder(target, drafter), eos_token_id=ends, **GREEDY)

    found = output.sequences[:, batch.width :].tolist()
    assert len({len(one.new) for one in expected}) > 1
    for line, one in zip(found, expected, strict=True):
        assert line == one.new + [0] * (len(line) - len(one.new))


@pytest.mark.parametrize("new", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("kind", ["mixed", "hydra"])
def test_text_ends_at_the_limit_and_heads_are_not_asked_behind_it(target, kind, new):
    expected, texts = plain("ragged", False)
    heads = heads_of(kind, target, texts)
    watched = WatchingDrafter(HeadDrafter(heads, least_gain=0.0))

    output = generate(TreeDecoder(target, watched, tree=SHAPES["static"]), new=new, **GREEDY)

    assert torch.equal(output.sequences, expected[:, : BATCHES["ragged"].width + new])
    if kind == "mixed":
        asked = [any(len(tree) > 1 for tree in trees) for trees in watched.trees]
        assert heads.reads == sum(asked)


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["oracle", "medusa", "hydra"])
def test_prompts_of_one_token_are_enough(target, kind, sampled):
    expected, texts = plain("short", sampled)
    drafter = HeadDrafter(heads_of(kind, target, texts), least_gain=0.0)

    output = generate(TreeDecoder(target, drafter), "short", **(SAMPLED if sampled else GREEDY))

    assert torch.equal(output.sequences, expected)


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_a_cache_given_for_a_second_turn_changes_nothing(target, kind):
    texts = plain("one", False)[1]
    decoder = TreeDecoder(target, HeadDrafter(heads_of(kind, target, texts), least_gain=0.0))
    turn, cache = BATCHES["one"].input_ids, None
    for _ in range(3):
        options = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
        given = {} if cache is None else {"cache": cache}
        output = decoder.generate(turn, return_dict_in_generate=True, **given, **options)
        assert torch.equal(output.sequences, target.generate(turn, **options))
        turn = torch.cat([output.sequences, torch.tensor([[3, 8, 5]])], dim=1)
        cache = output.cache


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_several_sequences_of_a_prompt_are_those_of_plain_decoding(target, kind):
    options = SAMPLED | {"num_return_sequences": 3}
    expected = generate(TreeDecoder(target, None), **options)
    drafter = HeadDrafter(heads_of(kind, target, []), least_gain=0.0)

    output = generate(TreeDecoder(target, drafter), **options)

    assert len(output.sequences) == 12
    assert torch.equal(output.sequences, expected.sequences)


@pytest.mark.parametrize(("gain", "extended"), [(None, False), (0.0, True)])
def test_levels_that_promise_nothing_are_not_asked_for(target, gain, extended):
    heads = ScriptedHeads(target, [[]] * 4, [0] * 4)  # no text: all tokens are about as likely

    decoder = TreeDecoder(target, HeadDrafter(heads, least_gain=gain), tree=Chain(4))
    generate(decoder, new=6, **GREEDY)

    assert (heads.extends > 0) == extended


def test_heads_that_cost_nothing_a_level_are_asked_for_all():
    target = build(family("llama"), "sdpa")

    assert HeadDrafter(heads_of("medusa", target, [])).least_gain == 0
    assert HeadDrafter(heads_of("hydra", target, [])).least_gain > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [({"draw": "beam"}, "draw is 'beam'"), ({"least_gain": 2.0}, "least_gain must be in")],
)
def test_impossible_options_are_refused(target, options, message):
    with pytest.raises(ConfigError, match=message):
        HeadDrafter(heads_of("medusa", target, []), **options)


def test_heads_of_a_target_with_another_vocabulary_are_refused(target):
    other = build(family("llama"), "sdpa", vocab_size=VOCAB + 3)
    decoder = TreeDecoder(target, HeadDrafter(heads_of("medusa", other, [])))

    with pytest.raises(DrafterError, match="100 logits, but this one has 97"):
        generate(decoder, **GREEDY)
