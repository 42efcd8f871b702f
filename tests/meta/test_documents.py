"""What the documentation and the examples show can be run as it stands."""

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.meta.project import ROOT
from tests.meta.tiny_model import save_tiny_model

EXAMPLES = sorted((ROOT / "examples").glob("0*.py"))
LONGEST_EXAMPLE = 60


def python_blocks(page: Path) -> str:
    """The blocks of a page that are marked `python`, one after another, as one program."""
    text = page.read_text(encoding="utf-8")
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))


PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if python_blocks(page)
]


def model_names(program: str) -> set[str]:
    """Strings of a program that look like the name of a model on the hub."""
    strings = (
        node.value for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Constant)
    )
    return {
        text for text in strings if isinstance(text, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", text)
    }


def relative(path: Path) -> str:
    """Path from the root of the repository."""
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_python_blocks_of_a_page_run_as_one_program(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A folder named like the model, in the working directory, stands in for the hub."""
    program = python_blocks(page)
    for name in model_names(program):
        save_tiny_model(tmp_path / name)
    script = tmp_path / "page.py"
    script.write_text(program, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")


@pytest.mark.parametrize("example", EXAMPLES, ids=relative)
def test_example_runs_without_arguments(example: Path, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, example],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("example", EXAMPLES, ids=relative)
def test_example_is_short(example: Path):
    lines = example.read_text(encoding="utf-8").count("\n")
    assert lines < LONGEST_EXAMPLE
