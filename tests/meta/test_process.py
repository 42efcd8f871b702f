"""What CONTRIBUTING, CI and the changelog say agrees with what is run."""

import re
import subprocess
import sys

from tests.meta.project import ROOT


def test_contributing_lists_the_commands_of_make_test_in_order():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = contributing.partition("## What CI runs")[2].partition("\n## ")[0]
    targets = re.search(r"^test: (.+?) +##", makefile, flags=re.MULTILINE)
    assert targets is not None
    assert re.findall(r"^\$ make (\w+)", section, flags=re.MULTILINE) == targets[1].split()


def test_ci_runs_make_test():
    commands = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    assert commands[-1] == "make test"


def test_every_phony_target_is_described():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.+)", makefile, flags=re.MULTILINE)
    assert phony is not None
    described = set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE))
    assert set(phony[1].split()) - {"stage"} == described


def test_changelog_fragments_make_release_notes():
    fragments = [path for path in (ROOT / "changelog.d").glob("*.md") if path.name != "README.md"]
    command = (sys.executable, "-m", "towncrier", "build", "--draft", "--version", "0.0.0")
    notes = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert notes.returncode == 0, notes.stderr
    entries = re.findall(r"^- ", notes.stdout, flags=re.MULTILINE)
    assert len(entries) == len(fragments)


def test_direct_dependencies_are_pinned_for_ci():
    metadata = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = {
        name.lower().replace("_", "-") for name in re.findall(r'"([\w-]+)(?:\[\w+\])?>=', metadata)
    }
    pins = (ROOT / "constraints/common.txt").read_text(encoding="utf-8")
    pinned = {
        name.lower().replace("_", "-") for name in re.findall(r"^([\w.-]+)==", pins, re.MULTILINE)
    }
    not_installed_by_ci = {"datasets", "flash-attn", "matplotlib", "tensorboard"}
    assert wanted - pinned - not_installed_by_ci == {"transformers"}
