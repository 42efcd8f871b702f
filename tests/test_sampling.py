"""The shared noise: what it is a function of, and that it is Gumbel noise."""

import math

import pytest
import torch

from treespec.sampling import RowNoise, gumbel, node_seed, row_seed, row_seeds


def test_gumbel_noise_of_chosen_tokens_equals_the_whole_row_there():
    row = gumbel(7, 41, torch.arange(1000))
    chosen = torch.tensor([999, 0, 17, 17])

    assert torch.equal(row[chosen], gumbel(7, 41, chosen))


@pytest.mark.parametrize(("seed", "position"), [(8, 41), (7, 42), (-7, 41), (41, 7)])
def test_gumbel_noise_changes_with_seed_and_position(seed, position):
    tokens = torch.arange(1000)

    assert not torch.isclose(gumbel(7, 41, tokens), gumbel(seed, position, tokens)).any()


def test_gumbel_noise_has_the_moments_of_a_gumbel_law():
    noise = torch.stack([gumbel(3, position, torch.arange(20_000)) for position in range(20)])

    assert noise.dtype == torch.float32
    assert noise.mean().item() == pytest.approx(0.57722, abs=0.01)  # standard error .002
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)


def test_gumbel_noise_of_neighbouring_positions_and_tokens_is_uncorrelated():
    noise = torch.stack([gumbel(3, position, torch.arange(100_000)) for position in (5, 6)])

    positions = torch.corrcoef(noise)[0, 1]
    tokens = torch.corrcoef(torch.stack([noise[0, :-1], noise[0, 1:]]))[0, 1]

    assert positions.abs() < 0.015  # standard error .003
    assert tokens.abs() < 0.015


def test_rare_tokens_get_the_probability_that_they_have():
    # One common token against 20,000 of 5e-7 each: noise from 24 bits could not tell them apart.
    rare = 1e-2 / 20_000
    logits = torch.tensor([0.99] + [rare] * 20_000).log()
    draws = [(logits + gumbel(11, p, torch.arange(20_001))).argmax().item() for p in range(1500)]

    hits = sum(token > 0 for token in draws)

    assert 4 <= hits <= 30  # 15 expected, standard deviation 3.9


def test_noise_at_high_positions_and_ids_is_finite():
    noise = gumbel(2**62, 2**40, torch.tensor([0, 2**40, 2**62]))

    assert torch.isfinite(noise).all()


def test_row_seed_of_row_zero_is_the_seed():
    assert row_seed(123, 0) == 123


def test_row_seeds_differ_between_rows_and_fit_64_bits():
    seeds = [row_seed(5, row) for row in range(100)]

    assert len(set(seeds)) == 100
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)


def test_row_seeds_takes_one_int_per_row():
    assert row_seeds([4, 9], 2) == [4, 9]


def test_row_seeds_names_a_wrong_count():
    with pytest.raises(ValueError, match="seed has 3 entries, but there are 2 output rows"):
        row_seeds([1, 2, 3], 2)


def test_row_seeds_without_a_seed_follow_the_global_generator():
    torch.manual_seed(0)
    first = row_seeds(None, 2)
    torch.manual_seed(0)

    assert row_seeds(None, 2) == first


def test_zero_noise_is_zero():
    noise = RowNoise(None)

    assert noise.is_zero
    assert not noise.row(3, 5, torch.device("cpu")).any()
    assert not noise.at(3, torch.tensor([1, 2])).any()


def test_row_noise_is_remembered_until_forgotten():
    noise = RowNoise(1)
    row = noise.row(3, 50, torch.device("cpu"))

    assert noise.row(3, 50, torch.device("cpu")).data_ptr() == row.data_ptr()

    noise.forget(before=4)

    assert noise.row(3, 50, torch.device("cpu")).data_ptr() != row.data_ptr()


def test_row_noise_of_a_smaller_vocabulary_is_a_beginning_of_the_larger():
    noise = RowNoise(1)
    small = noise.row(3, 20, torch.device("cpu")).clone()

    assert torch.equal(noise.row(3, 50, torch.device("cpu"))[:20], small)


def test_draft_seeds_differ_between_nodes_steps_and_from_the_row():
    seeds = {node_seed(9, position, node) for position in range(20) for node in range(20)} | {9}

    assert len(seeds) == 401


def test_the_largest_word_of_the_hash_still_gives_finite_noise(monkeypatch):
    monkeypatch.setattr("treespec.sampling._mix_", lambda words: words.fill_(-1))

    assert torch.isfinite(gumbel(1, 1, torch.arange(3))).all()
