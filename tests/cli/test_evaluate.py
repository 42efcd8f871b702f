"""`treespec evaluate` and `treespec calibrate` on a tiny target."""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.cli.conftest import Run, words_of
from treespec.heads import MedusaConfig, MedusaHeads
from treespec.training import DistillOptions, Evaluation, distill, load_tree
from treespec.training.prompts import Prompt


@pytest.fixture(scope="module")
def data(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the target says to 24 texts."""
    folder = tmp_path_factory.mktemp("answers") / "data"
    prompts = [Prompt(f"t{n}", None, text=f"{n * n} is") for n in range(24)]
    target = AutoModelForCausalLM.from_pretrained(model)
    options = DistillOptions(max_new_tokens=12, batch_size=24)
    distill(target, AutoTokenizer.from_pretrained(model), prompts, folder, options)
    return folder


@pytest.fixture
def heads(model: Path, tmp_path: Path) -> Path:
    """Untrained heads, which say what the target's LM head says: often right on a tiny model."""
    target = AutoModelForCausalLM.from_pretrained(model)
    config = MedusaConfig(num_heads=2, hidden_size=target.config.hidden_size, lm_head="each")
    place = MedusaHeads(config, target).save_pretrained(tmp_path / "heads")
    return Path(place)


def test_heads_are_measured_on_what_training_held_out(
    run: Run, model: Path, data: Path, heads: Path, tmp_path: Path
) -> None:
    file = tmp_path / "deep/results.json"
    result = run("evaluate", model, heads, "--data", data, "--held-out", 5, "--json", file)

    assert result.exit_code == 0, result.output
    text = words_of(result.stdout)
    for fact in ("top-10", "chain of 2", "tree of 64", "Decoding with the tree of 31 gave"):
        assert fact in text
    found = Evaluation.from_json(file.read_text())
    assert (found.passages, found.texts) == (5, "5 held-out examples of data")
    assert found.gap == pytest.approx(0, abs=1e-9)  # float32: simulated is decoded
    assert not (heads / "evaluation.json").exists()


def test_heads_are_measured_on_answers_to_prompts(
    run: Run, model: Path, heads: Path, tmp_path: Path
) -> None:
    asked = tmp_path / "asked.jsonl"
    asked.write_text("\n".join(json.dumps({"prompt": f"what is {n}?"}) for n in range(3)))
    words = ("evaluate", model, heads, "--prompts", asked, "--max-new-tokens", 9, "--card")
    result = run(*words)

    assert result.exit_code == 0, result.output
    found = Evaluation.from_json((heads / "evaluation.json").read_text())
    assert (found.passages, found.tokens) == (3, 24)
    assert "answers to 3 prompts" in (heads / "README.md").read_text()


def test_the_card_has_one_section_however_often_it_is_written(
    run: Run, model: Path, data: Path, heads: Path
) -> None:
    before = (heads / "README.md").read_text() if (heads / "README.md").exists() else ""
    words = ("evaluate", model, heads, "--data", data, "--held-out", 3, "--decode", 0, "--card")
    first, second = run(*words), run(*words)

    card = (heads / "README.md").read_text()
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert card.startswith(before.rstrip())
    assert card.count("## Evaluation") == 1


def test_calibrate_stores_the_tree_that_evaluate_then_measures(
    run: Run, model: Path, data: Path, heads: Path
) -> None:
    words = ("--heads", heads, "--data", data, "--held-out", 5)
    made = run("calibrate", "--target", model, *words, "--budget", 6)
    assert made.exit_code == 0, made.output
    tree = load_tree(heads)
    shown = run("evaluate", model, heads, *words[2:], "--decode", 0)

    assert tree.budget == 6
    assert 1 <= len(tree.paths) <= 6
    assert "best-first" in words_of(made.stdout)
    assert f"static tree of {len(tree.paths)}" in words_of(shown.stdout)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give either --data, a folder of answers, or --prompts"),
        (("--data", "d", "--prompts", "p"), "give either --data"),
        (("--data", "nowhere"), "nowhere"),
        (("--prompts", "nowhere.jsonl"), "nowhere.jsonl does not exist"),
    ],
)
def test_bad_sources_are_named(
    run: Run, model: Path, heads: Path, words: tuple[str, ...], message: str
) -> None:
    result = run("evaluate", model, heads, *words)

    assert result.exit_code == 2
    assert message in words_of(result.stderr)


def test_contradictions_and_missing_heads_are_named(
    run: Run, model: Path, data: Path, heads: Path, tmp_path: Path
) -> None:
    both = run("evaluate", model, heads, "--data", data, "--all", "--held-out", 2)
    none = run("calibrate", "--target", model, "--heads", tmp_path, "--data", data)
    card = run("evaluate", model, tmp_path, "--data", data, "--card")

    assert "--all and --held-out contradict each other" in words_of(both.stderr)
    assert "is no folder of saved heads" in words_of(none.stderr)
    assert "is no folder of saved heads" in words_of(card.stderr)
    assert (both.exit_code, none.exit_code, card.exit_code) == (2, 2, 2)
