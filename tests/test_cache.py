"""The cache: slots equal positions, ragged rows have no holes, commits gather before they write."""

import pytest
import torch
from transformers import DynamicCache

from treespec.cache import TreeCache, assemble
from treespec.errors import TreespecError

HEADS, SIZE = 2, 3


def write(cache: TreeCache, rows: list[list[int]]) -> None:
    """Write numbered tokens as the model's layers would: token n has keys n and values -n."""
    longest = max(len(row) for row in rows)
    cache.reserve(longest)
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows], dtype=torch.float32)
    keys = padded[:, None, :, None].expand(-1, HEADS, -1, SIZE)
    for index in range(2):
        cache.hf.update(keys + index, -keys - index, index)
    cache.wrote([len(row) for row in rows])


def held(cache: TreeCache, row: int) -> list[float]:
    keys, values = cache.layer(0, row)
    assert torch.equal(keys, -values)
    assert torch.equal(cache.layer(1, row)[0], keys + 1)
    return keys[0, :, 0].tolist()


def test_committed_tokens_stand_at_their_positions():
    cache = TreeCache(1, 2, capacity=8)
    write(cache, [[10, 11, 12]])
    cache.commit([[0, 1, 2]])
    write(cache, [[20, 21, 22, 23]])
    cache.commit([[0, 2, 3]])

    assert held(cache, 0) == [10, 11, 12, 20, 22, 23]


@pytest.mark.parametrize("path", [[], [0], [0, 1, 2, 3, 4], [0, 4], [0, 1, 3, 4], [0, 2, 3, 4]])
def test_commit_keeps_the_path_even_where_source_and_destination_overlap(path):
    cache = TreeCache(1, 2, capacity=8)
    write(cache, [[20, 21, 22, 23, 24]])
    cache.commit([path])

    assert held(cache, 0) == [20 + node for node in path]


def test_rows_of_different_lengths_have_no_holes():
    cache = TreeCache(3, 2, capacity=4)
    write(cache, [[1, 2, 3], [4], [5, 6]])
    cache.commit([[0, 1, 2], [0], [0, 1]])
    write(cache, [[7, 8], [9, 10, 11, 12], []])
    cache.commit([[0, 1], [0, 3], []])

    assert [held(cache, row) for row in range(3)] == [[1, 2, 3, 7, 8], [4, 9, 12], [5, 6]]


def test_growing_beyond_the_capacity_keeps_what_is_stored():
    cache = TreeCache(2, 2, capacity=2)
    write(cache, [[1, 2], [3]])
    cache.commit([[0, 1], [0]])
    write(cache, [[4, 5, 6, 7, 8], [9]])
    cache.commit([[0, 1, 2, 3, 4], [0]])

    assert [held(cache, row) for row in range(2)] == [[1, 2, 4, 5, 6, 7, 8], [3, 9]]


def test_a_layer_writes_in_place_while_there_is_room():
    cache = TreeCache(1, 2, capacity=8)
    write(cache, [[1, 2]])
    cache.commit([[0, 1]])
    before = cache.layer(0, 0)[0].data_ptr()
    write(cache, [[3, 4, 5]])
    cache.commit([[0, 2]])

    assert cache.layer(0, 0)[0].data_ptr() == before


def test_scratch_accumulates_until_the_commit():
    cache = TreeCache(1, 2, capacity=8)
    write(cache, [[1]])
    cache.commit([[0]])
    write(cache, [[2, 3]])
    write(cache, [[4, 5, 6]])
    cache.commit([[1, 4]])

    assert held(cache, 0) == [1, 3, 6]


def test_keep_goes_on_with_the_named_rows_in_that_order():
    cache = TreeCache(3, 2, capacity=4)
    write(cache, [[1, 2, 3], [4], [5, 6]])
    cache.commit([[0, 1, 2], [0], [0, 1]])
    cache.keep([2, 0])

    assert [held(cache, row) for row in range(2)] == [[5, 6], [1, 2, 3]]


def test_unused_room_is_zero_so_that_hidden_slots_cannot_spoil_a_sum():
    cache = TreeCache(1, 2, capacity=16)
    write(cache, [[1, 2]])

    assert torch.isfinite(cache.hf.layers[0].keys).all()


def test_load_copies_real_tokens_and_leaves_the_given_cache_alone():
    given = DynamicCache()
    keys = torch.arange(8.0).reshape(2, 1, 4, 1).expand(2, HEADS, 4, SIZE).clone()
    for index in range(2):
        given.update(keys + index, -keys - index, index)
    cache = TreeCache(2, 2, capacity=2)
    cache.load(given, [torch.tensor([0, 1, 2, 3, 4]), torch.tensor([2, 3, 4])])
    write(cache, [[50], [51]])
    cache.commit([[0], [0]])

    assert [held(cache, row) for row in range(2)] == [[0, 1, 2, 3, 50], [6, 7, 51]]
    assert torch.equal(given.layers[0].keys, keys)


def test_load_refuses_a_cache_that_may_have_dropped_tokens():
    from transformers.cache_utils import DynamicSlidingWindowLayer

    given = DynamicCache()
    given.layers.append(DynamicSlidingWindowLayer(sliding_window=4))
    given.layers[0].update(torch.ones(1, HEADS, 2, SIZE), torch.ones(1, HEADS, 2, SIZE))

    with pytest.raises(TreespecError, match="layer 0 of the given cache is a DynamicSliding"):
        TreeCache(1, 1).load(given, [torch.tensor([0, 1])])


def test_assemble_puts_tokens_into_the_columns_of_the_batch():
    rows = []
    for row in ([1, 2, 3], [4]):
        cache = TreeCache(1, 2)
        write(cache, [row])
        cache.commit([list(range(len(row)))])
        rows.append(cache.export(0, len(row)))

    whole = assemble(rows, [torch.tensor([0, 2, 3]), torch.tensor([1])])

    assert whole.layers[0].keys[:, 0, :, 0].tolist() == [[1, 0, 2, 3], [0, 4, 0, 0]]
