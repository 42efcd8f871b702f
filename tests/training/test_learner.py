"""What one batch teaches: losses by hand, restricted vocabularies, the target untouched."""

import pytest
import torch

from tests.training.test_unroll import heads_of, source_of, unrolled_logits
from tests.training.training_cases import (
    FAMILIES,
    VOCAB,
    ragged_examples,
    settings,
    tiny_target,
)
from treespec.training.features import at_rest
from treespec.training.learner import Learner
from treespec.training.metrics import Tally
from treespec.training.packing import Batch

BATCH = Batch.of(ragged_examples(6), 24)


def learner_of(family, *, reduced=False, sizes=None, **changes):
    heads = heads_of(family, reduced=reduced, **(sizes or {}))
    config = settings(family, **(sizes or {}), **changes)
    return Learner(heads, config, source_of(heads, needs_final=config.kl_share > 0))


def expected_loss(learner, config, reduced):
    """Cross-entropy or divergence of one batch, position by position."""
    heads = learner.heads
    logits = unrolled_logits(heads, BATCH, config.depth).log_softmax(-1)
    ids = list(range(VOCAB)) if heads.vocabulary is None else heads.vocabulary.ids.tolist()
    laws = tiny_target()(BATCH.tokens).logits.detach()[..., ids]
    total = 0.0
    for depth in range(config.depth):
        terms = []
        for row, length in enumerate(BATCH.lengths):
            for t in range(length - 2 - depth):
                label = int(BATCH.tokens[row, t + 2 + depth])
                if not BATCH.supervised[row, t + 2 + depth] or label not in ids:
                    continue
                guessed = logits[row, t, depth]
                best = laws[row, t + 1 + depth].topk(config.kl_top_k)
                probs = best.values.softmax(-1)
                kl = (probs * (probs.log() - guessed[best.indices])).sum()
                ce = -guessed[ids.index(label)]
                terms.append((1 - config.kl_share) * ce + config.kl_share * kl)
        total += config.head_decay**depth * torch.stack(terms).mean()
    return float(total)


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("loss", ["ce", "kl", "mixed"])
def test_the_loss_is_the_weighted_mean_over_supervised_tokens(loss, reduced):
    learner = learner_of("hydra", reduced=reduced, loss=loss, kl_top_k=4, head_decay=0.7)
    config = settings("hydra", loss=loss, kl_top_k=4, head_decay=0.7)

    tally = learner.examine(BATCH)

    expected = expected_loss(learner, config, reduced)
    assert learner.metrics(tally).loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_reach_every_weight_of_the_heads_and_none_of_the_target(family):
    learner = learner_of(family, reduced=True, loss="mixed")
    learner.learn(BATCH, learner.counts(BATCH))

    assert all(weight.grad is not None for weight in learner.heads.parameters())
    assert all(weight.grad.abs().sum() > 0 for weight in learner.heads.parameters())
    assert all(weight.grad is None for weight in tiny_target().parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_two_halves_teach_what_the_whole_does(family):
    examples = ragged_examples(6)
    whole, halves = learner_of(family, loss="mixed"), learner_of(family, loss="mixed")
    whole.learn(BATCH, whole.counts(BATCH))
    parts = [Batch.of(examples[:2], 24), Batch.of(examples[2:], 24)]
    counts = halves.counts(parts[0]) + halves.counts(parts[1])
    for part in parts:
        halves.learn(part, counts)

    for one, two in zip(whole.heads.parameters(), halves.heads.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, atol=1e-6, rtol=1e-4)


def test_the_distance_of_features_is_learned_only_by_eagle_1():
    near = learner_of("eagle", feature_weight=0.0).examine(BATCH)
    far = learner_of("eagle", feature_weight=2.0)
    tally = far.examine(BATCH)

    assert near.row("distance").eq(0).all()
    assert tally.row("distance").gt(0).all()
    added = 2.0 * tally.row("distance") / tally.row("supervised")
    weights = torch.tensor([1.0, 0.8, 0.64], dtype=torch.float64)
    assert far.metrics(tally).loss - learner_of("eagle", feature_weight=0.0).metrics(
        near
    ).loss == pytest.approx(float(added @ weights), rel=1e-5)


def test_mixed_precision_says_about_the_same():
    exact, mixed = learner_of("eagle3"), learner_of("eagle3", precision="bfloat16")
    mixed.learn(BATCH, mixed.counts(BATCH))
    losses = [learner.metrics(learner.examine(BATCH)).loss for learner in (exact, mixed)]

    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[1] != losses[0]
    assert all(weight.grad.dtype == torch.float32 for weight in mixed.heads.parameters())


def test_a_guess_outside_the_vocabulary_is_wrong_and_a_chain_ends_at_the_first_wrong_one():
    supervised = torch.ones(3, 1, 4, dtype=torch.bool)
    supervised[2, 0, 3] = False
    correct = torch.tensor([[[1, 1, 0, 1]], [[1, 0, 1, 1]], [[1, 1, 1, 0]]]).bool()
    counted = supervised.clone()
    counted[1, 0, 1] = False  # outside

    tally = Tally.of(
        [torch.tensor(4.0)] * 3, [], supervised=supervised, counted=counted, correct=correct
    )
    metrics = (tally + Tally.zero(3)).metrics([1.0, 1.0, 1.0], 0.0)

    assert metrics.top1 == (3 / 4, 3 / 4, 3 / 3)
    assert metrics.acceptance_length == 1 + (3 + 1 + 0) / 3
    assert metrics.loss_by_depth == pytest.approx((1.0, 4 / 3, 4 / 3))
    assert Tally.from_flat(tally.flat()).metrics([1.0] * 3, 0.0) == metrics


def test_the_target_is_at_rest_and_gets_its_mode_back():
    target = tiny_target()
    target.train()
    target.model.layers[0].eval()
    try:
        with at_rest(target):
            assert not any(module.training for module in target.modules())
        assert target.training
        assert not target.model.layers[0].training
        assert target.model.layers[1].training
    finally:
        target.eval()
