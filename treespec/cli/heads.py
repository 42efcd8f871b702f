"""`treespec inspect` and `treespec export`: draft heads as files."""

import warnings
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from treespec.cli.loading import load_model
from treespec.cli.reporting import FAILED, reported_errors
from treespec.errors import CheckpointError
from treespec.heads import (
    CheckpointWarning,
    DraftHeads,
    HeadsReport,
    export_heads,
    inspect_heads,
    load_heads,
)


class Engine(StrEnum):
    """Formats that heads can be exported to."""

    MEDUSA = "medusa"
    TGI = "tgi"
    VLLM = "vllm"
    SGLANG = "sglang"
    SPECULATORS = "speculators"


PathArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="Folder, file of weights or Hub id of draft heads.", show_default=False
    ),
]


def inspect(
    path: PathArgument,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Also load this target, and tell whether the heads fit it.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Tell what draft heads are: format, family, sizes, and what target they need.

    The format is recognised from the tensors. Every tensor is checked; code in a file is never run.

    Exit code: 0 if the heads can be loaded, 1 if they do not fit the target, 2 if there are no
    heads at PATH or they are damaged.

    **Examples**

    `treespec inspect ./heads`

    `treespec inspect ./heads --target Qwen/Qwen2.5-1.5B-Instruct`
    """
    console = Console(highlight=False)
    with reported_errors():
        report = inspect_heads(path)
    console.print(_table(report))
    if target is not None:
        _try(console, path, target)


def export(
    path: PathArgument,
    to: Annotated[
        Engine,
        typer.Option(
            metavar="ENGINE",
            help="medusa (the layout of its authors), tgi, vllm, sglang or speculators.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder to write to.", show_default=False)
    ],
    base_model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="What the target is called on the Hub.", show_default=False
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The target, for heads that use its LM head and engines that want a copy of it.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write draft heads in the format of another engine.

    An engine that would run the heads wrongly, or not at all, is refused with the reason.

    **Examples**

    `treespec export ./heads --to vllm --out ./heads-for-vllm`

    `treespec export ./heads --to speculators --base-model Qwen/Qwen3-8B --out ./speculator`
    """
    with reported_errors():
        heads: DraftHeads | str = path
        if target is not None:
            heads = load_heads(
                path, load_model(target, device=torch.device("cpu"), hint="--target")
            )
        folder = export_heads(heads, str(to), out, base_model=base_model)
    typer.echo(f"wrote {folder}")


def _try(console: Console, path: str, target: str) -> None:
    """Load the heads with a target, and say how it went."""
    model = load_model(target, device=torch.device("cpu"), hint="--target")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CheckpointWarning)
            load_heads(path, model)
    except CheckpointError as error:
        console.print(Text(f"does not fit: {error}", style="red"))
        raise typer.Exit(FAILED) from error
    for warning in caught:
        console.print(Text(f"warning: {warning.message}", style="yellow"))
    console.print(Text(f"fits {target}", style="green"))


def _table(report: HeadsReport) -> Table:
    table = Table(title=report.place, title_justify="left", show_header=False, box=box.SIMPLE)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("format", report.layout)
    table.add_row("family", report.family)
    for name, value in report.sizes.items():
        table.add_row(name, value)
    table.add_row("reads", _states(report))
    table.add_row("vocabulary", _vocabulary(report))
    table.add_row(
        "parameters",
        f"{report.num_parameters / 1e6:,.1f} million, {report.dtype}, "
        f"{report.num_bytes / 1e6:,.1f} MB",
    )
    table.add_row("base model", report.base_model or "not named")
    table.add_row("needs", ", ".join(report.needs))
    for note in report.notes:
        table.add_row("note", Text(note, style="yellow"))
    return table


def _states(report: HeadsReport) -> str:
    if report.taps is not None:
        return f"hidden states {', '.join(str(tap) for tap in report.taps)}"
    if report.family == "eagle3":
        return "hidden states that the target decides: early, middle and late"
    return "the last hidden state"


def _vocabulary(report: HeadsReport) -> str:
    if report.draft_vocab_size is None:
        return "the target's"
    if report.has_map:
        whole = "" if report.vocab_size is None else f" of {report.vocab_size:,}"
        return f"{report.draft_vocab_size:,}{whole} tokens, by a map in the file"
    return f"all {report.draft_vocab_size:,} tokens"
