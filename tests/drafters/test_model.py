"""The model drafter: its draws, its cache, its limits, and what it refuses."""

import pytest
import torch

from tests.families import VOCAB, build, family
from tests.rig import random_prompts
from treespec import BestFirst, Chain, ModelDrafter, StaticTree, TreeDecoder
from treespec.drafters.model import ModelDraftSession
from treespec.errors import ConfigError, DrafterError
from treespec.verify import VERIFIERS

PROMPTS = random_prompts((7, 3, 5, 9), VOCAB)


def noisy_copy(model: torch.nn.Module, scale: float, seed: int = 1) -> torch.nn.Module:
    """A draft model that mostly agrees with the target."""
    draft = build(family("llama"), "sdpa")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for mine, theirs in zip(draft.parameters(), model.parameters(), strict=True):
            mine.copy_(theirs + scale * torch.randn(theirs.shape, generator=generator))
    return draft


@pytest.fixture(scope="module")
def target():
    return build(family("llama"), "sdpa")


@pytest.fixture(scope="module")
def draft(target):
    return noisy_copy(target, 0.02)


def generate(decoder: TreeDecoder, **options: object):
    return decoder.generate(
        PROMPTS.input_ids,
        attention_mask=PROMPTS.attention_mask,
        max_new_tokens=24,
        pad_token_id=0,
        **options,
    )


def test_a_target_that_drafts_for_itself_accepts_everything(target):
    drafter = ModelDrafter(target, least_gain=0.0)
    output = generate(TreeDecoder(target, drafter, tree=Chain(4)), do_sample=False)

    # 23 tokens in steps of 5, the last of them cut to 3.
    assert [stats.steps for stats in output.stats] == [5] * 4
    assert all(stats.accepted == stats.drafted for stats in output.stats)


@pytest.mark.parametrize(
    "shape",
    [Chain(3), BestFirst(budget=12, depth=4, width=3), StaticTree([[0], [1], [1, 0], [1, 0, 0]])],
)
@pytest.mark.parametrize("sampled", [False, True])
def test_output_equals_plain_decoding(target, draft, shape, sampled):
    options = {"do_sample": sampled, "seed": 5} | (
        {"temperature": 1.0, "top_k": 0} if sampled else {}
    )
    plain = generate(TreeDecoder(target, None), **options)
    tree = generate(TreeDecoder(target, ModelDrafter(draft), tree=shape), **options)

    assert torch.equal(plain.sequences, tree.sequences)
    assert max(stats.acceptance_length for stats in tree.stats) > 1.2


def test_its_cache_equals_a_fresh_forward_after_every_step(target, draft, monkeypatch):
    checked = 0
    observe, keep = ModelDraftSession.observe, ModelDraftSession.keep

    def checking(session, rounds):
        nonlocal checked
        observe(session, rounds)
        for row, (prompt, one) in enumerate(zip(texts, rounds, strict=True)):
            path = () if one.tree is None else one.tree.path_tokens(one.acceptance.path[-1])[1:]
            prompt += [*path, one.acceptance.next_token]
            length = session._cache.lengths[row]
            assert prompt[length:] == session._unread[row]
            if length:
                fresh = draft(torch.tensor([prompt[:length]])).cache
                for index, layer in enumerate(fresh.layers):
                    keys, values = session._cache.layer(index, row)
                    torch.testing.assert_close(keys, layer.keys[0], atol=1e-5, rtol=0)
                    torch.testing.assert_close(values, layer.values[0], atol=1e-5, rtol=0)
                checked += 1

    def keeping(session, rows):
        keep(session, rows)
        texts[:] = [texts[row] for row in rows]

    texts = [prompt[0].tolist() for prompt in PROMPTS.prompts]
    monkeypatch.setattr(ModelDraftSession, "observe", checking)
    monkeypatch.setattr(ModelDraftSession, "keep", keeping)
    generate(
        TreeDecoder(target, ModelDrafter(draft), tree=BestFirst(budget=12, depth=4, width=3)),
        do_sample=False,
        eos_token_id=None,
    )

    assert checked > 20


@pytest.mark.parametrize("name", [name for name in VERIFIERS if name != "gumbel"])
def test_every_rule_decodes_greedily_to_the_plain_text(target, draft, name):
    shape = Chain(4) if name in ("token", "block") else BestFirst(budget=12, depth=4, width=3)
    plain = generate(TreeDecoder(target, None), do_sample=False)
    ruled = generate(
        TreeDecoder(target, ModelDrafter(draft), tree=shape, verifier=name), do_sample=False
    )

    assert torch.equal(plain.sequences, ruled.sequences)


@pytest.mark.parametrize("name", ["token", "block", "rejection", "traversal", "kseq"])
def test_a_perfect_draft_is_accepted_whole_by_every_rule_that_samples(target, name):
    shape = Chain(4) if name in ("token", "block") else BestFirst(budget=12, depth=4, width=3)
    output = generate(
        TreeDecoder(target, ModelDrafter(target), tree=shape, verifier=name),
        do_sample=True,
        top_k=0,
        seed=3,
    )

    # What p and q of one model are computed by differs in the last bits, no more.
    assert all(stats.acceptance_length > 3 for stats in output.stats)


def test_it_stops_drafting_where_its_own_positions_end(target):
    draft = build(family("llama"), "sdpa", max_position_embeddings=16)
    with torch.no_grad():
        for mine, theirs in zip(draft.parameters(), target.parameters(), strict=True):
            mine.copy_(theirs)
    plain = generate(TreeDecoder(target, None), do_sample=False)
    tree = generate(TreeDecoder(target, ModelDrafter(draft), tree=Chain(4)), do_sample=False)

    assert torch.equal(plain.sequences, tree.sequences)
    assert all(stats.empty_drafts > 0 for stats in tree.stats)


@pytest.mark.parametrize("size", [VOCAB - 3, VOCAB + 5])
def test_a_differently_padded_vocabulary_is_no_obstacle(target, size):
    draft = build(family("llama"), "sdpa", vocab_size=size)
    plain = generate(TreeDecoder(target, None), do_sample=False)
    tree = generate(TreeDecoder(target, ModelDrafter(draft), tree=Chain(3)), do_sample=False)

    assert torch.equal(plain.sequences, tree.sequences)


def test_a_vocabulary_that_padding_cannot_explain_is_refused(target):
    draft = build(family("llama"), "sdpa", vocab_size=2 * VOCAB)

    with pytest.raises(DrafterError, match="more than padding explains"):
        generate(TreeDecoder(target, ModelDrafter(draft)), do_sample=False)


class FakeTokenizer:
    def __init__(self, words: str) -> None:
        self.words = words

    def get_vocab(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words)}


def test_tokenizers_that_disagree_are_refused_with_the_id(target):
    with pytest.raises(
        DrafterError, match="id 1 is 'c' for the draft model and 'b' for the target"
    ):
        ModelDrafter(target, tokenizer=FakeTokenizer("acb"), target_tokenizer=FakeTokenizer("abc"))


def test_a_longer_vocabulary_of_the_same_tokenizer_is_accepted(target):
    ModelDrafter(target, tokenizer=FakeTokenizer("abcd"), target_tokenizer=FakeTokenizer("abc"))


def test_an_unknown_draw_is_refused(target):
    with pytest.raises(ConfigError, match="draw is 'beam'"):
        ModelDrafter(target, draw="beam")
