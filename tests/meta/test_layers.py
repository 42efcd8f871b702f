"""Imports go strictly down: a module imports from lower layers or from its own package."""

import ast
import re

import pytest

from tests.meta.project import ROOT, Source, library_sources

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("tree", "sampling", "scores"),
    ("truncation",),
    ("verify", "cache", "attention", "processing"),
    ("support",),
    ("target",),
    ("drafters", "stats", "cost", "options", "self_check"),
    ("rows", "streaming"),
    ("hook", "settings"),
    ("decoder",),
    ("audit",),
    ("__init__",),
    ("heads",),
    ("training",),
    ("compare",),
    ("fetch",),
    ("cli",),
)
"""Parts of treespec from the bottom up: packages, modules beside them, and the public names."""

RANKS = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}


def part_of(module: str) -> str:
    """First component below `treespec`: `treespec.tree.growth` belongs to `tree`."""
    return "__init__" if module == "treespec" else module.split(".")[1]


def imported_modules(source: str) -> set[str]:
    """Modules of treespec that a file imports anywhere, also inside functions."""
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == "treespec":
            names = {alias.name for alias in node.names}
            modules |= {f"treespec.{name}" if name in RANKS else "treespec" for name in names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules.add(node.module or "")
    return {name for name in modules if name == "treespec" or name.startswith("treespec.")}


def upward_imports(module: str, source: str) -> list[str]:
    """Imports of a file that do not go down, as sentences."""
    part = part_of(module)
    return [
        f"{module} imports {name}, which is not below {part}"
        for name in sorted(imported_modules(source))
        if part_of(name) != part and RANKS[part_of(name)] >= RANKS[part]
    ]


def test_the_layers_in_contributing_are_the_ones_enforced():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    diagram = re.search(r"^    errors <(?:.+\n)+", text, flags=re.MULTILINE)
    assert diagram is not None
    layers = [re.findall(r"\w+", layer) for layer in diagram.group().split("<")]
    assert layers == [list(parts) for parts in LAYERS]


@pytest.mark.parametrize("source", library_sources(), ids=str)
def test_module_imports_only_from_lower_layers_or_its_own_package(source: Source):
    assert part_of(source.module) in RANKS, (
        f"{source} has no place in the layers; add it to LAYERS here and to CONTRIBUTING.md"
    )
    assert upward_imports(source.module, source.path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("treespec.tree.growth", "from treespec.verify.acceptance import Acceptance"),
        ("treespec.tree.growth", "import treespec.target"),
        ("treespec.tree.growth", "from treespec import sampling"),
        ("treespec.cache", "from treespec.attention import visibility"),
        ("treespec.drafters.model", "def later():\n    from treespec import TreeDecoder"),
        ("treespec.decoder", "from treespec.heads.medusa import MedusaHeads"),
    ],
)
def test_an_import_that_does_not_go_down_is_found(module: str, statement: str):
    assert len(upward_imports(module, statement)) == 1


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("treespec.tree.growth", "from treespec.tree.token_tree import TokenTree"),
        ("treespec.decoder", "from treespec.drafters.base import Drafter"),
        ("treespec.heads.medusa", "from treespec import TreeDecoder"),
        ("treespec.tree.growth", "import torch\nfrom treespecial import thing"),
    ],
)
def test_an_import_that_goes_down_is_allowed(module: str, statement: str):
    assert upward_imports(module, statement) == []
