"""The key-value cache of a tree decoder; the only file that knows transformers' caches.

For committed tokens slot equals position in every row. During a step the nodes of a row with P
committed tokens stand at slots P, P + 1, ... in the order in which they were run, whatever their
depth; `commit` moves the accepted ones down to where their positions are and forgets the rest.
Rows may have different lengths; there are no holes, only unused room behind a row's last token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer

from treespec.errors import TreespecError


@dataclass(slots=True)
class _Writing:
    """Where the forward that is being run writes; shared by all layers of a cache.

    Attributes:
        starts: per row the slot of its first new token.
        count: new tokens a row, padding included.
        capacity: slots that must be there.
    """

    starts: tuple[int, ...] = (0,)
    count: int = 0
    capacity: int = 0

    @property
    def kv_length(self) -> int:
        """Slots that the forward looks at, counted from 0."""
        return max(self.starts) + self.count


class _TreeLayer(CacheLayerMixin):
    """Keys and values of one layer, `[B, heads, capacity, head_dim]`, written in place."""

    is_sliding = False
    is_compileable = False
    is_croppable = False

    keys: Tensor
    values: Tensor

    def __init__(self, writing: _Writing) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._writing = writing

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate room; zeros, because unused room is multiplied by an attention weight of 0."""
        self.keys = key_states.new_zeros(_with_slots(key_states, self._writing.capacity))
        self.values = value_states.new_zeros(_with_slots(value_states, self._writing.capacity))
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: object, **_kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write every row's new tokens at its own start; see all slots up to the longest row."""
        writing = self._writing
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.make_room()
        for stored, states in ((self.keys, key_states), (self.values, value_states)):
            first = writing.starts[0]
            if all(start == first for start in writing.starts):
                stored[:, :, first : first + writing.count] = states
            else:
                for row, start in enumerate(writing.starts):
                    stored[row, :, start : start + writing.count] = states[row]
        return self.keys[:, :, : writing.kv_length], self.values[:, :, : writing.kv_length]

    def make_room(self) -> None:
        """Grow to the wanted capacity, keeping what is stored."""
        wanted = self._writing.capacity
        if self.keys.shape[2] < wanted:
            self.keys = _grown(self.keys, wanted)
            self.values = _grown(self.values, wanted)

    def get_seq_length(self) -> int:
        """Slots of the longest row before the forward that is being run."""
        return max(self._writing.starts)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that `update` will return."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """-1: the layer grows."""
        return -1

    def get_max_cache_shape(self) -> int:
        """-1: the layer grows; the name before transformers 5.22."""
        return -1


def _with_slots(states: Tensor, slots: int) -> tuple[int, int, int, int]:
    batch, heads, _, head_dim = states.shape
    return batch, heads, slots, head_dim


def _grown(stored: Tensor, slots: int) -> Tensor:
    grown = stored.new_zeros(_with_slots(stored, slots))
    grown[:, :, : stored.shape[2]] = stored
    return grown


class TreeCache:
    """Cache of one generation, for a target or a draft model.

    Args:
        batch: number of rows.
        num_layers: number of layers that the model caches.
        capacity: slots to allocate at first; doubled when they do not suffice.

    Attributes:
        hf: what the model is given as its cache.
        lengths: committed tokens of each row. Between steps they are one less than the tokens of
            the row: the root is not in the cache.
        scratch: per row the nodes that were run since the last `commit`.
    """

    def __init__(self, batch: int, num_layers: int, *, capacity: int = 256) -> None:
        self._writing = _Writing(starts=(0,) * batch, capacity=capacity)
        self._layers = [_TreeLayer(self._writing) for _ in range(num_layers)]
        self.hf = Cache(layers=list(self._layers))
        self.lengths = [0] * batch
        self.scratch = [0] * batch

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.lengths)

    def reserve(self, count: int) -> int:
        """Prepare a forward of `count` tokens a row, padding included; return its kv length."""
        writing = self._writing
        writing.starts = tuple(
            length + scratch for length, scratch in zip(self.lengths, self.scratch, strict=True)
        )
        writing.count = count
        while writing.capacity < writing.kv_length:
            writing.capacity *= 2
        return writing.kv_length

    def wrote(self, counts: Sequence[int]) -> None:
        """Count the nodes that the last forward added to each row, padding excluded."""
        self.scratch = [old + new for old, new in zip(self.scratch, counts, strict=True)]

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep these nodes of each row, in path order, and forget its other nodes.

        Args:
            paths: per row the indices of accepted nodes among those run since the last commit,
                increasing.
        """
        moves = []
        for row, path in enumerate(paths):
            still = next((i for i, node in enumerate(path) if node != i), len(path))
            if still < len(path):
                moves.append((row, self.lengths[row], still, path))
        for layer in self._layers:
            if layer.is_initialized:
                for row, length, still, path in moves:
                    _move(layer.keys[row], length, still, path)
                    _move(layer.values[row], length, still, path)
        self.lengths = [
            length + len(path) for length, path in zip(self.lengths, paths, strict=True)
        ]
        self.scratch = [0] * len(self.lengths)

    def clear(self) -> None:
        """Forget everything; the room stays."""
        self.lengths = [0] * len(self)
        self.scratch = [0] * len(self)

    def drop_last(self) -> None:
        """Forget the last committed token of every row."""
        self.lengths = [length - 1 for length in self.lengths]

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order."""
        if list(rows) == list(range(len(self))):
            return
        for layer in self._layers:
            if layer.is_initialized:
                index = torch.tensor(rows, dtype=torch.int64, device=layer.keys.device)
                layer.keys = layer.keys.index_select(0, index)
                layer.values = layer.values.index_select(0, index)
        self.lengths = [self.lengths[row] for row in rows]
        self.scratch = [self.scratch[row] for row in rows]
        self._writing.starts = tuple(self.lengths)

    def export(self, row: int, length: int) -> list[tuple[Tensor, Tensor]]:
        """Copies of a row's first `length` keys and values, `[heads, P, D]`, layer by layer."""
        return [
            (layer.keys[row, :, :length].clone(), layer.values[row, :, :length].clone())
            for layer in self._layers
            if layer.is_initialized
        ]

    def layer(
        self, index: int, row: int
    ) -> tuple[Float[Tensor, "heads P K"], Float[Tensor, "heads P V"]]:
        """Committed keys and values of one layer and row, as views."""
        stored, length = self._layers[index], self.lengths[row]
        return stored.keys[row, :, :length], stored.values[row, :, :length]

    def load(self, foreign: Cache, columns: Sequence[Int[Tensor, " _L"]]) -> None:
        """Copy what another cache holds of the prompts; it is not changed and not referred to.

        Args:
            foreign: a cache filled by transformers.
            columns: per row the columns of the padded prompt that hold real tokens, in order.

        Raises:
            TreespecError: if a layer does not keep every token (sliding, quantised, recurrent).
        """
        held = foreign.get_seq_length()
        kept = [row[row < held] for row in columns]
        self._writing.starts, self._writing.count = (0,) * len(self), held
        self._writing.capacity = max(self._writing.capacity, held)
        for index, (mine, theirs) in enumerate(zip(self._layers, foreign.layers, strict=True)):
            if type(theirs) is not DynamicLayer or theirs.keys is None or theirs.values is None:
                raise TreespecError(
                    f"layer {index} of the given cache is a {type(theirs).__name__}, which may "
                    "have dropped tokens; pass a DynamicCache() of full layers, or none"
                )
            mine.lazy_initialization(theirs.keys, theirs.values)
            for row, slots in enumerate(kept):
                place = slots.to(theirs.keys.device)
                mine.keys[row, :, : len(slots)] = theirs.keys[row][:, place]
                mine.values[row, :, : len(slots)] = theirs.values[row][:, place]
        self.lengths = [len(slots) for slots in kept]


