"""What a run tells while it goes on: a line of JSON a step, and a tracker if one is wanted."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from treespec.errors import ConfigError
from treespec.training.config import TrainConfig
from treespec.training.files import replace_text
from treespec.training.metrics import Metrics

LOG = "log.jsonl"


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimiser step.

    Attributes:
        step: its number, from 1.
        steps: how many there will be.
        epoch: pass over the data, from 0.
        lr: learning rate.
        grad_norm: norm of the gradient before it was cut.
        train: how good the heads were on the step's examples, before they learned from them.
        held_out: how good they are on held-out examples after it; None at most steps.
        tokens: labels of the first depth seen so far.
        elapsed_s: seconds since this process began to train.
    """

    step: int
    steps: int
    epoch: int
    lr: float
    grad_norm: float
    train: Metrics
    held_out: Metrics | None
    tokens: int
    elapsed_s: float

    def as_dict(self) -> dict[str, Any]:
        """For the log."""
        return {
            "step": self.step,
            "steps": self.steps,
            "epoch": self.epoch,
            "lr": self.lr,
            "grad_norm": self.grad_norm,
            "train": self.train.as_dict(),
            "held_out": None if self.held_out is None else self.held_out.as_dict(),
            "tokens": self.tokens,
            "elapsed_s": round(self.elapsed_s, 3),
        }

    def scalars(self) -> dict[str, float]:
        """The numbers that are worth a curve, by name."""
        found = {"train/lr": self.lr, "train/grad_norm": self.grad_norm}
        found |= _curves("train", self.train)
        return found if self.held_out is None else found | _curves("held_out", self.held_out)


def _curves(name: str, metrics: Metrics) -> dict[str, float]:
    found = {f"{name}/loss": metrics.loss}
    for depth, share in enumerate(metrics.top1, start=1):
        found[f"{name}/top1_depth_{depth}"] = share
    if metrics.acceptance_length is not None:
        found[f"{name}/acceptance_length"] = metrics.acceptance_length
    return found


@runtime_checkable
class Tracker(Protocol):
    """Where curves go."""

    def record(self, report: StepReport) -> None:
        """Take in one step."""
        ...

    def close(self) -> None:
        """Finish writing."""
        ...


class LogFile:
    """The run's own log, a line of JSON a step.

    Args:
        path: of the file; an earlier part of the same run is kept.
        step: steps that the run has taken; lines of later ones, which will be taken again, go.
    """

    def __init__(self, path: Path, step: int) -> None:
        kept = [line for line in _lines(path) if _step_of(line) <= step] if step else []
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, "".join(f"{line}\n" for line in kept))
        self._file = path.open("a", encoding="utf-8")

    def record(self, report: StepReport) -> None:
        """See `Tracker.record`."""
        self._file.write(json.dumps(report.as_dict()) + "\n")
        self._file.flush()

    def close(self) -> None:
        """See `Tracker.close`."""
        self._file.close()


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def _step_of(line: str) -> float:
    """Step of a line; one that was cut off belongs to no step that is kept."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


class _TensorBoard:
    """Event files that TensorBoard shows."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def record(self, report: StepReport) -> None:
        for name, value in report.scalars().items():
            self._writer.add_scalar(name, value, report.step)

    def close(self) -> None:
        self._writer.close()


class _Runs:
    """Weights & Biases, or trackio, which has the same interface."""

    def __init__(self, module: Any, folder: Path, config: TrainConfig) -> None:
        self._module = module
        module.init(project="treespec", name=folder.name, config=config.as_dict())

    def record(self, report: StepReport) -> None:
        self._module.log(report.scalars(), step=report.step)

    def close(self) -> None:
        self._module.finish()


def open_tracker(name: str, folder: Path, config: TrainConfig) -> Tracker | None:
    """The tracker that a run asked for; None if it wants none.

    Args:
        name: "none", "tensorboard", "trackio" or "wandb".
        folder: of the heads; TensorBoard writes beside them, others name the run after it.
        config: settings, which trackers show.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        if name == "tensorboard":
            return _TensorBoard(folder)
        if name == "trackio":
            import trackio  # type: ignore[import-not-found]

            return _Runs(trackio, folder, config)
        if name == "wandb":
            import wandb  # type: ignore[import-not-found]

            return _Runs(wandb, folder, config)
    except ImportError as error:
        install = "'treespec[train]'" if name == "tensorboard" else name
        raise ConfigError(
            f"report_to={name} needs {name}, which is not installed: pip install {install}; "
            f"the log file {LOG} has the same numbers"
        ) from error
    return None
