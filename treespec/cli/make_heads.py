"""`treespec make-heads`: from prompts to usable draft heads with one command."""

from pathlib import Path
from typing import Annotated

import typer

from treespec.cli.distill import AnswerLengthOption, BatchOption, PromptLimitOption
from treespec.cli.evaluate import show
from treespec.cli.loading import (
    AttentionOption,
    DeviceOption,
    Dtype,
    DtypeOption,
    ModelArgument,
    choose_device,
    load_model,
    load_tokenizer,
)
from treespec.cli.reporting import progress_bar, reported_errors
from treespec.cli.train import (
    STOPPED,
    ConfigOption,
    DraftVocabularyOption,
    EpochsOption,
    FamilyOption,
    HeadsFolderOption,
    SettingsOption,
    settings_of,
    show_step,
)
from treespec.training.answering import DistillOptions
from treespec.training.prompts import choose, read_prompts
from treespec.training.recipe import MadeHeads, Recipe, Watchers
from treespec.training.recipe import make_heads as make

_TITLES = {
    "distil": "answering",
    "train": "training",
    "evaluate": "evaluating",
    "calibrate": "choosing a tree",
}


def make_heads(
    model: ModelArgument,
    prompts: Annotated[
        list[Path],
        typer.Option(
            metavar="PATH",
            help="JSON lines, JSON or Parquet of prompts, or a folder of them; may be repeated.",
            show_default=False,
        ),
    ],
    out: HeadsFolderOption,
    limit: PromptLimitOption = None,
    max_new_tokens: AnswerLengthOption = 512,
    batch_size: BatchOption = 16,
    config: ConfigOption = None,
    family: FamilyOption = None,
    draft_vocab_size: DraftVocabularyOption = None,
    epochs: EpochsOption = None,
    settings: SettingsOption = None,
    budget: Annotated[
        int, typer.Option(min=1, help="Most draft tokens of the tree stored with the heads.")
    ] = 31,
    dtype: DtypeOption = Dtype.AUTO,
    device: DeviceOption = None,
    attention: AttentionOption = None,
) -> None:
    """Make draft heads for a model, from nothing but prompts.

    The model answers the prompts, heads are trained on the answers, measured on answers that
    training has not seen, and the static tree that suits them best is stored with them. It is
    `treespec distill`, `train`, `evaluate` and `calibrate` with one set of options. Killed or
    stopped with Ctrl-C, the same command goes on where it was.

    Exit code: 0 if the heads are finished, 2 if the command line or the prompts cannot be used,
    130 if a signal stopped the training.

    **Examples**

    `treespec make-heads Qwen/Qwen2.5-0.5B-Instruct --prompts ./prompts --out ./heads`

    `treespec make-heads ./model --prompts p.jsonl --out ./heads --family hydra --draft-vocab-size
    8192 --epochs 4`
    """
    options: dict[str, object] = {
        "family": family and str(family),
        "draft_vocab_size": draft_vocab_size,
        "epochs": epochs,
    }
    with reported_errors():
        recipe = Recipe(
            train=settings_of(config, options, settings or []),
            distill=DistillOptions(max_new_tokens=max_new_tokens, batch_size=batch_size),
            budget=budget,
        )
        chosen = choose(read_prompts(prompts, []), limit)
        target = load_model(model, dtype=dtype, device=choose_device(device), attention=attention)
        tokenizer = load_tokenizer(model)
        with progress_bar() as bar:
            task = bar.add_task("", total=None, detail="")
            watchers = Watchers(
                on_stage=lambda stage: bar.reset(
                    task, description=_TITLES[stage], total=None, detail=""
                ),
                on_answers=lambda done, total, tokens: bar.update(
                    task, completed=done, total=total, detail=f"{tokens:,} tokens"
                ),
                on_step=lambda report: show_step(bar, task, report),
                on_batch=lambda count: bar.advance(task, count),
            )
            made = make(target, tokenizer, chosen, out, recipe, watchers)
    _show(made)


def _show(made: MadeHeads) -> None:
    """What the heads are worth, or how to go on."""
    if made.evaluation is None or made.tree is None:
        typer.echo(
            f"stopped after step {made.step} of {made.steps}; the same command goes on from there",
            err=True,
        )
        raise typer.Exit(STOPPED)
    show(made.evaluation)
    typer.echo(f"stored a static tree of {len(made.tree.paths)} draft tokens")
    typer.echo(f"wrote {made.folder}")
