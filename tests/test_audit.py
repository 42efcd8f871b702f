"""The audit's verdicts: a near-tie, a processor's cut-off, or a violation."""

import copy

import pytest
import torch

from tests.families import VOCAB, build, family
from tests.rig import random_prompts
from treespec import TreeDecoder
from treespec.audit import Divergence, compare
from treespec.rows import Row
from treespec.sampling import RowNoise

PROMPT = random_prompts((9,), VOCAB)
SEED = 5


@pytest.fixture(scope="module")
def decoder() -> TreeDecoder:
    return TreeDecoder(build(family("llama"), "sdpa"), None)


@pytest.fixture(scope="module")
def law(decoder: TreeDecoder) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Tokens after the prompt from the most probable down, their probabilities and noisy scores."""
    with torch.no_grad():
        logits = decoder.target.model(PROMPT.input_ids).logits[0, -1]
    ranked = logits.sort(descending=True)
    noise = RowNoise(SEED).at(PROMPT.width, ranked.indices)
    return ranked.indices.tolist(), ranked.values.softmax(-1), ranked.values + noise


def row(decoder: TreeDecoder, top_p: float) -> Row:
    """A plain row of one new token."""
    hook = decoder.hook(seed=SEED)
    hook.call(PROMPT.input_ids, max_new_tokens=1, do_sample=True, top_k=0, top_p=top_p)
    return hook.rows[0]


def verdict(decoder: TreeDecoder, plain: Row, other_token: int) -> Divergence:
    """What the audit says if the tree emits another token than `plain` does."""
    other = copy.copy(plain)
    other.new_tokens = [other_token]
    found = compare(decoder.target, [plain], [other], nodes=4, temperature=1.0)
    return found.divergences[0]


def test_a_token_barely_cut_off_is_one_at_a_cut_off(decoder, law):
    tokens, probs, _ = law
    plain = row(decoder, top_p=float(probs[:10].sum()) * (1 - 1e-5))

    found = verdict(decoder, plain, tokens[10])

    assert found.gap == torch.inf
    assert found.verdict == "cut-off"
    assert found.is_near_tie


def test_a_token_cut_off_by_far_is_a_violation(decoder, law):
    tokens, probs, _ = law
    plain = row(decoder, top_p=float(probs[:10].sum()) * (1 - 1e-5))

    assert verdict(decoder, plain, tokens[14]).verdict == "VIOLATION"


def test_the_best_token_barely_kept_may_be_missing_from_the_tree(decoder, law):
    tokens, probs, scores = law
    best = int(scores.argmax())
    assert best > 0, "with this seed the noise must choose another token than the most probable"
    plain = row(decoder, top_p=float(probs[:best].sum()) * (1 + 1e-5))
    second = int(scores[:best].argmax())

    found = verdict(decoder, plain, tokens[second])

    assert plain.new_tokens == [tokens[best]]
    assert found.gap > found.tolerance
    assert found.verdict == "cut-off"


@pytest.mark.parametrize("top_p", [0.999, 1.0])
def test_a_worse_token_that_is_kept_is_a_violation(decoder, law, top_p):
    tokens, _, scores = law
    plain = row(decoder, top_p=top_p)
    worse = int(scores[:20].argmin())

    found = verdict(decoder, plain, tokens[worse])

    assert found.gap > 1e-3
    assert found.verdict == "VIOLATION"


def test_a_better_token_is_a_violation_of_plain_decoding(decoder, law):
    tokens, _, scores = law
    plain = row(decoder, top_p=1.0)
    plain = copy.copy(plain)
    plain.new_tokens = [tokens[int(scores[:20].argmin())]]

    found = verdict(decoder, plain, tokens[int(scores.argmax())])

    assert found.gap < -1e-3
    assert found.verdict == "VIOLATION"


def test_equal_texts_have_no_divergence(decoder):
    plain = row(decoder, top_p=0.9)

    found = compare(decoder.target, [plain], [copy.copy(plain)], nodes=4, temperature=1.0)

    assert found.divergences == ()
    assert (found.tokens, found.near_ties, found.cut_offs, found.violations) == (1, 0, 0, 0)