def _move(stored: Float[Tensor, "heads S D"], length: int, still: int, path: Sequence[int]) -> None:
    """Gather accepted slots before writing them: source and destination overlap."""
    source = torch.tensor([length + node for node in path[still:]], device=stored.device)
    stored[:, length + still : length + len(path)] = stored.index_select(1, source)


def assemble(
    rows: Sequence[Sequence[tuple[Tensor, Tensor]]], columns: Sequence[Int[Tensor, " _L"]]
) -> DynamicCache:
    """A cache of transformers' own, as `generate` would have left it.

    Args:
        rows: per row the keys and values of every layer, as `TreeCache.export` gives them.
        columns: per row the columns of the padded batch where its tokens stand.
    """
    width = max(int(places[-1]) + 1 for places in columns)
    cache = DynamicCache()
    for index in range(len(rows[0])):
        padded = []
        for part in (0, 1):
            heads, _, head_dim = rows[0][index][part].shape
            batch = rows[0][index][part].new_zeros(len(rows), heads, width, head_dim)
            for row, places in enumerate(columns):
                batch[row][:, places.to(batch.device)] = rows[row][index][part]
            padded.append(batch)
        cache.update(padded[0], padded[1], index)
    return cache


def layers_of(config: PreTrainedConfig) -> list[str]:
    """Class name of each layer that transformers itself would cache for this configuration."""
    return [type(layer).__name__ for layer in DynamicCache(config=config).layers]
