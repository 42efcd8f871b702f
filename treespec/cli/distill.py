"""`treespec distill`: answers of a target to prompts, as data to train heads on."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text
from transformers import AutoConfig, GenerationConfig, PreTrainedTokenizerBase

from treespec.cli.loading import (
    AttentionOption,
    DeviceOption,
    Dtype,
    DtypeOption,
    choose_device,
    first_line,
    load_model,
    load_tokenizer,
)
from treespec.cli.reporting import progress_bar, reported_errors
from treespec.heads.formats.fingerprint import Fingerprint
from treespec.options import eos_ids
from treespec.training.answering import DistillOptions
from treespec.training.data import DataFolder, Example
from treespec.training.distill import DistillReport, Notify, distill, distill_from_server
from treespec.training.masks import runs
from treespec.training.prompts import Prompt, choose, read_prompts
from treespec.training.server import ChatServer

_SHOWN = 3  # examples


PromptLimitOption = Annotated[
    int | None,
    typer.Option(min=1, help="Take so many prompts, spread evenly.", show_default=False),
]
AnswerLengthOption = Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")]
BatchOption = Annotated[int, typer.Option(min=1, help="Conversations that are answered together.")]


def distill_command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Folder or Hub id of the causal LM that heads are to be trained for.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder to write to.", show_default=False)
    ],
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="JSON lines, JSON or Parquet of prompts, or a folder of them; may be repeated.",
            show_default=False,
        ),
    ] = None,
    data_set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:SPLIT]",
            help="A data set on the Hub; may be repeated.",
            show_default=False,
        ),
    ] = None,
    limit: PromptLimitOption = None,
    max_new_tokens: AnswerLengthOption = 512,
    batch_size: BatchOption = 8,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 for greedy answers, more to sample them.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of sampled answers.")] = 0,
    taps: Annotated[
        str | None,
        typer.Option(
            metavar="I,J,...",
            help="Store these hidden states while answering; -1 is the last.",
            show_default=False,
        ),
    ] = None,
    hidden_dtype: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE",
            help="Store hidden states as float32, bfloat16 or float16; by default as they are.",
            show_default=False,
        ),
    ] = None,
    keep_answers: Annotated[
        bool, typer.Option("--keep-answers", help="Use the answers that the prompts have.")
    ] = False,
    base_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="An OpenAI-compatible server that runs the target, ending in /v1. Its key is "
            "taken from OPENAI_API_KEY.",
            show_default=False,
        ),
    ] = None,
    server_model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What the server calls the target, if not TARGET.",
            show_default=False,
        ),
    ] = None,
    show_mask: Annotated[
        bool,
        typer.Option(
            "--show-mask", help="Print a few examples with the supervised tokens in colour."
        ),
    ] = False,
    dtype: DtypeOption = Dtype.AUTO,
    device: DeviceOption = None,
    attn_implementation: AttentionOption = None,
) -> None:
    """Let a target answer prompts, and write the answers as training data.

    Heads learn to guess what the target would write, so they are trained on its own answers. Only
    the assistant's tokens are marked to be learnt. The same command goes on where an interrupted
    one stopped; --limit may be raised.

    **Examples**

    `treespec distill ./model --prompts prompts.jsonl --out ./data`

    `treespec distill ./model --prompts chats.jsonl --keep-answers --show-mask --out ./data`

    `treespec distill Qwen/Qwen3-8B --prompts p.jsonl --base-url http://localhost:8000/v1 --out d`
    """
    if not prompts and not data_set:
        raise typer.BadParameter("give --prompts or --data-set", param_hint="--prompts")
    if server_model is not None and base_url is None:
        raise typer.BadParameter("it belongs to --base-url", param_hint="--server-model")
    with reported_errors():
        options = DistillOptions(
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            temperature=temperature,
            seed=seed,
            taps=_taps(taps),
            hidden_dtype=hidden_dtype,
            keep_answers=keep_answers,
        )
        chosen = choose(read_prompts(prompts or [], data_set or []), limit)
        tokenizer = load_tokenizer(target, "TARGET")
        with progress_bar() as bars:
            work = bars.add_task("answering", total=len(chosen), detail="")

            def notify(done: int, total: int, tokens: int) -> None:
                bars.update(work, completed=done, detail=f"{done} of {total}, {tokens:,} tokens")

            if base_url is not None:
                server = ChatServer(
                    base_url, server_model or target, api_key=os.environ.get("OPENAI_API_KEY")
                )
                report = _from_server(server, target, tokenizer, chosen, out, options, notify)
            else:
                model = load_model(
                    target,
                    dtype=dtype,
                    device=choose_device(device),
                    attention=attn_implementation,
                    hint="TARGET",
                )
                report = distill(model, tokenizer, chosen, out, options, notify=notify)
    if show_mask:
        _show_masks(report.data, tokenizer)
    typer.echo(_summary(report), err=True)


def _taps(text: str | None) -> tuple[int, ...]:
    """Indices from a list with commas."""
    if text is None:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is no list of numbers, such as 2,15,-1", param_hint="--taps"
        ) from error


def _from_server(
    server: ChatServer,
    target: str,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[Prompt],
    out: Path,
    options: DistillOptions,
    notify: Notify,
) -> DistillReport:
    """Ask a server; of the target only the configuration is needed."""
    try:
        config = AutoConfig.from_pretrained(target)
    except (OSError, ValueError, KeyError) as error:
        raise typer.BadParameter(
            f"no configuration could be loaded from {target!r}: {first_line(error)}; give the "
            "model that the server runs, and its name there as --server-model",
            param_hint="TARGET",
        ) from error
    try:
        ends = sorted(eos_ids(GenerationConfig.from_pretrained(target)))
    except (OSError, ValueError):  # many models have none
        ends = []
    fingerprint = Fingerprint.of_config(config, tokenizer)
    return distill_from_server(
        server, tokenizer, fingerprint, prompts, out, options, end_ids=ends, notify=notify
    )


def _show_masks(data: DataFolder, tokenizer: PreTrainedTokenizerBase) -> None:
    """Print the first examples; supervised text is also in brackets, for pipes without colour."""
    console = Console(highlight=False)
    for example in data.examples[:_SHOWN]:
        console.print(Text(f"{example.id}: {_share(example)}", style="bold"))
        text = Text()
        for run in runs(tokenizer, example.tokens.tolist(), example.supervised.tolist()):
            if run.is_supervised:
                text.append(f"[{run.text}]", style="bold green")
            else:
                text.append(run.text, style="dim")
        console.print(text, soft_wrap=True)


def _share(example: Example) -> str:
    return f"{example.num_supervised} of {len(example.tokens)} tokens are supervised"


def _summary(report: DistillReport) -> str:
    data = report.data
    skipped = f", {report.num_skipped} prompts skipped" if report.num_skipped else ""
    return (
        f"{len(data.examples)} examples with {data.num_supervised:,} supervised tokens in "
        f"{data.path}, {report.num_added} conversations new{skipped}"
    )
