"""What a run tells while it goes on."""

import json
import sys
from pathlib import Path

import pytest

from tests.training.training_cases import folder_of, ragged_examples, settings, tiny_target
from treespec.errors import ConfigError
from treespec.training.estimate import estimate_run
from treespec.training.metrics import Metrics
from treespec.training.optimiser import learning_rate
from treespec.training.reporting import LogFile, StepReport, open_tracker
from treespec.training.trainer import train_heads

METRICS = Metrics(
    loss=2.5, loss_by_depth=(1.5, 1.25), top1=(0.5, 0.25), acceptance_length=1.6, tokens=40
)


def report(step: int, held_out: Metrics | None = None) -> StepReport:
    return StepReport(
        step=step,
        steps=9,
        epoch=0,
        lr=1e-3,
        grad_norm=0.5,
        train=METRICS,
        held_out=held_out,
        tokens=40 * step,
        elapsed_s=1.0,
    )


def test_a_resumed_log_has_every_step_once(tmp_path: Path):
    path = tmp_path / "log.jsonl"
    first = LogFile(path, 0)
    for step in (1, 2, 3):
        first.record(report(step))
    first.close()
    path.write_text(path.read_text() + '{"step": 4, "ste')

    second = LogFile(path, 2)
    second.record(report(3))
    second.close()

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert Metrics.from_dict(lines[0]["train"]) == METRICS


def test_curves_are_named_by_what_they_show():
    assert report(1).scalars().keys() == {
        "train/lr",
        "train/grad_norm",
        "train/loss",
        "train/top1_depth_1",
        "train/top1_depth_2",
        "train/acceptance_length",
    }
    assert report(1, METRICS).scalars()["held_out/top1_depth_2"] == 0.25


@pytest.mark.parametrize("name", ["tensorboard", "trackio", "wandb"])
def test_a_tracker_that_is_not_installed_is_refused_by_name(name, tmp_path, monkeypatch):
    for module in ("torch.utils.tensorboard", "trackio", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"report_to={name} needs {name}.*pip install"):
        open_tracker(name, tmp_path, settings())


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_a_tracker_is_told_settings_and_steps(name, tmp_path, monkeypatch):
    class Recorder:
        def __init__(self):
            self.calls = []

        def init(self, **given):
            self.calls.append(given["config"]["family"])

        def log(self, scalars, step):
            self.calls.append((step, scalars["train/loss"]))

        def finish(self):
            self.calls.append("finished")

    recorder = Recorder()
    monkeypatch.setitem(sys.modules, name, recorder)
    config = settings(max_steps=2, report_to=name)
    reports = []
    train_heads(
        tiny_target(),
        None,
        folder_of(ragged_examples()),
        config,
        tmp_path,
        on_step=reports.append,
    )

    assert recorder.calls == [
        "medusa",
        *((one.step, one.train.loss) for one in reports),
        "finished",
    ]


def test_tensorboard_writes_event_files(tmp_path):
    pytest.importorskip("tensorboard")
    tracker = open_tracker("tensorboard", tmp_path, settings())
    tracker.record(report(1, METRICS))
    tracker.close()
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_the_learning_rate_rises_falls_and_does_not_start_over():
    config = settings(lr=1.0, warmup_ratio=0.1, min_lr_ratio=0.2)
    rates = [learning_rate(step, 100, config) for step in range(100)]

    assert rates[:10] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert rates[10] == 1.0
    assert sorted(rates[10:], reverse=True) == rates[10:]
    assert rates[-1] == pytest.approx(0.2, abs=0.01)
    assert rates[55] == pytest.approx(0.6)


def test_an_estimate_counts_what_a_run_has_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = settings("hydra", max_steps=None, epochs=3, held_out=4, draft_vocab_size=30)
    data = folder_of(ragged_examples())
    estimate = estimate_run(tiny_target(), data, config)
    reports = []
    result = train_heads(
        tiny_target(), None, data, config, tmp_path / "out", on_step=reports.append
    )

    assert estimate.steps == reports[-1].steps
    assert estimate.examples + estimate.held_out == 24
    assert estimate.tokens * 3 == reports[-1].tokens
    assert estimate.coverage == result.coverage
    assert estimate.num_parameters == sum(one.numel() for one in result.heads.parameters())
    assert 0 < estimate.time_s < 60
    used = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*.safetensors"))
    assert 0.5 * used < estimate.disk_bytes < 3 * used
    assert estimate.memory_bytes > 4 * 4 * estimate.num_parameters
    assert all(one.grad is None for one in tiny_target().parameters())
