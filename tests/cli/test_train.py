"""`treespec train` on a tiny target."""

import json
import signal
from importlib import import_module
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.cli.conftest import Run, words_of
from treespec.heads import load_heads
from treespec.heads.formats.fingerprint import Fingerprint
from treespec.training.examples import DataMeta

command = import_module("treespec.cli.train")  # the package's attribute is the function
SMALL = ("--max-steps", 3, "--batch-tokens", 128, "--set", "max_length=64")


@pytest.fixture(scope="module")
def data(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random texts, as `treespec distill` writes them."""
    folder = tmp_path_factory.mktemp("data")
    target = AutoModelForCausalLM.from_pretrained(model)
    meta = DataMeta(
        target="target",
        fingerprint=Fingerprint.of(target, AutoTokenizer.from_pretrained(model)),
        vocab_size=target.config.vocab_size,
        chat_template_sha256=None,
        taps=None,
        hidden_dtype=None,
        options={},
    )
    (folder / "data.json").write_text(json.dumps(meta.as_dict()))
    generator = torch.Generator().manual_seed(0)
    with (folder / "examples.jsonl").open("w") as file:
        for number in range(20):
            tokens = torch.randint(259, (12 + number,), generator=generator).tolist()
            line = {"id": f"text-{number}", "category": None, "tokens": tokens}
            file.write(json.dumps({**line, "supervised": [[4, len(tokens)]]}) + "\n")
    return folder


def test_it_writes_heads_that_load(run: Run, model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "heads"
    settings = tmp_path / "run.yaml"
    settings.write_text("family: hydra\nnum_heads: 4\nlr: 0.5\n")

    result = run(
        "train",
        model,
        "--data",
        data,
        "--out",
        out,
        "--config",
        settings,
        "--lr",
        0.01,
        "--set",
        "num-heads=2",
        "--draft-vocab-size",
        100,
        *SMALL,
    )

    assert result.exit_code == 0, result.output
    assert f"wrote {out}" in words_of(result.stdout)
    assert "step 3: held out loss" in words_of(result.stderr)
    heads = load_heads(out, AutoModelForCausalLM.from_pretrained(model))
    assert (heads.family, heads.max_depth, heads.num_columns) == ("hydra", 2, 100)
    lines = (out / "training/log.jsonl").read_text().splitlines()
    assert len(lines) == 3
    assert max(json.loads(line)["lr"] for line in lines) == 0.01


def test_a_dry_run_tells_what_it_takes_and_writes_nothing(
    run: Run, model: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "heads"
    result = run("train", model, "--data", data, "--out", out, "--dry-run", *SMALL)

    assert result.exit_code == 0, result.output
    text = words_of(result.stdout)
    for fact in ("examples 19, and 1 held out", "computed by the target", "steps 3", "MB"):
        assert fact in text
    assert not out.exists()


def test_a_signal_stops_it_and_resume_goes_on(
    run: Run, model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("train", model, "--data", data, "--out", tmp_path / "heads", *SMALL)
    shown = command.show_step

    def interrupted(bar, task, report):
        shown(bar, task, report)
        if report.step == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(command, "show_step", interrupted)
    stopped = run(*words)
    monkeypatch.setattr(command, "show_step", shown)
    again, resumed = run(*words), run(*words, "--resume")

    assert stopped.exit_code == command.STOPPED
    assert "stopped after step 2 of 3; the same command with --resume" in words_of(stopped.stderr)
    assert again.exit_code == 2
    assert "has a training run at step 2" in words_of(again.stderr)
    assert resumed.exit_code == 0, resumed.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "num_head=3"), "no setting num_head; did you mean num_heads"),
        (("--set", "num_heads"), "'num_heads' has no value"),
        (("--report-to", "paper"), "report_to must be one of none, tensorboard"),
        (("--set", "taps=0,1"), "taps is for eagle3 heads, but family is medusa"),
        (("--draft-vocab-size", 5000), "draft_vocab_size is 5000, but the target has 259 tokens"),
    ],
)
def test_bad_settings_are_named(
    run: Run, model: Path, data: Path, tmp_path: Path, options: tuple[object, ...], message: str
) -> None:
    result = run("train", model, "--data", data, "--out", tmp_path / "heads", *options)

    assert result.exit_code == 2
    assert message in words_of(result.stderr)


def test_data_of_another_target_are_refused(
    run: Run, draft: Path, data: Path, tmp_path: Path
) -> None:
    result = run("train", draft, "--data", data, "--out", tmp_path / "heads", *SMALL)

    assert result.exit_code == 2
    assert "were written by target, but this target has other weights" in words_of(result.stderr)
