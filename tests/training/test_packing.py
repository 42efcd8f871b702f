"""Batches: every example once, never too large, the same by number whenever they are asked for."""

import pytest
import torch

from tests.training.training_cases import example, ragged_examples
from treespec.training.packing import Batch, BatchStream, shuffled_batches

LENGTHS = [1 + (7 * n) % 31 for n in range(300)]


@pytest.mark.parametrize("batch_tokens", [31, 64, 500])
def test_an_epoch_has_every_example_once_in_batches_that_fit(batch_tokens):
    batches = shuffled_batches(LENGTHS, batch_tokens, seed=3, epoch=1)

    assert sorted(index for rows in batches for index in rows) == list(range(len(LENGTHS)))
    assert all(
        len(rows) * max(LENGTHS[index] for index in rows) <= batch_tokens for rows in batches
    )


def test_little_of_an_epoch_is_padding():
    batches = shuffled_batches(LENGTHS, 256, seed=0, epoch=0)
    padded = sum(len(rows) * max(LENGTHS[index] for index in rows) for rows in batches)
    assert padded < 1.1 * sum(LENGTHS)


def test_order_depends_on_seed_and_epoch_alone():
    first = shuffled_batches(LENGTHS, 64, seed=0, epoch=0)
    assert first == shuffled_batches(LENGTHS, 64, seed=0, epoch=0)
    assert first != shuffled_batches(LENGTHS, 64, seed=1, epoch=0)
    assert first != shuffled_batches(LENGTHS, 64, seed=0, epoch=1)


def test_batch_of_a_number_does_not_depend_on_what_was_asked_before():
    through = BatchStream(LENGTHS, 64, seed=5)
    places = [through.batch(number) for number in range(3 * through.size(0))]
    late = BatchStream(LENGTHS, 64, seed=5)

    assert [late.batch(number) for number in (200, 3, 90, len(places) - 1)] == [
        places[number] for number in (200, 3, 90, len(places) - 1)
    ]
    assert {place.epoch for place in places} >= {0, 1, 2}


def test_a_batch_cuts_long_examples_and_pads_short_ones_without_labels():
    batch = Batch.of([example(range(1, 10), (3, 9)), example([5, 6, 7], (1, 3))], max_length=6)

    assert batch.lengths == (6, 3)
    assert batch.num_tokens == 9
    assert batch.tokens.tolist() == [[1, 2, 3, 4, 5, 6], [5, 6, 7, 0, 0, 0]]
    assert batch.supervised.nonzero().tolist() == [[0, 3], [0, 4], [0, 5], [1, 1], [1, 2]]


def test_a_batch_keeps_its_examples():
    examples = ragged_examples(5)
    batch = Batch.of(examples, max_length=32)
    for row, (one, length) in enumerate(zip(examples, batch.lengths, strict=True)):
        assert torch.equal(batch.tokens[row, :length], one.tokens)
