"""Looking at a generation between its steps: caches, positions and trees."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from tests.rig import emitted_by
from treespec.cache import TreeCache
from treespec.drafters.base import DraftContext, Drafter, DraftSession, Round
from treespec.target import Target
from treespec.tree.shapes import TreeLimits
from treespec.tree.token_tree import TokenTree


class WatchedTarget(Target):
    """A target that shows the cache it made last."""

    cache: TreeCache

    def new_cache(self, batch: int, *, capacity: int = 256) -> TreeCache:
        """See `Target.new_cache`; little room at first, so that the cache has to grow."""
        self.cache = super().new_cache(batch, capacity=8)
        return self.cache


Look = Callable[[Sequence[Round], Sequence[Sequence[int]]], None]


@dataclass(frozen=True, eq=False)
class WatchingDrafter:
    """Passes everything on to another drafter, and calls `look` after it has observed.

    Attributes:
        inner: the drafter that drafts.
        look: given the rounds and the committed tokens of each row, prompt included.
        trees: every step's trees.
        roots: every step's positions of the roots.
    """

    inner: Drafter
    look: Look = lambda rounds, committed: None
    trees: list[list[TokenTree]] = field(default_factory=list)
    roots: list[list[int]] = field(default_factory=list)

    @property
    def taps(self) -> tuple[int, ...]:
        """Those of the inner drafter."""
        return self.inner.taps

    @property
    def draws(self) -> tuple[str, ...]:
        """Those of the inner drafter."""
        return self.inner.draws

    def begin(self, prompts: Sequence[Tensor], context: DraftContext) -> "WatchingSession":
        """See `treespec.drafters.base.Drafter.begin`."""
        return WatchingSession(self, self.inner.begin(prompts, context), prompts)


class WatchingSession:
    """Follows what is committed."""

    def __init__(
        self, drafter: WatchingDrafter, inner: DraftSession, prompts: Sequence[Tensor]
    ) -> None:
        self._drafter = drafter
        self._inner = inner
        self._committed = [prompt.tolist() for prompt in prompts]

    def propose(self, limits: Sequence[TreeLimits]) -> list[TokenTree]:
        """See `treespec.drafters.base.DraftSession.propose`."""
        trees = self._inner.propose(limits)
        self._drafter.trees.append(trees)
        self._drafter.roots.append([len(committed) - 1 for committed in self._committed])
        return trees

    def observe(self, rounds: Sequence[Round]) -> None:
        """See `treespec.drafters.base.DraftSession.observe`."""
        self._inner.observe(rounds)
        for committed, one in zip(self._committed, rounds, strict=True):
            committed += emitted_by(one)
        self._drafter.look(rounds, self._committed)

    def keep(self, rows: Sequence[int]) -> None:
        """See `treespec.drafters.base.DraftSession.keep`."""
        self._inner.keep(rows)
        self._committed = [self._committed[row] for row in rows]


@dataclass(frozen=True)
class Fresh:
    """A plain forward of a whole text, nothing cached before."""

    logits: Float[Tensor, "L V"]
    layers: list[tuple[Float[Tensor, "heads L D"], Float[Tensor, "heads L D"]]]


@torch.no_grad()
def fresh_forward(model: PreTrainedModel, text: Sequence[int]) -> Fresh:
    """Logits, keys and values of a text."""
    cache = DynamicCache()
    parameters = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in parameters else "past_key_values"
    output = model(torch.tensor([list(text)]), use_cache=True, **{name: cache})
    layers = [(layer.keys[0], layer.values[0]) for layer in cache.layers]
    return Fresh(output.logits[0], layers)


def assert_cache_holds(
    cache: TreeCache, row: int, model: PreTrainedModel, text: Sequence[int]
) -> None:
    """Fail unless the cache has of this row what a fresh forward of the text would leave."""
    assert cache.lengths[row] == len(text)
    if not text:
        return
    for index, (keys, values) in enumerate(fresh_forward(model, text).layers):
        held_keys, held_values = cache.layer(index, row)
        torch.testing.assert_close(held_keys, keys, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(held_values, values, rtol=1e-5, atol=1e-5)


@dataclass(eq=False)
class Positions:
    """The `position_ids` of every forward of a model."""

    recorded: list[Int[Tensor, "B N"]] = field(default_factory=list)

    def watch(self, model: PreTrainedModel) -> None:
        """Record from the next forward on; for models of the test's own."""

        def record(_module: object, _args: object, arguments: dict[str, Tensor]) -> None:
            self.recorded.append(arguments["position_ids"].clone())

        model.register_forward_pre_hook(record, with_kwargs=True)
