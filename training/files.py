"""Files that are whole or not there at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """Another name to write a file under; it gets its own when the block has ended well.

    A run that is killed leaves the file of before.
    """
    work = path.with_name(f".{path.name}")
    yield work
    work.replace(path)


def replace_text(path: Path, text: str) -> None:
    """Write a file of text, whole or not at all."""
    with unfinished(path) as work:
        work.write_text(text, encoding="utf-8")
