"""`treespec distill` writes training data, and refuses what it cannot do."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run, words_of
from tests.training.stub_server import said, stub_server
from treespec.training.data import open_data


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Two questions and a chat with an answer."""
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    rows = [
        {"id": "a", "prompt": "why"},
        {"id": "b", "prompt": "how"},
        {"id": "c", "messages": chat},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_prompts_become_training_data(run: Run, model: Path, prompts: Path, tmp_path: Path):
    out = tmp_path / "data"
    command = ("distill", model, "--prompts", prompts, "--out", out, "--max-new-tokens", 4)
    result = run(*command, "--taps", "1,-1", "--hidden-dtype", "bfloat16", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "3 examples with 12 supervised tokens" in words_of(result.stderr)
    data = open_data(out)
    assert data.meta.taps == (1, 2)
    assert str(data.hidden(data.examples[0]).dtype) == "torch.bfloat16"


def test_a_limit_can_be_raised(run: Run, model: Path, prompts: Path, tmp_path: Path):
    out = tmp_path / "data"
    command = ("distill", model, "--prompts", prompts, "--out", out, "--max-new-tokens", 3)
    assert run(*command, "--limit", 1).exit_code == 0
    first = open_data(out).examples[0].id
    result = run(*command, "--limit", 2)
    assert "1 conversations new" in words_of(result.stderr)
    assert open_data(out).examples[0].id == first
    assert len(open_data(out).examples) == 2


def test_the_mask_is_shown(run: Run, model: Path, prompts: Path, tmp_path: Path):
    only = tmp_path / "one.jsonl"
    only.write_text(prompts.read_text().splitlines()[2] + "\n")
    command = ("distill", model, "--prompts", only, "--out", tmp_path / "data")
    result = run(*command, "--keep-answers", "--show-mask")
    assert result.exit_code == 0, result.output
    shown = words_of(result.stdout)
    assert "c: 7 of 11 tokens are supervised" in shown
    assert "hi<bot>[<user>hello<bot>]" in shown


def test_a_server_answers(run: Run, model: Path, prompts: Path, tmp_path: Path):
    out = tmp_path / "data"
    with stub_server(lambda *_: said("so")) as stub:
        result = run(
            *("distill", model, "--prompts", prompts, "--out", out),
            *("--base-url", stub.url, "--server-model", "served"),
        )
    assert result.exit_code == 0, result.output
    assert {body["model"] for _, body in stub.requests} == {"served"}
    assert len(open_data(out).examples) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--taps", "last"), "'last' is no list of numbers"),
        (("--taps", "9"), "tap 9 does not exist"),
        (("--hidden-dtype", "int8", "--taps", "1"), "hidden_dtype must be one of"),
        (("--keep-answers",), "has no answer of an assistant"),
        (("--server-model", "x"), "it belongs to --base-url"),
        (("--base-url", "localhost"), "base_url must begin with"),
        (("--prompts", "missing.jsonl"), "missing.jsonl does not exist"),
    ],
)
def test_what_cannot_be_done_is_refused(
    run: Run, model: Path, prompts: Path, tmp_path: Path, options: tuple[str, ...], message: str
):
    out = tmp_path / "data"
    result = run("distill", model, "--prompts", prompts, "--out", out, *options)
    assert result.exit_code == 2
    assert message in words_of(result.output)


def test_prompts_must_be_given(run: Run, model: Path, tmp_path: Path):
    result = run("distill", model, "--out", tmp_path / "data")
    assert result.exit_code == 2
    assert "give --prompts or --data-set" in words_of(result.output)
