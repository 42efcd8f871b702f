"""What `treespec evaluate` and `treespec calibrate` are given: heads, their target, and texts."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from transformers import PreTrainedModel

from treespec.cli.loading import Attention, Dtype, choose_device, load_model
from treespec.cli.reporting import progress_bar
from treespec.errors import ConfigError
from treespec.heads import CheckpointWarning, DraftHeads, load_heads
from treespec.training.config import TrainConfig
from treespec.training.corpus import prepare
from treespec.training.data import DataFolder, Example
from treespec.training.evaluate import EvaluationOptions, evaluate_heads
from treespec.training.passages import Passage
from treespec.training.results import Evaluation

HeldOutOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Examples that training held out; the same number and seed find the same ones. "
        "By default 5 % of them, at most 64, as for training.",
        show_default=False,
    ),
]
SeedOption = Annotated[int, typer.Option(min=0, help="Of what was held out, as for training.")]
AllOption = Annotated[
    bool,
    typer.Option("--all", help="Measure on all examples; for data that training has not seen."),
]
LimitOption = Annotated[int, typer.Option(min=1, help="Most examples or prompts to measure on.")]
DepthOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Levels to look at. By default all that the heads have, or 6 where they have no "
        "limit.",
        show_default=False,
    ),
]
PositionsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Places in an answer at which guesses are looked at, drawn at random. By default all.",
        show_default=False,
    ),
]


def load_target_and_heads(
    target: str,
    heads: str,
    *,
    dtype: Dtype,
    device: str | None,
    attention: Attention | None,
) -> tuple[PreTrainedModel, DraftHeads]:
    """A target and heads that fit it; doubts about them are told on stderr.

    Raises:
        CheckpointError: if the heads do not fit.
    """
    place = choose_device(device)
    model = load_model(target, dtype=dtype, device=place, attention=attention, hint="TARGET")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CheckpointWarning)
        loaded = load_heads(heads, model)
    for one in caught:
        typer.echo(f"warning: {one.message}", err=True)
    return model, loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which examples of a folder are measured on.

    Attributes:
        held_out: how many training held out; None for its default.
        seed: of what it held out.
        everything: take all examples instead.
        limit: most examples to take.
    """

    held_out: int | None
    seed: int
    everything: bool
    limit: int

    def __post_init__(self) -> None:
        if self.everything and self.held_out is not None:
            raise ConfigError("--all and --held-out contradict each other; leave one of them out")

    def examples(self, data: DataFolder) -> list[Example]:
        """The examples.

        Raises:
            ConfigError: if none was held out.
        """
        if self.everything:
            return list(data.examples[: self.limit])
        found = prepare(data, TrainConfig(held_out=self.held_out, seed=self.seed)).held_out
        if not found:
            raise ConfigError(
                f"{data.path} has {len(data.examples)} examples, of which training holds none out "
                "by default; give the number that it was told with --held-out, or --all if these "
                "are other texts"
            )
        return list(found[: self.limit])

    def name(self, data: DataFolder, count: int) -> str:
        """What results call the examples."""
        kind = "examples" if self.everything else "held-out examples"
        return f"{count} {kind} of {data.path.name}"


def measure(
    target: PreTrainedModel,
    heads: DraftHeads,
    texts: Sequence[Example] | Sequence[Passage],
    options: EvaluationOptions,
    title: str,
) -> Evaluation:
    """`evaluate_heads` with a progress bar."""
    with progress_bar() as bar:
        task = bar.add_task(title, total=None, detail="")
        return evaluate_heads(
            target,
            heads,
            texts,
            options,
            on_batch=lambda count: bar.advance(task, count),
        )
