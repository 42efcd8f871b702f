"""The command line as a whole."""

import pytest

import treespec
from tests.cli.conftest import Run, words_of


def test_version_is_told(run: Run) -> None:
    result = run("--version")

    assert result.exit_code == 0
    assert result.stdout == f"treespec {treespec.__version__}\n"


def test_help_lists_every_command(run: Run) -> None:
    text = words_of(run("--help").stdout)

    assert all(f" {command} " in text for command in ("demo", "generate", "check"))


@pytest.mark.parametrize("command", ["demo", "generate", "check"])
def test_help_of_a_command_has_examples(run: Run, command: str) -> None:
    result = run(command, "--help")

    assert result.exit_code == 0
    assert f"Examples treespec {command}" in words_of(result.stdout)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("demo", "--prompt --model --max-new-tokens --rounds --dtype --device"),
        (
            "generate",
            "--prompt --prompt-file --drafter --draft-model --tree --budget --depth --width "
            "--max-new-tokens --temperature --seed --dtype --device --attn --chat --no-chat "
            "--stats --no-stats --json",
        ),
        ("check", "--dtype --device --attn"),
    ],
)
def test_help_of_a_command_lists_its_options(run: Run, command: str, options: str) -> None:
    text = words_of(run(command, "--help").stdout).split(" ")

    assert set(options.split()) <= {word.rstrip(",") for word in text}


def test_call_without_a_command_shows_help(run: Run) -> None:
    result = run()

    assert result.exit_code in (0, 2)  # differs between versions of typer
    assert "demo" in result.output


def test_unknown_command_is_bad_usage(run: Run) -> None:
    assert run("fly").exit_code == 2
