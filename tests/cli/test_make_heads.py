"""`treespec make-heads`: one command from prompts to usable heads."""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from tests.cli.conftest import Run, words_of
from treespec.heads import load_heads
from treespec.training.calibrate import load_tree

SMALL = ("--set", "max_steps=20", "--set", "lr=0.01", "--set", "batch_tokens=256")
LENGTHS = ("--set", "max_length=64", "--max-new-tokens", 12, "--budget", 8)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A folder with two files of prompts."""
    folder = tmp_path / "prompts"
    folder.mkdir()
    for name in ("one", "two"):
        rows = [{"id": f"{name}-{n}", "prompt": f"{name} says {n * n}"} for n in range(12)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_folder_of_prompts_becomes_heads(run: Run, model: Path, prompts: Path, tmp_path: Path):
    out = tmp_path / "heads"
    command = ("make-heads", model, "--prompts", prompts, "--out", out, *SMALL, *LENGTHS)

    result = run(*command, "--family", "hydra", "--set", "num_heads=2", "--device", "cpu")

    assert result.exit_code == 0, result.output
    assert "tree of 31" in result.stdout
    heads = load_heads(out, AutoModelForCausalLM.from_pretrained(model))
    assert heads.family == "hydra"
    assert load_tree(out) is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "num_head=3"), "no setting num_head; did you mean num_heads"),
        (("--set", "held_out=0"), "held_out is 0"),
        (("--limit", 5), "there are 5 prompts, too few"),
        (("--prompts", "missing.jsonl"), "missing.jsonl does not exist"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_work(
    run: Run,
    model: Path,
    prompts: Path,
    tmp_path: Path,
    options: tuple[object, ...],
    message: str,
):
    out = tmp_path / "heads"
    result = run("make-heads", model, "--prompts", prompts, "--out", out, *options)
    assert result.exit_code == 2
    assert message in words_of(result.output)
    assert not out.exists()
