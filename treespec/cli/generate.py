"""`treespec generate`: the text that a model gives for a prompt, streamed."""

import json
import math
import secrets
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from transformers import PreTrainedTokenizerBase, TextStreamer

from treespec.cli.drafting import (
    BudgetOption,
    DepthOption,
    DrafterOption,
    DraftModelOption,
    TreeOption,
    WidthOption,
    check_drafter,
    make_decoder,
    tree_shape,
)
from treespec.cli.loading import (
    AttentionOption,
    DeviceOption,
    Dtype,
    DtypeOption,
    ModelArgument,
    choose_device,
    encode,
    load_model,
    load_tokenizer,
)
from treespec.cli.reporting import reported_errors
from treespec.stats import DecodeStats

_DEPTHS_TOLD = 16


class _StdoutStreamer(TextStreamer):
    """Writes new text to stdout as it comes, without the prompt."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        typer.echo(text, nl=stream_end)


def generate(
    model: ModelArgument,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="The prompt.", show_default=False)
    ] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            readable=True,
            help="File that holds the prompt. Without either, it is read from stdin.",
            show_default=False,
        ),
    ] = None,
    drafter: DrafterOption = None,
    draft_model: DraftModelOption = None,
    tree: TreeOption = None,
    budget: BudgetOption = None,
    depth: DepthOption = None,
    width: WidthOption = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to generate.")] = 256,
    temperature: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Above 0: sample. 0: the most probable token each time. The rest (top_k, top_p, "
            "penalties) is what the model's own generation config says.",
        ),
    ] = 0.0,
    seed: Annotated[
        int | None,
        typer.Option(
            help="What sampling starts from: the same seed gives the same text, whatever the tree "
            "and the drafter. By default a random one, told in the statistics.",
            show_default=False,
        ),
    ] = None,
    dtype: DtypeOption = Dtype.AUTO,
    device: DeviceOption = None,
    attn: AttentionOption = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Whether the prompt is a turn of a chat. By default if the model has a chat "
            "template.",
            show_default=False,
        ),
    ] = None,
    stats: Annotated[bool, typer.Option(help="Tell statistics on stderr.")] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout instead of text.")
    ] = False,
) -> None:
    """Generate text with a tree of guesses checked in each forward of the model.

    The text goes to stdout as it comes, statistics to stderr: the acceptance length (tokens
    emitted per forward of the model; plain decoding has 1), how often the tree was accepted down
    to each depth, and tokens per second, the prompt included.

    **Examples**

    `treespec generate Qwen/Qwen2.5-1.5B-Instruct -p "Why is the sky blue?"`

    `treespec generate ./target --draft-model ./draft --temperature 0.8 --seed 7 -p "Once upon"`

    `treespec generate ./target --tree chain --budget 10 --no-chat < prompt.txt`

    `treespec generate ./target --tree '[[0],[1],[0,0]]' --json --prompt-file prompt.txt`
    """
    text = _read_prompt(prompt, prompt_file)
    sampling = _sampling(temperature, seed)
    shape = tree_shape(tree, budget, depth, width)
    check_drafter(drafter, draft_model)
    place = choose_device(device)
    with reported_errors():
        tokenizer = load_tokenizer(model)
        inputs = encode(tokenizer, text, chat=chat)
        target = load_model(model, dtype=dtype, device=place, attention=attn)
        decoder = make_decoder(
            target, tokenizer, drafter=drafter, draft_model=draft_model, shape=shape, dtype=dtype
        )
        started = time.perf_counter()
        output = decoder.generate(
            input_ids=inputs["input_ids"].to(place),
            attention_mask=inputs["attention_mask"].to(place),
            max_new_tokens=max_new_tokens,
            streamer=None if as_json else _StdoutStreamer(tokenizer),
            **sampling,
        )
        elapsed_s = time.perf_counter() - started
    counts = output.stats[0]
    if as_json:
        new_ids = output.sequences[0, inputs["input_ids"].shape[1] :].tolist()
        report = {
            "model": model,
            "prompt": text,
            "text": tokenizer.decode(new_ids, skip_special_tokens=True),
            "token_ids": new_ids,
            "temperature": temperature,
            "seed": sampling.get("seed"),
            "elapsed_s": elapsed_s,
            "tokens_per_second": counts.emitted / elapsed_s,
            **stats_as_json(counts),
        }
        typer.echo(json.dumps(report, ensure_ascii=False))
    elif stats:
        typer.echo(stats_as_text(counts, elapsed_s, sampling.get("seed")), err=True)


def stats_as_json(counts: DecodeStats) -> dict[str, Any]:
    """Counts and rates by name; None for a rate that has no value."""
    return {
        "steps": counts.steps,
        "emitted": counts.emitted,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "accepted_by_depth": list(counts.accepted_by_depth),
        "acceptance_length": counts.acceptance_length if counts.steps else None,
        "acceptance_rate": counts.acceptance_rate if counts.drafted else None,
        "finish_reason": counts.finish_reason,
    }


def stats_as_text(counts: DecodeStats, elapsed_s: float, seed: int | None) -> str:
    """Counts and rates as a few lines."""
    lines = [
        f"{counts.emitted} tokens in {elapsed_s:.2f} s, {counts.emitted / elapsed_s:.1f} tokens/s; "
        f"ended by {counts.finish_reason}" + (f"; seed {seed}" if seed is not None else "")
    ]
    if counts.steps:
        lines.append(
            f"acceptance length {counts.acceptance_length:.2f} over {counts.steps} steps; "
            f"{counts.accepted} of {counts.drafted} draft tokens accepted"
        )
    if counts.accepted_by_depth:
        shares = [f"{count / counts.steps:.0%}" for count in counts.accepted_by_depth]
        if len(shares) > _DEPTHS_TOLD:
            shares[_DEPTHS_TOLD:] = ["..."]
        lines.append("steps accepted down to depth 1, 2, ...: " + " ".join(shares))
    return "\n".join(lines)


def _sampling(temperature: float, seed: int | None) -> dict[str, Any]:
    """What `generate` is to be told; a seed is drawn here so that it can be reported."""
    if not math.isfinite(temperature):
        raise typer.BadParameter(
            f"{temperature} is no temperature; give 0 or a positive number",
            param_hint="--temperature",
        )
    if temperature == 0:
        return {"do_sample": False}
    seed = secrets.randbits(31) if seed is None else seed
    return {"do_sample": True, "temperature": temperature, "seed": seed}


def _read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """The prompt from where the user put it."""
    if prompt is not None and prompt_file is not None:
        raise typer.BadParameter("give --prompt or --prompt-file, not both", param_hint="--prompt")
    if prompt is None and prompt_file is None and sys.stdin.isatty():
        raise typer.BadParameter(
            "there is no prompt; give --prompt, --prompt-file, or write it to stdin",
            param_hint="--prompt",
        )
    if prompt is None:
        prompt = _read_text(prompt_file)
    if not prompt.strip():
        raise typer.BadParameter("the prompt is empty; write something", param_hint="--prompt")
    return prompt


def _read_text(path: Path | None) -> str:
    """Text of a file or of stdin, without the line break that ends its last line."""
    try:
        text = sys.stdin.read() if path is None else path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(
            f"the prompt is not UTF-8 text ({error.reason} at byte {error.start}); convert it",
            param_hint="--prompt-file" if path else "stdin",
        ) from error
    return text.removesuffix("\n")
