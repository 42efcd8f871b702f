"""The audit of `treespec check`: prompts in, differences out, and an exit code to act on."""

import pytest
import typer
from typer.testing import CliRunner

from tests.meta.tiny_model import save_tiny_model
from treespec.cli import app
from treespec.cli.auditing import read_prompts


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_tiny_model(folder)
    return folder


@pytest.mark.parametrize(
    ("line", "prompt"),
    [
        ('{"prompt": "a b"}', "a b"),
        ('{"text": "a b"}', "a b"),
        ('{"turns": ["a b", "c"]}', "a b"),
        ("a b", "a b"),
    ],
)
def test_prompts_come_in_several_forms(tmp_path, line, prompt):
    file = tmp_path / "prompts"
    file.write_text(f"{line}\n\n{line}\n")

    assert read_prompts(file) == [prompt, prompt]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"query": "b"}', "line 2 has none of prompt, text and turns; it has q"),
        ("{broken", "line 1 is not JSON"),
        ("\n\n", "holds no prompt"),
    ],
)
def test_what_is_no_prompt_is_named_with_its_line(tmp_path, text, message):
    file = tmp_path / "prompts"
    file.write_text(text)

    with pytest.raises(typer.BadParameter, match=message):
        read_prompts(file)


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_a_sound_model_has_no_violations(tmp_path, model, temperature):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one two"}\n{"prompt": "three"}\n{"prompt": "four"}\n')
    arguments = ["check", str(model), "--audit", str(file), "--max-new-tokens", "12"]
    result = CliRunner().invoke(
        app, [*arguments, "--limit", "2", "--temperature", temperature, "--attn", "sdpa"]
    )

    assert result.exit_code == 0
    assert "audit: 2 prompts, 24 equal tokens, 0 near-ties, 0 violations" in result.output
