"""`treespec evaluate`: how good draft heads are."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from treespec.cli.loading import (
    AttentionOption,
    DeviceOption,
    Dtype,
    DtypeOption,
    load_tokenizer,
)
from treespec.cli.measuring import (
    AllOption,
    Choice,
    DepthOption,
    HeldOutOption,
    LimitOption,
    PositionsOption,
    SeedOption,
    load_target_and_heads,
    measure,
)
from treespec.cli.reporting import progress_bar, reported_errors
from treespec.errors import DataError
from treespec.heads import DraftHeads
from treespec.training.calibrate import (
    load_tree,
    saved_folder,
    store_evaluation,
)
from treespec.training.conversations import Conversation
from treespec.training.data import DataFolder, open_data
from treespec.training.decoding import decode
from treespec.training.evaluate import (
    DECODED,
    EvaluationOptions,
    Shape,
    levels_of,
    usual_shapes,
)
from treespec.training.files import replace_text
from treespec.training.prompts import Prompt, choose, read_prompts
from treespec.training.results import Evaluation
from treespec.training.tables import decoded_text, tables_of


def evaluate(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="Folder or Hub id of a causal LM.", show_default=False
        ),
    ],
    heads: Annotated[
        str,
        typer.Argument(
            metavar="HEADS",
            help="Folder, file of weights or Hub id of draft heads.",
            show_default=False,
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder that `treespec distill` wrote; its held-out examples are taken.",
            show_default=False,
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Prompts as for `treespec distill`; the target answers their first turns.",
            show_default=False,
        ),
    ] = None,
    held_out: HeldOutOption = None,
    seed: SeedOption = 0,
    everything: AllOption = False,
    limit: LimitOption = 64,
    depth: DepthOption = None,
    positions: PositionsOption = None,
    decoded: Annotated[
        int,
        typer.Option(
            "--decode", min=0, help="Prompts of the data that are really decoded; 0 for none."
        ),
    ] = 8,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Of the answers to --prompts.")] = 128,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", help="Also write the results here.", show_default=False
        ),
    ] = None,
    card: Annotated[
        bool, typer.Option("--card", help="Also write the results into the heads' model card.")
    ] = False,
    dtype: DtypeOption = Dtype.AUTO,
    device: DeviceOption = None,
    attention: AttentionOption = None,
) -> None:
    """Tell how good draft heads are on texts that they were not trained on.

    Shows how often the right token is among the first guesses, by depth; which guess it is; how
    many tokens a pass of the target gives with a chain and with trees of 8 to 64 draft tokens,
    found by walking real trees along the texts; and what decoding gives in truth.

    Exit code: 0, or 2 if the command line, the heads or the data cannot be used.

    **Examples**

    `treespec evaluate Qwen/Qwen2.5-0.5B-Instruct ./heads --data ./data`

    `treespec evaluate ./model ./heads --prompts questions.jsonl --json results.json`
    """
    if (data is None) == (prompts is None):
        raise typer.BadParameter(
            "give either --data, a folder of answers, or --prompts, to be answered first",
            param_hint="--data",
        )
    with reported_errors():
        if card:
            saved_folder(heads)  # refused before anything is measured
        choice = Choice(held_out=held_out, seed=seed, everything=everything, limit=limit)
        folder = None if data is None else open_data(data)
        asked = [] if prompts is None else choose(read_prompts([prompts]), limit)
        model, loaded = load_target_and_heads(
            target, heads, dtype=dtype, device=device, attention=attention
        )
        options = EvaluationOptions(
            depth=depth,
            shapes=_shapes(heads, levels_of(loaded, depth)),
            positions=positions,
            seed=seed,
            decode=decoded,
        )
        if folder is not None:
            found = _on_data(model, loaded, folder, choice, options)
        else:
            requests = _requests(asked, load_tokenizer(target, hint="TARGET"))
            options = replace(options, texts=f"answers to {len(requests)} prompts", decode=0)
            found = _on_prompts(model, loaded, requests, max_new_tokens, options)
        if json_file is not None:
            json_file.parent.mkdir(parents=True, exist_ok=True)
            replace_text(json_file, found.to_json())
        if card:
            store_evaluation(heads, found)
    show(found)


def show(found: Evaluation) -> None:
    """Print the tables, and what decoding gave."""
    console = Console(highlight=False)
    for table in tables_of(found):
        console.print(table)
    sentence = decoded_text(found)
    if sentence is not None:
        console.print(sentence)


def _shapes(heads: str, depth: int) -> dict[str, Shape]:
    """The usual trees, and the one that is stored with the heads."""
    shapes = usual_shapes(depth)
    stored = load_tree(heads)
    if stored is not None:
        shapes[f"static tree of {len(stored.paths)}"] = stored.tree
    return shapes


def _on_data(
    target: PreTrainedModel,
    heads: DraftHeads,
    folder: DataFolder,
    choice: Choice,
    options: EvaluationOptions,
) -> Evaluation:
    """Measure on answers that are there."""
    folder.require_target(target)
    examples = choice.examples(folder)
    options = replace(options, texts=choice.name(folder, len(examples)))
    return measure(target, heads, examples, options, "evaluating")


def _on_prompts(
    target: PreTrainedModel,
    heads: DraftHeads,
    requests: Sequence[Tensor],
    max_new_tokens: int,
    options: EvaluationOptions,
) -> Evaluation:
    """Let the target answer with the heads' help, and measure on what it said."""
    shape = options.shapes[DECODED]
    with progress_bar() as bar:
        task = bar.add_task("answering", total=len(requests), detail="")
        answers = decode(
            target,
            heads,
            requests,
            shape,
            name=DECODED,
            max_new_tokens=max_new_tokens,
            on_batch=lambda count: bar.advance(task, count),
        )
    if not answers.passages:
        raise DataError(
            "every answer ended after its first token, so that there is nothing to guess; give "
            "other prompts"
        )
    found = measure(target, heads, answers.passages, options, "evaluating")
    alike = next(one for one in found.simulated if one.name == DECODED)
    return replace(found, decoded=answers.rates, decoded_simulated=alike)


def _requests(prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase) -> list[Tensor]:
    """Token ids of the first turns, as the target is asked."""
    found = [Conversation(prompt, tokenizer).request for prompt in prompts]
    return [torch.tensor(tokens, dtype=torch.int64) for tokens in found if tokens]
