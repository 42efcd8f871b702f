"""Habits of the library's files that a linter cannot see whole."""

import ast
import re
from pathlib import Path

import pytest

from tests.meta.project import ROOT, Source, library_sources, python_files, text_files

LONGEST_FILE = 300
LONGEST_TEST = 350  # tables of cases are longer than code may be

WRITES_PICKLES = {"heads/formats/saving.py"}
"""Writes Medusa's own layout, whose file is a pickled state dict; reading is safe everywhere."""

FORBIDDEN_MODULES = {"cloudpickle", "dill", "joblib", "pickle", "shelve"}

MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:farm|home|mnt|root|work|Users)/\w")
"""Absolute paths that exist on somebody's machine only; the shebang and /tmp are not among them."""


def relative(path: Path) -> str:
    """Path from the root of the repository."""
    return path.relative_to(ROOT).as_posix()


def faults(source: str) -> list[str]:
    """What a library file must not do, as `line: what`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Assert():
                found.append((node.lineno, "assert"))
            case ast.Call(func=ast.Name(id="print" | "eval" | "exec" | "hasattr" as name)):
                found.append((node.lineno, name))
            case ast.Import(names=names) if FORBIDDEN_MODULES & {name.name for name in names}:
                found.append((node.lineno, "pickle"))
            case ast.ImportFrom(module=module) if module in FORBIDDEN_MODULES:
                found.append((node.lineno, "pickle"))
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load")):
                safe = any(
                    isinstance(word.value, ast.Constant) and word.value.value is True
                    for word in node.keywords
                    if word.arg == "weights_only"
                )
                found.extend([] if safe else [(node.lineno, "pickle")])
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="save")):
                found.append((node.lineno, "pickle"))
            case ast.keyword(arg="trust_remote_code"):
                found.append((node.lineno, "trust_remote_code"))
            case ast.Constant(value="trust_remote_code"):
                found.append((node.lineno, "trust_remote_code"))
    return [f"{line}: {what}" for line, what in sorted(found)]


@pytest.mark.parametrize("source", library_sources(), ids=str)
def test_library_file_prints_asserts_unpickles_and_trusts_nothing(source: Source):
    found = faults(source.path.read_text(encoding="utf-8"))
    if relative(source.path) in WRITES_PICKLES:
        found = [fault for fault in found if "pickle" not in fault]
    assert found == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("print('done')", "1: print"),
        ("assert size > 0", "1: assert"),
        ("import pickle", "1: pickle"),
        ("from pickle import loads", "1: pickle"),
        ("state = torch.load(path)", "1: pickle"),
        ("state = torch.load(path, weights_only=False)", "1: pickle"),
        ("torch.save(state, path)", "1: pickle"),
        ("load(name, trust_remote_code=True)", "1: trust_remote_code"),
        ("load(name, **{'trust_remote_code': True})", "1: trust_remote_code"),
        ("hasattr(model, 'medusa_mask')", "1: hasattr"),
    ],
)
def test_a_forbidden_habit_is_found(source: str, found: str):
    assert faults(source) == [found]


@pytest.mark.parametrize(
    "path",
    python_files("treespec", "heads", "training", "tests", "examples", "benchmarks"),
    ids=relative,
)
def test_file_is_short_enough_to_read(path: Path):
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= (LONGEST_TEST if relative(path).startswith("tests/") else LONGEST_FILE)


def test_no_file_names_a_path_of_one_machine():
    found = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if MACHINE_PATHS.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("path", ["/" + "root/models/x", "see /" + "home/me", "'/" + "work/main'"])
def test_a_path_of_one_machine_is_found(path: str):
    assert MACHINE_PATHS.search(path)
