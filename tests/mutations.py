"""Plants known faults of this field into a copy of the code, and asks whether a test sees them.

python -m tests.mutations [--only TEXT] [--jobs 2]

Not a test itself: each fault costs a run of the test files that guard it. A fault is a piece of
source text and what to put in its place; where the code has moved on, the run says so and fails.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("treespec", "heads", "training", "tests", "examples", "docs", "pyproject.toml")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault to plant.

    Attributes:
        name: what it is.
        path: file to plant it in.
        old: source text, which must occur once.
        new: what to put in its place.
        tests: test files or folders that must notice.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


def copied(place: Path) -> Path:
    """A copy of the code that is imported in place of the installed one."""
    for part in PARTS:
        source = ROOT / part
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, place / part)
    for part in ("heads", "training"):
        link = place / "treespec" / part
        if link.exists():  # an editable install has left its own
            shutil.rmtree(link)
        link.symlink_to(place / part)
    return place


def run(place: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run test files until the first fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    return subprocess.run(
        command,
        cwd=place,
        env={
            "PYTHONPATH": str(place),
            "PATH": os.environ["PATH"],
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def verdict(fault: Fault) -> tuple[bool, str]:
    """Whether a test noticed, and which."""
    with tempfile.TemporaryDirectory() as work:
        place = copied(Path(work))
        source = (place / fault.path).read_text(encoding="utf-8")
        if source.count(fault.old) != 1:
            return False, f"STALE: its text occurs {source.count(fault.old)} times in {fault.path}"
        planted = source.replace(fault.old, fault.new)
        (place / fault.path).write_text(planted, encoding="utf-8")
        found = run(place, fault.tests)
    failed = [line for line in found.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if found.returncode == 1 and failed:
        return True, failed[0].split(" - ")[0].removeprefix("FAILED ").removeprefix("ERROR ")
    return False, f"NOT SEEN (pytest ended with {found.returncode})"


def read_faults(only: str) -> list[Fault]:
    """Those whose name holds a text."""
    table = tomllib.loads((ROOT / "tests/faults.toml").read_text(encoding="utf-8"))
    faults = [Fault(**{**one, "tests": tuple(one["tests"])}) for one in table["fault"]]
    return [fault for fault in faults if only in fault.name]


def require_green(faults: Iterable[Fault]) -> None:
    """Stop if the tests fail without any fault."""
    tests = sorted({test for fault in faults for test in fault.tests})
    with tempfile.TemporaryDirectory() as work:
        found = run(copied(Path(work)), tests)
    if found.returncode != 0:
        sys.exit(f"the tests fail without any fault:\n{found.stdout[-2000:]}{found.stderr[-500:]}")


def main() -> None:
    """Print a line per fault; exit with 1 if one was not seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="faults whose name holds this text")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    faults = read_faults(options.only)
    require_green(faults)
    seen = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for fault, (noticed, words) in zip(faults, pool.map(verdict, faults), strict=True):
            seen += noticed
            sys.stdout.write(f"{fault.name}: {words}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{seen} of {len(faults)} faults seen\n")
    sys.exit(seen < len(faults))


if __name__ == "__main__":
    main()
