"""`treespec check` on tiny models, supported ones and others."""

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from tests.cli.conftest import Run, byte_tokenizer, words_of


def saved(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def test_supported_model_is_reported_with_its_facts(run: Run, model: Path) -> None:
    result = run("check", model)

    text = words_of(result.stdout)
    assert result.exit_code == 0, result.output
    for fact in (
        "LlamaForCausalLM (llama)",
        "torch.float32, on cpu",
        "259 tokens, with a chat template",
        "cache 2 layers",
        "at most 256",
        "259 token ids",
        "a token sees everything before it",
        "supported: LlamaForCausalLM",
    ):
        assert fact in text


def test_each_attention_implementation_is_tried(run: Run, model: Path) -> None:
    text = words_of(run("check", model).stdout)

    assert "sdpa self-check passed" in text
    assert "eager self-check passed" in text
    assert "flash_attention_2 refused: LlamaForCausalLM runs attention through" in text


def test_asked_attention_implementation_is_the_only_one_tried(run: Run, model: Path) -> None:
    text = words_of(run("check", model, "--attn", "eager").stdout)

    assert "eager self-check passed" in text
    assert "sdpa self-check" not in text


def test_every_tree_size_is_timed(run: Run, model: Path) -> None:
    lines = run("check", model).stdout.splitlines()

    rows = [line.split() for line in lines if line.split()[:1] in (["1"], ["8"], ["64"])]
    assert [row[0] for row in rows] == ["1", "8", "64"]
    assert rows[0][2] == "1.00"


def test_window_is_reported(run: Run, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=8,
        max_position_embeddings=64,
    )

    result = run("check", saved(MistralForCausalLM(config), tmp_path))

    assert result.exit_code == 0, result.output
    assert "a token sees the last 8 positions" in words_of(result.stdout)


def test_missing_tokenizer_is_no_failure(run: Run, model: Path, tmp_path: Path) -> None:
    folder = saved(AutoModelForCausalLM.from_pretrained(model), tmp_path)

    result = run("check", folder)

    assert result.exit_code == 0, result.output
    assert "tokenizer none" in words_of(result.stdout)


def test_tokenizer_without_a_chat_template_is_told(run: Run, bare_model: Path) -> None:
    assert "without a chat template" in words_of(run("check", bare_model).stdout)


def test_generation_config_that_would_be_refused_is_told(
    run: Run, model: Path, tmp_path: Path
) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(model)
    loaded.generation_config.num_beams = 4
    byte_tokenizer().save_pretrained(tmp_path)

    result = run("check", saved(loaded, tmp_path))

    assert result.exit_code == 0, result.output
    assert "refused unless overridden: num_beams=4" in words_of(result.stdout)


@pytest.mark.parametrize("family", ["mamba", "bloom"])
def test_model_that_cannot_run_trees_is_refused_by_name(
    run: Run, tmp_path: Path, family: str
) -> None:
    if family == "mamba":
        model: PreTrainedModel = MambaForCausalLM(
            MambaConfig(vocab_size=97, hidden_size=32, num_hidden_layers=1, state_size=4)
        )
    else:
        model = BloomForCausalLM(BloomConfig(vocab_size=97, hidden_size=32, n_layer=1, n_head=4))

    result = run("check", saved(model, tmp_path))

    assert result.exit_code == 1
    assert f"refused: {type(model).__name__}" in words_of(result.stdout)
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--attn", "flash_attention_2"], "'flash_attention_2' is not one of"),
        (["--device", "warp"], "'warp' cannot be used"),
    ],
)
def test_bad_option_is_bad_usage(run: Run, model: Path, options: list[str], message: str) -> None:
    result = run("check", model, *options)

    assert result.exit_code == 2
    assert message in words_of(result.stderr)


def test_missing_folder_is_bad_usage(run: Run, tmp_path: Path) -> None:
    result = run("check", tmp_path / "nowhere")

    assert result.exit_code == 2
    assert "is not a folder" in words_of(result.stderr)
