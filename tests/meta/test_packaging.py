"""What gets installed is what the repository holds, under one name in site-packages."""

import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.meta.project import PACKAGE_DIRS, ROOT, library_sources

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Distributions:
    """Freshly built archives."""

    wheel: Path
    sdist: Path

    def wheel_names(self) -> set[str]:
        """Files in the wheel."""
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    def sdist_names(self) -> set[str]:
        """Files in the source distribution, without its top folder."""
        with tarfile.open(self.sdist) as archive:
            files = (member.name for member in archive if member.isfile())
            return {name.partition("/")[2] for name in files}


def run(*command: str | Path) -> None:
    """Run a command in the root of the repository; its output shows where it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return Distributions(wheel, sdist)


def installed_path(path: Path) -> str:
    """Where a file of the library stands below site-packages."""
    top, *inner = path.relative_to(ROOT).parts
    return "/".join((*PACKAGE_DIRS[top].split("."), *inner))


def test_listed_packages_are_the_ones_on_disk():
    on_disk = [source.module for source in library_sources() if source.is_package]
    assert PYPROJECT["tool"]["setuptools"]["packages"] == on_disk


def test_every_folder_with_python_files_is_a_package():
    loose = {
        source.path.parent.relative_to(ROOT).as_posix()
        for source in library_sources()
        if not (source.path.parent / "__init__.py").is_file()
    }
    assert loose == set()


def test_package_map_names_the_folders_beside_treespec():
    folders = {package: folder for folder, package in PACKAGE_DIRS.items()}
    assert PYPROJECT["tool"]["setuptools"]["package-dir"] == folders


def test_wheel_holds_every_source_file_of_the_library(built: Distributions):
    packed = {name for name in built.wheel_names() if name.endswith(".py")}
    assert packed == {installed_path(source.path) for source in library_sources()}


def test_wheel_says_that_it_is_typed_and_carries_the_licence(built: Distributions):
    names = built.wheel_names()
    assert "treespec/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_wheel_has_one_top_level_name(built: Distributions):
    tops = {name.partition("/")[0] for name in built.wheel_names()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"treespec"}


def test_source_distribution_holds_what_is_needed_to_build_and_to_test(built: Distributions):
    names = built.sdist_names()
    sources = {source.path.relative_to(ROOT).as_posix() for source in library_sources()}
    tests = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")}
    needed = {"pyproject.toml", "README.md", "LICENSE", "Makefile", "constraints/ci.txt"}
    assert sources | tests | needed <= names


def test_source_distribution_holds_no_build_product(built: Distributions):
    tops = {name.partition("/")[0] for name in built.sdist_names()}
    assert tops.isdisjoint({"build", "dist", "site", ".venv", ".git"})


def test_wheel_installs_into_an_empty_environment(built: Distributions, tmp_path: Path):
    venv.create(tmp_path / "venv", with_pip=False)
    pip = (sys.executable, "-m", "pip", "--python", tmp_path / "venv", "--no-input")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", built.wheel)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    names = {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"treespec"}
    assert all((site / installed_path(source.path)).is_file() for source in library_sources())
    assert (tmp_path / "venv" / "bin" / "treespec").is_file()
