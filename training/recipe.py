"""From prompts to usable heads in one go: distil, train, evaluate, calibrate.

Every stage leaves its result on disk, so that the same call goes on where an earlier one stopped.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from treespec.errors import ConfigError
from treespec.heads.formats.loading import load_heads
from treespec.training.answering import DistillOptions
from treespec.training.calibrate import (
    EVALUATION_FILE,
    CalibratedTree,
    best_tree,
    load_tree,
    store_evaluation,
    store_tree,
)
from treespec.training.config import TrainConfig
from treespec.training.corpus import Corpus, prepare
from treespec.training.distill import Notify, distill
from treespec.training.evaluate import EvaluationOptions, evaluate_heads
from treespec.training.examples import Example
from treespec.training.files import replace_text
from treespec.training.prompts import Prompt
from treespec.training.results import Evaluation
from treespec.training.run import FILES, OnStep
from treespec.training.trainer import train_heads

DATA = "data"
"""Folder of the target's answers, below that of the heads."""

_RECORD = "recipe.json"
# Guesses of a depth that may have a place in the calibrated tree.
_COLUMNS = 16
# Held-out answers whose prompts are really decoded.
_DECODED = 8
_LEAST_PROMPTS = 20  # so that training holds one out


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What heads are made with.

    Attributes:
        train: family, sizes, loss and optimiser.
        distill: how the target answers.
        budget: most draft tokens of the tree that is stored with the heads, at least 1.
    """

    train: TrainConfig = field(default_factory=TrainConfig)
    distill: DistillOptions = field(default_factory=DistillOptions)
    budget: int = 31

    def __post_init__(self) -> None:
        """Check what the parts do not check themselves.

        Raises:
            ConfigError: for a budget below 1, and where nothing would be held out.
        """
        if self.budget < 1:
            raise ConfigError(f"budget must be at least 1, got {self.budget}")
        if self.train.held_out == 0:
            raise ConfigError(
                "held_out is 0, but the finished heads are evaluated on examples that they were "
                "not trained on; give a number, or leave it out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Watchers:
    """What is called while heads are made.

    Attributes:
        on_stage: with the name of each stage as it begins.
        on_answers: as `notify` of `distill`.
        on_step: as for `train_heads`.
        on_batch: as for `evaluate_heads`.
    """

    on_stage: Callable[[str], None] | None = None
    on_answers: Notify | None = None
    on_step: OnStep | None = None
    on_batch: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeHeads:
    """What came of it.

    Attributes:
        folder: of the heads, for `load_heads`.
        step: training steps taken.
        steps: training steps in all; with fewer taken, a signal stopped the run.
        evaluation: on held-out examples; None if the run was stopped.
        tree: stored with the heads, for `load_tree`; None if the run was stopped.
    """

    folder: Path
    step: int
    steps: int
    evaluation: Evaluation | None
    tree: CalibratedTree | None

    @property
    def is_finished(self) -> bool:
        """Whether all stages came to their end."""
        return self.tree is not None


def make_heads(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    out: str | Path,
    recipe: Recipe | None = None,
    watchers: Watchers | None = None,
) -> MadeHeads:
    """Let the target answer prompts, train heads on that, measure them and store their best tree.

    Args:
        target: the model that the heads are for.
        tokenizer: its tokenizer.
        prompts: see `read_prompts`; at least 20.
        out: folder for the heads; the answers are in `data` below it, checkpoints in `training`.
        recipe: how; `Recipe()` if left out.
        watchers: what is told about progress.

    Raises:
        CheckpointError: if the folder has heads that were made otherwise.
        ConfigError: if settings do not fit the target or the data, or there are too few prompts.
        DataError: if prompts cannot be answered, or the heads never guess right.
        UnsupportedTargetError: if the target cannot run trees.
    """
    recipe, watchers = recipe or Recipe(), watchers or Watchers()
    out = Path(out).expanduser()
    if recipe.train.held_out is None and len(prompts) < _LEAST_PROMPTS:
        raise ConfigError(
            f"there are {len(prompts)} prompts, too few to hold some out; give at least "
            f"{_LEAST_PROMPTS}, or a number as held_out"
        )
    _begin(watchers, "distil")
    report = distill(
        target, tokenizer, prompts, out / DATA, recipe.distill, notify=watchers.on_answers
    )
    data = report.data
    corpus = prepare(data, recipe.train)
    record, digest = out / FILES / _RECORD, _digest(recipe, corpus)
    done = _read(record, digest)
    _begin(watchers, "train")
    if "train" not in done:
        result = train_heads(
            target, tokenizer, data, recipe.train, out, resume=True, on_step=watchers.on_step
        )
        if not result.is_finished:
            return MadeHeads(
                folder=out, step=result.step, steps=result.steps, evaluation=None, tree=None
            )
        done = {"train": [result.step, result.steps]}
        replace_text(record, json.dumps({"digest": digest, **done}))
    step, steps = done["train"]
    _begin(watchers, "evaluate")
    evaluation = _evaluation(target, corpus.held_out, out, recipe, watchers)
    _begin(watchers, "calibrate")
    tree = load_tree(out)
    if tree is None or tree.budget != recipe.budget:
        tree = best_tree(evaluation, recipe.budget)
        store_tree(out, tree)
    return MadeHeads(folder=out, step=step, steps=steps, evaluation=evaluation, tree=tree)


def _evaluation(
    target: PreTrainedModel,
    examples: Sequence[Example],
    out: Path,
    recipe: Recipe,
    watchers: Watchers,
) -> Evaluation:
    """What an earlier run found, or a new evaluation on the examples that training held out."""
    path = out / EVALUATION_FILE
    if path.is_file():
        return Evaluation.from_json(path.read_text(encoding="utf-8"))
    options = EvaluationOptions(
        texts=f"{len(examples)} held-out answers",
        columns=_COLUMNS,
        decode=_DECODED,
        max_length=recipe.train.max_length,
    )
    heads = load_heads(out, target)
    found = evaluate_heads(target, heads, examples, options, on_batch=watchers.on_batch)
    store_evaluation(out, found)
    return found


def _begin(watchers: Watchers, stage: str) -> None:
    if watchers.on_stage is not None:
        watchers.on_stage(stage)


def _digest(recipe: Recipe, corpus: Corpus) -> str:
    """A hash of all that finished heads depend on."""
    train = replace(recipe.train, report_to="none", save_every=1)
    text = json.dumps([asdict(train), corpus.digest()])
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path, digest: str) -> dict[str, list[int]]:
    """What the record says is done; nothing if it speaks of other heads, or there is none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["digest"] != digest:
            return {}
        return {"train": [int(one) for one in values["train"]]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # training itself finds out how far it is
