"""Acceptance of every rule for one pair of laws, against the best that any rule could do.

All numbers are exact: the rules themselves are run on every possible draw, in fractions.

Usage:
    python examples/04_sampling_rules.py
"""

from fractions import Fraction

from treespec.tree import TreeTopology
from treespec.verify.exact import acceptance, optimal_acceptance, output_law, target_law

TARGET = [Fraction(weight, 20) for weight in (8, 6, 4, 2)]
DRAFT = [Fraction(weight, 20) for weight in (3, 9, 2, 6)]

WAYS = [
    ("gumbel", "shared", "draft ranked by the target's own noise (the default)"),
    ("gumbel", "topk", "the draft's most probable tokens"),
    ("rejection", "topk", "the same as point masses"),
    ("token", "iid", "one sampled token"),
    ("rejection", "iid", "independent samples"),
    ("kseq", "iid", "independent samples"),
    ("rejection", "swor", "samples without replacement"),
    ("typical", "topk", "not lossless: whatever looks plausible"),
]


def row(label: str, values: list[str], note: str) -> str:
    """One line of the table."""
    return f"{label:20}" + "".join(f"{value:>7}" for value in values) + f"   {note}"


def main() -> None:
    """Print the table."""
    print("target", *TARGET, "  draft", *DRAFT)
    print(row("\ncandidates", ["1", "2", "3"], ""))
    for rule, draw, note in WAYS:
        values = [
            f"{float(acceptance(rule, TARGET, DRAFT, candidates=k, draw=draw)):.3f}"
            for k in ((1,) if rule == "token" else (1, 2, 3))
        ]
        print(row(f"{rule}, {draw}", values + ["-"] * (3 - len(values)), note))
    for draw in ("iid", "swor"):
        best = [optimal_acceptance(TARGET, DRAFT, candidates=k, draw=draw) for k in (1, 2, 3)]
        print(row(f"bound, {draw}", [f"{float(value):.3f}" for value in best], "optimal transport"))

    p_table = {(): TARGET} | {(token,): TARGET for token in range(4)}
    pair = TreeTopology([-1, 0, 0])
    print("\ndistance of the output of two candidates from the target's own law:")
    for rule, draw in (("gumbel", "shared"), ("rejection", "swor"), ("typical", "topk")):
        law = output_law(rule, p_table, {(): DRAFT}, pair, draw=draw)
        print(f"  {rule:10} {law.total_variation(target_law(p_table, 2))}")


if __name__ == "__main__":
    main()
