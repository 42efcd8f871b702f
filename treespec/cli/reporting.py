"""What every command does alike: errors without tracebacks, and progress bars on stderr."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from treespec.errors import DownloadError, SelfCheckError, ServerError, TreespecError

BAD_USAGE = 2
FAILED = 1


@contextmanager
def reported_errors() -> Iterator[None]:
    """End the command with the message of a `TreespecError` instead of a traceback.

    The exit code is 1 where the machine, the network or the model failed, and 2 where another
    command line would have worked.
    """
    try:
        yield
    except TreespecError as error:
        typer.echo(f"error: {error}", err=True)
        failed = isinstance(error, DownloadError | SelfCheckError | ServerError)
        raise typer.Exit(FAILED if failed else BAD_USAGE) from error


def progress_bar() -> Progress:
    """A progress bar on stderr that vanishes when its work is done."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
