"""`treespec inspect` and `treespec export` on tiny heads."""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from tests.cli.conftest import Run, save_model, words_of
from treespec.heads import EagleConfig, EagleHead, LayerConfig, MedusaConfig, MedusaHeads


@pytest.fixture(scope="module")
def medusa(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Medusa heads for the tiny target."""
    target = AutoModelForCausalLM.from_pretrained(model)
    config = MedusaConfig(num_heads=3, hidden_size=32, lm_head="each")
    folder = tmp_path_factory.mktemp("heads") / "medusa"
    return MedusaHeads(config, target).save_pretrained(folder, base_model="org/target")


@pytest.fixture(scope="module")
def eagle(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An EAGLE-3 head for it."""
    target = AutoModelForCausalLM.from_pretrained(model)
    layer = LayerConfig(
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    )
    config = EagleConfig(
        version=3,
        layer=layer,
        target_hidden_size=32,
        taps=(0, 1, 1),
        fc_bias=False,
        own_embedding=False,
        lm_head="own",
    )
    return EagleHead(config, target).save_pretrained(tmp_path_factory.mktemp("heads") / "eagle")


def test_inspect_tells_what_heads_are(run: Run, medusa: Path) -> None:
    result = run("inspect", medusa)

    text = words_of(result.stdout)
    assert result.exit_code == 0, result.output
    for fact in (
        "format medusa heads in treespec's own format",
        "heads 3",
        "reads the last hidden state",
        "vocabulary all 259 tokens",
        "float32",
        "base model org/target",
        "needs a target with hidden size 32, 259 logits, 2 layers, architecture llama",
    ):
        assert fact in text


def test_inspect_tries_a_target(run: Run, medusa: Path, model: Path, draft: Path) -> None:
    fits = run("inspect", medusa, "--target", model)
    assert fits.exit_code == 0
    assert f"fits {model}" in words_of(fits.stdout)
    assert "warning" not in fits.stdout

    other = run("inspect", medusa, "--target", draft)
    assert other.exit_code == 0
    assert "warning: the heads in" in words_of(other.stdout)


def test_inspect_fails_where_heads_do_not_fit(run: Run, medusa: Path, tmp_path: Path) -> None:
    target = AutoModelForCausalLM.from_pretrained(save_model(tmp_path / "target"))
    target.resize_token_embeddings(300, mean_resizing=False)
    target.save_pretrained(tmp_path / "target")

    result = run("inspect", medusa, "--target", tmp_path / "target")

    assert result.exit_code == 1
    assert "number of logits 300 instead of 259" in words_of(result.stdout)


@pytest.mark.parametrize("command", ["inspect", "export"])
def test_a_place_without_heads_is_bad_usage(run: Run, command: str, tmp_path: Path) -> None:
    options = ("--to", "vllm", "--out", tmp_path / "out") if command == "export" else ()

    result = run(command, tmp_path, *options)

    assert result.exit_code == 2
    assert "has no weights" in result.stderr


def test_export_writes_a_folder(run: Run, eagle: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("export", eagle, "--to", "speculators", "--base-model", "org/name", "--out", out)

    assert result.exit_code == 0, result.output
    assert str(out) in result.stdout
    config = json.loads((out / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == "org/name"


def test_export_refuses_what_the_engine_cannot_run(run: Run, medusa: Path, tmp_path: Path) -> None:
    result = run("export", medusa, "--to", "sglang", "--out", tmp_path / "out")

    assert result.exit_code == 2
    assert "SGLang cannot run medusa heads" in result.stderr


def test_export_copies_the_targets_lm_head_where_it_is_given(
    run: Run, model: Path, tmp_path: Path
) -> None:
    target = AutoModelForCausalLM.from_pretrained(model)
    config = MedusaConfig(num_heads=2, hidden_size=32, lm_head="target")
    heads = MedusaHeads(config, target).save_pretrained(tmp_path / "heads")
    out = tmp_path / "out"

    without = run("export", heads, "--to", "vllm", "--out", out)
    result = run("export", heads, "--to", "vllm", "--out", out, "--target", model)

    assert without.exit_code == 2
    assert "wants a copy of the target's LM head" in without.stderr
    assert result.exit_code == 0, result.output
    assert 'original_lm_head": true' in (out / "config.json").read_text()
