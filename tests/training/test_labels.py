"""Labels: depth k at position t is about the token at t + 2 + k, and nothing wraps around."""

import pytest
import torch

from tests.training.training_cases import example
from treespec.errors import ConfigError
from treespec.heads import DraftVocabulary
from treespec.training.labels import Columns, ahead
from treespec.training.packing import Batch
from treespec.training.vocabulary import choose_vocabulary

TOKENS = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20]


def pairs(labels):
    """Positions that count, and what they are to say."""
    return [(t, int(labels.columns[0, t])) for t in labels.counted[0].nonzero()[:, 0].tolist()]


@pytest.mark.parametrize("depth", range(4))
def test_a_head_learns_exactly_the_supervised_tokens_at_its_distance(depth):
    batch = Batch.of([example(TOKENS, (4, 8)), example(range(30, 45), (0, 15))], max_length=20)

    labels = Columns(None).labels(batch, depth)

    assert pairs(labels) == [
        (t, TOKENS[t + 2 + depth]) for t in range(10) if 4 <= t + 2 + depth < 8
    ]


def test_a_head_that_looks_further_than_the_text_learns_nothing():
    batch = Batch.of([example(TOKENS, (0, 10))], max_length=20)
    assert not Columns(None).labels(batch, 9).counted.any()


def test_several_answers_of_one_text_are_all_learned():
    one = example(TOKENS, (3, 5))
    one.supervised[7:9] = True

    labels = Columns(None).labels(Batch.of([one], max_length=20), 0)

    assert pairs(labels) == [(1, 14), (2, 15), (5, 18), (6, 19)]


def test_labels_outside_the_vocabulary_are_supervised_but_do_not_count():
    batch = Batch.of([example(TOKENS, (0, 10))], max_length=20)
    vocabulary = DraftVocabulary(torch.tensor([19, 14, 15]), 50)

    labels = Columns(vocabulary).labels(batch, 0)

    assert pairs(labels) == [(1, 1), (2, 2), (6, 0)]
    assert labels.supervised[0].sum() == 8


def test_ahead_fills_with_zeros_behind_the_end():
    values = torch.tensor([[[1], [2], [3]]])
    assert ahead(values, 2).flatten().tolist() == [3, 0, 0]
    assert ahead(values, 5).flatten().tolist() == [0, 0, 0]


def test_the_vocabulary_has_the_most_frequent_supervised_tokens():
    texts = [example([1, 1, 1, 1, 9, 9, 8], (4, 7)), example([7, 9, 3, 3], (1, 4), "b")]

    choice = choose_vocabulary(texts, 2, 20)

    assert choice.vocabulary.ids.tolist() == [3, 9]
    assert choice.coverage == pytest.approx(5 / 6)
    assert choice.distinct == 3


def test_a_vocabulary_larger_than_the_data_is_filled_with_tokens_of_the_texts_first():
    choice = choose_vocabulary([example([5, 6, 8], (2, 3))], 5, 20)
    assert choice.vocabulary.ids.tolist() == [0, 1, 5, 6, 8]
    assert choice.coverage == 1


@pytest.mark.parametrize("size", [0, 21])
def test_a_vocabulary_of_an_impossible_size_is_refused(size):
    with pytest.raises(ConfigError, match=f"draft_vocab_size is {size}, but .* 20 tokens"):
        choose_vocabulary([example([1, 2], (0, 2))], size, 20)
