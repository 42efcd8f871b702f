"""`treespec train`: draft heads from what the target wrote."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table
from transformers import PreTrainedModel

from treespec.cli.loading import (
    AttentionOption,
    DeviceOption,
    Dtype,
    DtypeOption,
    ModelArgument,
    choose_device,
    load_model,
    load_tokenizer,
)
from treespec.cli.reporting import progress_bar, reported_errors
from treespec.training.config import TrainConfig
from treespec.training.data import DataFolder, open_data
from treespec.training.estimate import Estimate, estimate_run
from treespec.training.metrics import Metrics
from treespec.training.parallel import Processes
from treespec.training.reporting import StepReport
from treespec.training.trainer import TrainResult, train_heads

STOPPED = 130
"""Exit code of a run that a signal stopped; it can be resumed."""


class HeadFamily(StrEnum):
    """Families that can be trained."""

    MEDUSA = "medusa"
    HYDRA = "hydra"
    EAGLE = "eagle"
    EAGLE3 = "eagle3"


class Loss(StrEnum):
    """What guesses are compared with."""

    CE = "ce"
    KL = "kl"
    MIXED = "mixed"


HeadsFolderOption = Annotated[
    Path, typer.Option(metavar="DIR", help="Folder for the heads.", show_default=False)
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Settings of the training as YAML, JSON or TOML; options of the command line go "
        "before.",
        show_default=False,
    ),
]
FamilyOption = Annotated[
    HeadFamily | None,
    typer.Option(metavar="FAMILY", help="medusa, hydra, eagle or eagle3. [default: medusa]"),
]
DraftVocabularyOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Propose only the N most frequent tokens of the data."),
]
EpochsOption = Annotated[
    int | None, typer.Option(metavar="N", help="Passes over the data. [default: 1]")
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Any other setting of training; may be repeated."
    ),
]


def train(
    model: ModelArgument,
    data: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Folder that `treespec distill` wrote.", show_default=False
        ),
    ],
    out: HeadsFolderOption,
    config: ConfigOption = None,
    family: FamilyOption = None,
    loss: Annotated[
        Loss | None,
        typer.Option(
            metavar="LOSS",
            help="ce: the tokens of the data; kl: the target's own distribution; mixed. "
            "[default: ce]",
        ),
    ] = None,
    draft_vocab_size: DraftVocabularyOption = None,
    lr: Annotated[
        float | None, typer.Option(metavar="RATE", help="Learning rate. [default: 0.001]")
    ] = None,
    epochs: EpochsOption = None,
    max_steps: Annotated[
        int | None, typer.Option(metavar="N", help="Optimiser steps, instead of epochs.")
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of one forward. [default: 2048]")
    ] = None,
    accumulation: Annotated[
        int | None, typer.Option(metavar="N", help="Forwards that make a step. [default: 1]")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of weights, order and split. [default: 0]")
    ] = None,
    report_to: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="tensorboard, trackio or wandb, besides the log file."),
    ] = None,
    settings: SettingsOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an earlier run in --out stopped.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell time, memory and disk that it would take.")
    ] = False,
    dtype: DtypeOption = Dtype.AUTO,
    device: DeviceOption = None,
    attention: AttentionOption = None,
) -> None:
    """Train draft heads on answers that the target itself wrote.

    The target is frozen. Checkpoints and a log with a line of JSON a step are in `training` below
    --out; Ctrl-C ends the run after the step in progress, with a checkpoint for --resume. Several
    processes, one a device: `torchrun --nproc-per-node 8
    --no-python treespec train ...`.

    Exit code: 0 if the heads are finished, 2 if the command line or the data cannot be used, 130
    if a signal stopped the run.

    **Examples**

    `treespec train Qwen/Qwen2.5-0.5B-Instruct --data ./data --out ./heads --family hydra`

    `treespec train ./model --data ./data --out ./heads --config run.yaml --set num_heads=3`
    """
    options: dict[str, object] = {
        "family": family and str(family),
        "loss": loss and str(loss),
        "draft_vocab_size": draft_vocab_size,
        "lr": lr,
        "epochs": epochs,
        "max_steps": max_steps,
        "batch_tokens": batch_tokens,
        "accumulation": accumulation,
        "seed": seed,
        "report_to": report_to,
    }
    with reported_errors():
        chosen = settings_of(config, options, settings or [])
        folder = open_data(data)
        place = Processes.find().device or choose_device(device)
        target = load_model(model, dtype=dtype, device=place, attention=attention)
        if dry_run:
            _show_estimate(estimate_run(target, folder, chosen))
            return
        result = _train(target, model, folder, chosen, out, resume=resume)
    if Processes.find().is_main:
        _show_result(result, out)
    elif not result.is_finished:
        raise typer.Exit(STOPPED)


def settings_of(path: Path | None, options: dict[str, object], settings: list[str]) -> TrainConfig:
    """Settings of the file, replaced by options that were given."""
    overrides = {name: value for name, value in options.items() if value is not None}
    for one in settings:
        name, equals, value = one.partition("=")
        if not equals:
            raise typer.BadParameter(f"{one!r} has no value; write NAME=VALUE", param_hint="--set")
        overrides[name.strip().replace("-", "_")] = value.strip() or None
    if path is None:
        return TrainConfig.from_values(overrides)
    return TrainConfig.from_file(path, overrides)


def _train(
    target: PreTrainedModel,
    name: str,
    folder: DataFolder,
    config: TrainConfig,
    out: Path,
    *,
    resume: bool,
) -> TrainResult:
    """Train with a progress bar."""
    with progress_bar() as bar:
        task = bar.add_task(f"training {config.family}", total=None, detail="")
        return train_heads(
            target,
            load_tokenizer(name),
            folder,
            config,
            out,
            resume=resume,
            on_step=lambda report: show_step(bar, task, report),
        )


def show_step(bar: Progress, task: TaskID, report: StepReport) -> None:
    """Move a progress bar on, and tell what a look at the held-out examples showed."""
    detail = f"step {report.step}/{report.steps}  {summary(report.train)}"
    bar.update(task, total=report.steps, completed=report.step, detail=detail)
    if report.held_out is not None:
        bar.console.print(f"step {report.step}: held out {summary(report.held_out)}")


def summary(metrics: Metrics) -> str:
    """Loss, hits by depth and acceptance length of a chain, on one line."""
    top1 = " ".join(f"{share:.2f}".lstrip("0") for share in metrics.top1)
    length = metrics.acceptance_length
    chain = "" if length is None else f"  chain {length:.2f}"
    return f"loss {metrics.loss:.3f}  top-1 {top1}{chain}"


def _show_result(result: TrainResult, out: Path) -> None:
    """Where the heads are, or how to go on."""
    if not result.is_finished:
        typer.echo(
            f"stopped after step {result.step} of {result.steps}; the same command with --resume "
            "goes on from there",
            err=True,
        )
        raise typer.Exit(STOPPED)
    if result.held_out is not None:
        typer.echo(f"held out, step {result.best_step}: {summary(result.held_out)}")
    typer.echo(f"wrote {out}")


def _show_estimate(estimate: Estimate) -> None:
    table = Table(show_header=False, box=box.SIMPLE)
    table.add_column(style="bold")
    table.add_column()
    for name, value in {
        "parameters": f"{estimate.num_parameters / 1e6:,.2f} million",
        "examples": f"{estimate.examples:,}, and {estimate.held_out:,} held out"
        + (f"; {estimate.unused:,} without labels" if estimate.unused else ""),
        "labels an epoch": f"{estimate.tokens:,}",
        "draft vocabulary covers": f"{estimate.coverage:.1%}",
        "hidden states": "stored" if estimate.is_stored else "computed by the target",
        "steps": f"{estimate.steps:,}",
        "time": _duration(estimate.time_s),
        "memory": f"{estimate.memory_bytes / 1e6:,.0f} MB",
        "disk": f"{estimate.disk_bytes / 1e6:,.0f} MB",
    }.items():
        table.add_row(name, value)
    Console(highlight=False).print(table)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
