"""Training of draft heads from first to last, and what a run leaves behind."""

from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from treespec.heads.base import DraftHeads
from treespec.training.config import TrainConfig
from treespec.training.data import DataFolder
from treespec.training.features import at_rest
from treespec.training.interrupt import StopRequest
from treespec.training.metrics import Metrics
from treespec.training.run import OnStep, Run


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What came of a run.

    Attributes:
        heads: in evaluation mode; the best that there were, or the last without held-out examples.
        folder: where they were saved; None if the run was stopped before its end.
        step: steps taken.
        steps: steps that the run has.
        best_step: step of the saved heads; None if there was no look at held-out examples.
        held_out: how good they are on held-out examples.
        coverage: share of supervised tokens that the heads can propose.
    """

    heads: DraftHeads
    folder: Path | None
    step: int
    steps: int
    best_step: int | None
    held_out: Metrics | None
    coverage: float

    @property
    def is_finished(self) -> bool:
        """Whether the run came to its end."""
        return self.folder is not None


def train_heads(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    data: DataFolder,
    config: TrainConfig,
    out: str | Path,
    *,
    resume: bool = False,
    on_step: OnStep | None = None,
) -> TrainResult:
    """Train heads on what the target wrote, and save them.

    The target is asked without gradient and never changed. SIGINT and SIGTERM end the run after
    the step in progress, with a checkpoint from which `resume` goes on exactly.

    Args:
        target: the model that the heads are for.
        tokenizer: the target's, whose hash is saved with the heads; None for the one in its folder.
        data: what `open_data` read; it must be this target's.
        config: family, sizes, loss and optimiser.
        out: folder for the heads; checkpoints and log are in `training` below it.
        resume: go on where an earlier run in that folder stopped; begin if there is none.
        on_step: called after every step in the process that writes files.

    Raises:
        CheckpointError: if the folder has a run that is not to be resumed, or one that differs.
        ConfigError: if the settings do not fit target or data, or the loss is no number any more.
        DataError: if the data are another target's, or most of them have nothing to learn.
    """
    data.require_target(target, tokenizer)
    with at_rest(target), StopRequest() as stop:
        run = Run(target, data, config, Path(out), resume=resume)
        try:
            run.train(stop, on_step)
        finally:
            run.close()
        folder = run.finish(tokenizer)
    return TrainResult(
        heads=run.heads,
        folder=folder,
        step=run.progress.step,
        steps=run.steps,
        best_step=run.progress.best_step,
        held_out=run.progress.best,
        coverage=run.corpus.coverage,
    )
