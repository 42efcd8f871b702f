"""How `treespec generate` tells counts."""

from dataclasses import replace

from treespec.cli.generate import stats_as_json, stats_as_text
from treespec.stats import DecodeStats

COUNTS = DecodeStats(
    steps=4,
    emitted=11,
    drafted=40,
    accepted=6,
    accepted_by_depth=(3, 2, 1),
    finish_reason="eos",
)
ONE_TOKEN = DecodeStats(
    steps=0, emitted=1, drafted=0, accepted=0, accepted_by_depth=(), finish_reason="length"
)


def test_text_tells_rates_and_shares() -> None:
    text = stats_as_text(COUNTS, 2.0, seed=None)

    assert text.splitlines() == [
        "11 tokens in 2.00 s, 5.5 tokens/s; ended by eos",
        "acceptance length 2.50 over 4 steps; 6 of 40 draft tokens accepted",
        "steps accepted down to depth 1, 2, ...: 75% 50% 25%",
    ]


def test_text_of_deep_trees_is_cut_short() -> None:
    deep = replace(COUNTS, accepted_by_depth=(1,) * 17)

    assert stats_as_text(deep, 2.0, seed=None).endswith(" 25%" * 16 + " ...")


def test_text_of_a_single_token_has_no_rates() -> None:
    text = stats_as_text(ONE_TOKEN, 0.5, seed=3)

    assert text == "1 tokens in 0.50 s, 2.0 tokens/s; ended by length; seed 3"


def test_json_of_a_single_token_has_no_rates() -> None:
    report = stats_as_json(ONE_TOKEN)

    assert report["acceptance_length"] is None
    assert report["acceptance_rate"] is None
