"""The command line, `treespec`: one module per command."""

from typing import Annotated

import typer

from treespec import __version__
from treespec.cli.calibrate import calibrate
from treespec.cli.check import check
from treespec.cli.demo import demo
from treespec.cli.distill import distill_command
from treespec.cli.evaluate import evaluate
from treespec.cli.generate import generate
from treespec.cli.heads import export, inspect
from treespec.cli.make_heads import make_heads
from treespec.cli.train import train

app = typer.Typer(
    name="treespec",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(generate)
app.command()(check)
app.command()(inspect)
app.command()(export)
app.command("distill")(distill_command)
app.command()(train)
app.command()(evaluate)
app.command()(calibrate)
app.command()(make_heads)


def _show_version(wanted: bool) -> bool:
    """Show the version and end where `wanted`; else hand the value on."""
    if wanted:
        typer.echo(f"treespec {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def main(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Tree-attention speculative decoding for any transformers causal LM.

    Decodes several guessed continuations in one forward of the model and keeps the longest one
    that the model agrees with. The text is the one that plain decoding gives.
    """
