"""How good heads are: ranks of the right tokens by depth, and what trees make of them.

Everything is measured along given texts, with the target's hidden states of just these texts and
with the heads' own sessions, so that what is measured is what decodes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from treespec.errors import ConfigError
from treespec.heads.base import DraftHeads
from treespec.heads.drafter import HeadDrafter
from treespec.heads.formats.saving import name_of
from treespec.target import Target
from treespec.training.data import DataFolder
from treespec.training.decoding import decode, rates_of
from treespec.training.examples import Example
from treespec.training.features import at_rest
from treespec.training.passages import Passage, end_ids_of, passages_of, states_of
from treespec.training.ranks import depth_rates, rank_passages, rank_table
from treespec.training.results import Evaluation, TreeRates
from treespec.training.simulate import Walk, simulate
from treespec.tree.shapes import BestFirst, Chain, StaticTree

Shape = BestFirst | StaticTree

BUDGETS = (8, 16, 31, 64)
"""Draft tokens of the best-first trees that are simulated."""
DECODED = "tree of 31"
"""Name of the shape that decodes where nothing else is asked for."""

# Levels that are looked at where heads have no limit of their own.
_USUAL_DEPTH = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """What is measured, and how.

    Attributes:
        texts: what the texts are called in the results.
        depth: levels that are looked at; None for all that the heads have, or 6 without a limit.
        columns: ranks in the table by depth and rank.
        shapes: trees to simulate, by name; empty for a chain and best-first trees of 8, 16, 31 and
            64 draft tokens, all of that depth.
        positions: roots of a passage at which ranks are taken, drawn at random; None for all.
        seed: of that choice.
        rows: passages that go through the models side by side.
        decode: how many passages' prompts are really decoded, the first ones; 0 for none.
        decode_shape: name of the shape that decodes them; None for the tree of 31, or the last.
        max_length: tokens of an example that are used; None for all.
    """

    texts: str = "held-out texts"
    depth: int | None = None
    columns: int = 10
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    positions: int | None = None
    seed: int = 0
    rows: int = 16
    decode: int = 0
    decode_shape: str | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        least = {"depth": 1, "columns": 1, "positions": 1, "rows": 1, "decode": 0, "max_length": 3}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ConfigError(f"{name} must be at least {bound}, got {value}")

    def named_shapes(self, depth: int) -> dict[str, Shape]:
        """The trees to simulate."""
        return dict(self.shapes) or usual_shapes(depth)

    def decoding_shape(self, shapes: Mapping[str, Shape]) -> str:
        """Name of the shape that decodes.

        Raises:
            ConfigError: if there is no shape of that name.
        """
        name = self.decode_shape or (DECODED if DECODED in shapes else list(shapes)[-1])
        if name not in shapes:
            raise ConfigError(
                f"decode_shape is {name!r}, but the shapes are {', '.join(shapes)}; name one"
            )
        return name


def usual_shapes(depth: int) -> dict[str, Shape]:
    """A chain and best-first trees down to the same depth, by name."""
    trees = {f"tree of {budget}": BestFirst(budget=budget, depth=depth) for budget in BUDGETS}
    return {f"chain of {depth}": Chain(depth), **trees}


def levels_of(heads: DraftHeads, depth: int | None = None) -> int:
    """Levels to look at: `depth`, as far as the heads go; None for all that they have, or 6."""
    wanted = depth or heads.max_depth or _USUAL_DEPTH
    return wanted if heads.max_depth is None else min(wanted, heads.max_depth)


@torch.no_grad()
def evaluate_heads(
    target: PreTrainedModel,
    heads: DraftHeads,
    texts: DataFolder | Sequence[Example] | Sequence[Passage],
    options: EvaluationOptions | None = None,
    *,
    on_batch: Callable[[int], None] | None = None,
) -> Evaluation:
    """Measure heads on texts, which should be the target's own and not those of training.

    Args:
        target: the model that the heads are for.
        heads: what to measure.
        texts: a folder of data, all of it; examples, such as those that `split` holds out; or
            passages.
        options: what to measure.
        on_batch: called with the number of passages done.

    Raises:
        ConfigError: if the shape to decode with is not among the shapes.
        DataError: if the data are another target's, or have nothing to guess.
    """
    options = options or EvaluationOptions()
    passages = as_passages(target, texts, options.max_length)
    shapes = options.named_shapes(levels_of(heads, options.depth))
    decoding = options.decoding_shape(shapes)
    with at_rest(target):
        measured = _measure(target, heads, passages, shapes, options, on_batch)
        few = passages[: options.decode]
        decoded = _decode(target, heads, few, decoding, shapes[decoding]) if few else None
    alike = rates_of(decoding, measured.walks[decoding][: len(few)]) if few else None
    return Evaluation(
        family=heads.family,
        target=name_of(target),
        texts=options.texts,
        passages=len(passages),
        tokens=sum(one.num_guessable for one in passages),
        depths=depth_rates(measured.ranks, options.columns),
        table=rank_table(measured.ranks, options.columns),
        simulated=tuple(rates_of(name, walks) for name, walks in measured.walks.items()),
        decoded=decoded,
        decoded_simulated=alike,
    )


def as_passages(
    target: PreTrainedModel,
    texts: DataFolder | Sequence[Example] | Sequence[Passage],
    max_length: int | None = None,
) -> list[Passage]:
    """What `evaluate_heads` takes, as passages.

    Raises:
        DataError: if the data are another target's, or have nothing to guess.
    """
    if isinstance(texts, DataFolder):
        texts.require_target(target)
        texts = texts.examples
    passages = [one for one in texts if isinstance(one, Passage)]
    examples = [one for one in texts if isinstance(one, Example)]
    if examples or not passages:
        end_ids = end_ids_of(target)
        passages += passages_of(examples, end_ids=end_ids, max_length=max_length)
    return passages


@dataclass(frozen=True, slots=True)
class _Measured:
    """Ranks at all roots, `[R, K]`, and for every shape the walk through each passage."""

    ranks: Tensor
    walks: dict[str, list[Walk]]


def _measure(
    target: PreTrainedModel,
    heads: DraftHeads,
    passages: Sequence[Passage],
    shapes: Mapping[str, Shape],
    options: EvaluationOptions,
    on_batch: Callable[[int], None] | None,
) -> _Measured:
    """Go through all passages, those of similar length side by side."""
    engine, drafter = Target(target), HeadDrafter(heads)
    depth, taps = levels_of(heads, options.depth), sorted(set(heads.taps))
    order = sorted(range(len(passages)), key=lambda place: -len(passages[place].tokens))
    ranks: list[Tensor] = []
    walks: dict[str, dict[int, Walk]] = {name: {} for name in shapes}
    for start in range(0, len(order), options.rows):
        places = order[start : start + options.rows]
        batch = [passages[place] for place in places]
        states = states_of(engine, batch, taps)
        roots = [_roots(passages[place], options, place) for place in places]
        ranks += rank_passages(heads, batch, states, roots, depth)
        for name, shape in shapes.items():
            walks[name].update(zip(places, simulate(drafter, batch, states, shape), strict=True))
        if on_batch is not None:
            on_batch(len(batch))
    in_order = {name: [found[place] for place in sorted(found)] for name, found in walks.items()}
    return _Measured(torch.cat(ranks), in_order)


def _roots(passage: Passage, options: EvaluationOptions, place: int) -> list[int]:
    """The roots at which ranks are taken; they depend on nothing but seed and place."""
    count = passage.num_guessable
    if options.positions is None or options.positions >= count:
        return list(range(passage.start, passage.start + count))
    generator = torch.Generator().manual_seed(1_000_003 * options.seed + place)
    chosen = torch.randperm(count, generator=generator)[: options.positions]
    return (passage.start + chosen.sort().values).tolist()


def _decode(
    target: PreTrainedModel,
    heads: DraftHeads,
    passages: Sequence[Passage],
    name: str,
    shape: Shape,
) -> TreeRates:
    """What decoding the passages' prompts gives, up to the longest of their answers."""
    longest = max(len(one.tokens) - one.start for one in passages)
    prompts = [one.prompt for one in passages]
    found = decode(target, heads, prompts, shape, name=name, max_new_tokens=longest)
    return found.rates
