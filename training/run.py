"""One training run: its steps, its looks at held-out examples, its files."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from treespec.errors import CheckpointError, ConfigError
from treespec.heads.formats.saving import save_heads
from treespec.training.building import build_heads
from treespec.training.calibrate import EVALUATION_FILE
from treespec.training.checkpoints import (
    BEST,
    LAST,
    Progress,
    read_checkpoint,
    write_checkpoint,
)
from treespec.training.config import TrainConfig
from treespec.training.corpus import Corpus, prepare
from treespec.training.data import DataFolder
from treespec.training.features import FeatureSource
from treespec.training.interrupt import StopRequest
from treespec.training.learner import Learner
from treespec.training.metrics import Metrics, Tally
from treespec.training.optimiser import learning_rate, optimiser_of
from treespec.training.packing import Batch, BatchStream, filled
from treespec.training.parallel import Processes
from treespec.training.reporting import LOG, LogFile, StepReport, Tracker, open_tracker

FILES = "training"
"""Folder beside the heads with checkpoints and log."""

OnStep = Callable[[StepReport], None]


class Run:
    """One run from its first step, or the one where it stopped, to its end.

    Args:
        target: see `train_heads`.
        data: see `train_heads`.
        config: see `train_heads`.
        out: see `train_heads`.
        resume: see `train_heads`.

    Attributes:
        heads: being trained.
        corpus: what they learn from.
        steps: how many there are.
        progress: how far it has come.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        data: DataFolder,
        config: TrainConfig,
        out: Path,
        *,
        resume: bool,
    ) -> None:
        self._config, self._out = config, out.expanduser()
        self._processes = Processes.find()
        self.corpus: Corpus = prepare(data, config)
        self.heads = build_heads(config, target, self.corpus.vocabulary)
        source = FeatureSource(
            target,
            self.heads.taps,
            needs_final=config.kl_share > 0,
            data=data,
            device=self.heads.device,
        )
        self._learner = Learner(self.heads, config, source)
        self._optimiser = optimiser_of(self.heads, config)
        self._stream = BatchStream(self.corpus.lengths, config.batch_tokens, config.seed)
        self._per_step = config.accumulation * self._processes.count
        self.steps = self._count_steps()
        self._digest = f"{self.corpus.digest()}:{self._per_step}"
        self.progress = self._begin(resume)
        self._trackers = self._open_trackers()

    def train(self, stop: StopRequest, on_step: OnStep | None) -> None:
        """Take all steps that are left, or as many as there are before a request to stop."""
        began = time.monotonic()
        self.heads.train()
        while self.progress.step < self.steps:
            report = self._step(began)
            for tracker in self._trackers:
                tracker.record(report)
            if on_step is not None and self._processes.is_main:
                on_step(report)
            asked = self._processes.any(stop.came)
            if asked or self.progress.step % self._config.save_every == 0:
                self._save(LAST)
            if asked:
                return
        self._save(LAST)

    def close(self) -> None:
        """Finish logs."""
        for tracker in self._trackers:
            tracker.close()

    def finish(self, tokenizer: PreTrainedTokenizerBase | None) -> Path | None:
        """Save the best heads, if the run came to its end, and return the folder."""
        finished = self.progress.step >= self.steps
        self._processes.wait()
        if finished and self.progress.best_step is not None:
            read_checkpoint(self._path(BEST)).restore(self.heads)
        self.heads.eval()
        if not finished:
            return None
        self.heads.to(dtype=getattr(torch, self._config.dtype))
        if self._processes.is_main:
            (self._out / EVALUATION_FILE).unlink(missing_ok=True)  # it speaks of other weights
            save_heads(self.heads, self._out, tokenizer=tokenizer)
        return self._out

    def _step(self, began: float) -> StepReport:
        """One optimiser step, and a look at the held-out examples where it is time for one."""
        step, config = self.progress.step, self._config
        lr = learning_rate(step, self.steps, config)
        for group in self._optimiser.param_groups:
            group["lr"] = lr
        places = [
            self._stream.batch(number)
            for number in range(step * self._per_step, self._end_of(step))
        ]
        batches = [
            Batch.of([self.corpus.train[index] for index in place.indices], config.max_length)
            for place in places
        ]
        counts = torch.stack([self._learner.counts(batch) for batch in batches]).sum(dim=0)
        tally = Tally.zero(config.depth)
        for number, batch in enumerate(batches):
            if self._processes.own(number):
                tally = tally + self._learner.learn(batch, counts)
        metrics = self._learner.metrics(self._summed(tally))
        norm = self._update()
        if not math.isfinite(metrics.loss) or not math.isfinite(norm):
            raise ConfigError(
                f"the loss of step {step + 1} is {metrics.loss} and its gradient {norm}; lower lr, "
                f"which is {config.lr:g}, or raise warmup_ratio, and begin anew"
            )
        self.progress = self.progress.after(metrics.tokens)
        held_out = self._examine() if self._is_time_to_examine() else None
        return StepReport(
            step=self.progress.step,
            steps=self.steps,
            epoch=places[0].epoch,
            lr=lr,
            grad_norm=norm,
            train=metrics,
            held_out=held_out,
            tokens=self.progress.tokens,
            elapsed_s=time.monotonic() - began,
        )

    def _update(self) -> float:
        """Let the optimiser use the gradients of all processes; their norm before it was cut."""
        parameters = list(self.heads.parameters())
        self._processes.sum_gradients(parameters)
        limit = math.inf if self._config.grad_clip is None else self._config.grad_clip
        norm = float(nn.utils.clip_grad_norm_(parameters, limit))
        if math.isfinite(norm):
            self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        return norm

    def _is_time_to_examine(self) -> bool:
        done = self.progress.step
        return bool(self.corpus.held_out) and (
            done % self._config.eval_every == 0 or done == self.steps
        )

    def _examine(self) -> Metrics:
        """How good the heads are on the held-out examples; the best weights so far are kept."""
        self.heads.eval()
        corpus, limit = self.corpus, self._config.max_length
        lengths = [min(len(one.tokens), limit) for one in corpus.held_out]
        order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
        tally = Tally.zero(self._config.depth)
        for number, indices in enumerate(filled(order, lengths, self._config.batch_tokens)):
            if self._processes.own(number):
                rows = [corpus.held_out[index] for index in indices]
                tally = tally + self._learner.examine(Batch.of(rows, limit))
        metrics = self._learner.metrics(self._summed(tally))
        judged = self.progress.judged(metrics)
        if judged is not self.progress:
            self.progress = judged
            self._save(BEST, whole=False)
        self.heads.train()
        return metrics

    def _summed(self, tally: Tally) -> Tally:
        """Over all processes."""
        if self._processes.count == 1:
            return tally
        flat = tally.flat().to(self._processes.device)
        return Tally.from_flat(self._processes.sum(flat).cpu())

    def _count_steps(self) -> int:
        if self._config.max_steps is not None:
            return self._config.max_steps
        batches = sum(self._stream.size(epoch) for epoch in range(self._config.epochs))
        return math.ceil(batches / self._per_step)

    def _end_of(self, step: int) -> int:
        """Number of the batch behind a step's last; the very last step may be short."""
        end = (step + 1) * self._per_step
        if self._config.max_steps is not None:
            return end
        return min(end, sum(self._stream.size(epoch) for epoch in range(self._config.epochs)))

    def _begin(self, resume: bool) -> Progress:
        """Where to go on."""
        path = self._path(LAST)
        if not path.is_file():
            return Progress()
        checkpoint = read_checkpoint(path)
        if not resume:
            raise CheckpointError(
                f"{self._out} has a training run at step {checkpoint.progress.step}; resume it "
                f"(--resume), remove {path.parent}, or give another folder"
            )
        changes = checkpoint.config.contradictions(self._config)
        if checkpoint.data != self._digest:
            changes.append("the data or the number of batches in a step are others")
        if changes:
            raise CheckpointError(
                f"the training run in {self._out} cannot be resumed: {'; '.join(changes)}; use "
                "what it began with, or give another folder"
            )
        checkpoint.restore(self.heads, self._optimiser)
        return checkpoint.progress

    def _save(self, name: str, *, whole: bool = True) -> None:
        if self._processes.is_main:
            write_checkpoint(
                self._path(name),
                self.heads,
                self._optimiser if whole else None,
                progress=self.progress,
                config=self._config,
                data=self._digest,
            )

    def _path(self, name: str) -> Path:
        return self._out / FILES / name

    def _open_trackers(self) -> list[Tracker]:
        if not self._processes.is_main:
            return []
        log = LogFile(self._path(LOG), self.progress.step)
        tracker = open_tracker(self._config.report_to, self._out, self._config)
        return [log] if tracker is None else [log, tracker]
