"""Decoding with EAGLE heads: the target's own text, and caches that hold committed pairs only."""

import pytest
import torch

from tests.families import build, family
from tests.heads.eagle_cases import head_of
from tests.rig import emitted_by, random_prompts
from treespec import BestFirst, Chain, StaticTree, TreeDecoder
from treespec.heads import HeadDrafter
from treespec.heads.drafter import HeadDraftSession

# Few tokens, so that wide trees of untrained heads are often right by chance.
_VOCAB = 31
_NEW = 14
WIDE = BestFirst(budget=24, depth=4, width=8)
SAMPLING = {"do_sample": True, "top_k": 0, "seed": 5}
PROMPTS = random_prompts((7, 1, 5, 12), _VOCAB)


@pytest.fixture(scope="module")
def target():
    return build(family("llama"), "sdpa", vocab_size=_VOCAB)


@pytest.fixture(scope="module")
def plain_texts(target):
    return {
        sampled: generate(TreeDecoder(target, None), **(SAMPLING if sampled else {})).sequences
        for sampled in (False, True)
    }


def drafter(variant, target, **options):
    """One that always asks for the next level."""
    return HeadDrafter(head_of(variant, target), least_gain=0.0, **options)


def generate(decoder: TreeDecoder, prompts=PROMPTS, **options: object):
    arguments = {"max_new_tokens": _NEW, "do_sample": False, "pad_token_id": 0} | options
    return decoder.generate(prompts.input_ids, attention_mask=prompts.attention_mask, **arguments)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("variant", ["1", "3", "3_target_head", "3_narrow"])
def test_a_batch_gets_the_plain_text(target, plain_texts, variant, sampled):
    options = SAMPLING if sampled else {}
    tree = generate(TreeDecoder(target, drafter(variant, target), tree=WIDE), **options)

    assert torch.equal(plain_texts[sampled], tree.sequences)
    assert sum(stats.accepted for stats in tree.stats) > 0


@pytest.mark.parametrize("length", [1, 9])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("variant", ["1", "3"])
def test_a_single_prompt_gets_the_plain_text(target, variant, sampled, length):
    prompts = random_prompts((length,), _VOCAB, seed=length)
    options = SAMPLING if sampled else {}
    plain = generate(TreeDecoder(target, None), prompts, **options)
    tree = generate(TreeDecoder(target, drafter(variant, target), tree=WIDE), prompts, **options)

    assert torch.equal(plain.sequences, tree.sequences)


@pytest.mark.parametrize(
    ("shape", "rule"),
    [
        (Chain(3), "block"),
        (StaticTree([[0], [1], [2], [1, 0], [1, 1], [1, 1, 0], [2, 0]]), "rejection"),
    ],
)
def test_every_shape_of_tree_gets_the_plain_text(target, plain_texts, shape, rule):
    decoder = TreeDecoder(target, drafter("3", target), tree=shape, verifier=rule)

    assert torch.equal(plain_texts[False], generate(decoder).sequences)


class Watch:
    """Compares a head's cache with a fresh run over the same pairs, after every reading."""

    def __init__(self, head, prompts, monkeypatch):
        self.head = head
        self.texts = [prompt[0].tolist() for prompt in prompts.prompts]
        self.checked = self.accepted = self.left = 0
        propose, observe, keep = (
            HeadDraftSession.propose,
            HeadDraftSession.observe,
            HeadDraftSession.keep,
        )

        def proposing(session, limits):
            trees = propose(session, limits)
            for row, limit in enumerate(limits):
                self.check(session._session, row, behind=limit.budget == 0)
            return trees

        def observing(session, rounds):
            observe(session, rounds)
            for text, one in zip(self.texts, rounds, strict=True):
                emitted = emitted_by(one)
                self.accepted += len(emitted) - 1
                text += emitted

        def keeping(session, rows):
            keep(session, rows)
            self.left += len(self.texts) - len(rows)
            self.texts = [self.texts[row] for row in rows]

        monkeypatch.setattr(HeadDraftSession, "propose", proposing)
        monkeypatch.setattr(HeadDraftSession, "observe", observing)
        monkeypatch.setattr(HeadDraftSession, "keep", keeping)

    @torch.no_grad()
    def check(self, session, row, *, behind):
        text, length = torch.tensor(self.texts[row]), session.lengths[row]
        assert behind or length == len(text) - 1
        output = self.head.borrowed.target(text[None, :length], output_hidden_states=True)
        features = torch.cat([output.hidden_states[tap][0] for tap in self.head.taps], dim=-1)
        fresh = self.head.begin(1)
        fresh.read([features], [text[1 : length + 1]])
        for mine, theirs in zip(session.committed(row), fresh.committed(0), strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
        self.checked += 1


@pytest.mark.parametrize("rows", [(6,), (7, 1, 5, 12)])
@pytest.mark.parametrize("variant", ["1", "3", "3_narrow"])
def test_its_cache_equals_a_fresh_run_over_the_committed_pairs_after_every_step(
    target, variant, rows, monkeypatch
):
    prompts = random_prompts(rows, _VOCAB)
    plain = generate(TreeDecoder(target, None), prompts).sequences[:, prompts.width :]
    ends = [int(row[place]) for row, place in zip(plain[1:], (6, 9), strict=False)]
    ours = drafter(variant, target)
    watch = Watch(ours.heads, prompts, monkeypatch)
    output = generate(TreeDecoder(target, ours, tree=WIDE), prompts, eos_token_id=ends or None)

    assert watch.checked >= 5 * len(rows) ** 0.5
    assert watch.accepted > 0
    assert watch.left >= len(rows) // 2
    for row, mine in zip(
        plain.tolist(), output.sequences[:, prompts.width :].tolist(), strict=True
    ):
        stop = next((place + 1 for place, token in enumerate(row) if token in ends), len(row))
        assert mine[:stop] == row[:stop]
