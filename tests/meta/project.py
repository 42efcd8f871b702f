"""What the meta tests know about the checkout: where it is, its sources, its modules."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PACKAGE_DIRS = {"treespec": "treespec", "heads": "treespec.heads", "training": "treespec.training"}
"""Folders at the top of the repository that hold the library, and what they install as."""

TEXT_SUFFIXES = {".cfg", ".js", ".json", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}


@dataclass(frozen=True)
class Source:
    """One Python file of the library.

    Attributes:
        path: where it is.
        module: dotted name under which it is imported once installed.
        is_package: whether it is an `__init__.py`.
    """

    path: Path
    module: str
    is_package: bool

    def __str__(self) -> str:
        """Path from the root of the repository."""
        return self.path.relative_to(ROOT).as_posix()


def library_sources() -> list[Source]:
    """Every Python file of the library, sorted by module."""
    found = []
    for folder, package in PACKAGE_DIRS.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            inner = parts[:-1] if is_package else parts
            found.append(Source(path, ".".join((package, *inner)), is_package))
    return sorted(found, key=lambda source: source.module)


def python_files(*folders: str) -> list[Path]:
    """Every Python file under folders of the repository."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def text_files() -> list[Path]:
    """Every text file that belongs to the repository, as far as a name can tell."""
    folders = (*PACKAGE_DIRS, "tests", "examples", "benchmarks", "docs", "constraints", ".ci")
    nested = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    return sorted(
        path
        for path in (*ROOT.iterdir(), *nested)
        if path.is_file() and (path.suffix in TEXT_SUFFIXES or path.suffix == "")
    )
