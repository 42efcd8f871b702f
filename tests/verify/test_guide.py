"""The guide on rules and its example show the numbers that the library gives."""

import runpy
from pathlib import Path

import pytest

from treespec.verify import VERIFIERS
from treespec.verify.exact import acceptance, optimal_acceptance

pytestmark = pytest.mark.usefixtures("plain_calls")

ROOT = Path(__file__).parents[2]
EXAMPLE = runpy.run_path(str(ROOT / "examples/04_sampling_rules.py"))
GUIDE = (ROOT / "docs/guides/choosing_a_rule.md").read_text(encoding="utf-8")
ROWS = {
    "`gumbel`, shared noise": ("gumbel", "shared"),
    "`gumbel` or `rejection`, the draft's most probable tokens": ("rejection", "topk"),
    "`rejection`, independent": ("rejection", "iid"),
    "`kseq`, independent": ("kseq", "iid"),
    "bound for independent candidates": (None, "iid"),
    "`rejection`, without replacement": ("rejection", "swor"),
    "bound without replacement": (None, "swor"),
}


@pytest.mark.parametrize("label", ROWS)
def test_table_of_the_guide_shows_the_exact_acceptance(label: str):
    rule, draw = ROWS[label]
    p, q = EXAMPLE["TARGET"], EXAMPLE["DRAFT"]
    values = [
        acceptance(rule, p, q, candidates=k, draw=draw)
        if rule
        else optimal_acceptance(p, q, candidates=k, draw=draw)
        for k in (1, 2, 3)
    ]

    row = " | ".join(f"{float(value):.3f}" for value in values)
    assert f"| {label} | {row} |" in GUIDE


@pytest.mark.parametrize("name", VERIFIERS)
def test_every_verifier_stands_in_the_guide(name: str):
    assert f"`{name}`" in GUIDE


def test_draws_of_the_guide_are_those_that_the_rules_take():
    for name in ("rejection", "traversal"):
        draws = ", ".join(f"`{draw}`" for draw in VERIFIERS[name]().draws)

        assert any(f"`{name}`" in line and draws in line for line in GUIDE.splitlines())
