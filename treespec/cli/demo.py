"""`treespec demo`: a small real model, decoded plainly, with chains and with trees."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich import box
from rich.console import Console, Group
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from treespec.cli.loading import (
    DeviceOption,
    Dtype,
    choose_device,
    encode,
    load_model,
    load_tokenizer,
)
from treespec.cli.reporting import FAILED, progress_bar, reported_errors
from treespec.cli.side_by_side import CHAIN_LENGTH, Run, measure, rates
from treespec.fetch import SMOLLM2, PackagedModel, fetch_model, is_complete, models_folder

PROMPTS = (
    "Add a docstring to each method of this class:\n"
    "```python\n"
    "class Account:\n"
    "    def __init__(self, owner, balance=0):\n"
    "        self.owner = owner\n"
    "        self.balance = balance\n\n"
    "    def deposit(self, amount):\n"
    "        if amount <= 0:\n"
    '            raise ValueError("amount must be positive")\n'
    "        self.balance += amount\n"
    "        return self.balance\n"
    "```",
    "List the planets of the solar system with one sentence about each.",
    "Write a song about the days of the week, with a chorus after every verse.",
)


def demo(
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt", "-p", help="Prompt to use instead; may be repeated.", show_default=False
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Folder or Hub id of another causal LM; nothing is fetched then.",
            show_default=False,
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens to generate a prompt.")] = 96,
    rounds: Annotated[
        int,
        typer.Option(
            min=1,
            help="Runs of each method; medians are told. None begins after a minute of them.",
        ),
    ] = 3,
    dtype: Annotated[
        Dtype,
        typer.Option(
            metavar="DTYPE",
            help="Number format of the weights: float32, bfloat16, float16, or auto, which is "
            "bfloat16 where this machine computes it quickly, and float32 otherwise.",
        ),
    ] = Dtype.AUTO,
    device: DeviceOption = None,
) -> None:
    """Show on a small real model that trees give the same text sooner.

    Fetches SmolLM2-135M-Instruct (93 MB, from the Python package index, checksum verified) unless
    it is in the cache, which is `~/.cache/treespec-models` or `$TREESPEC_MODELS`. Then three
    prompts are decoded plainly, with chains and with trees of guesses, taking turns in one
    process. No draft model and no training is involved: guesses come from the text itself and
    from the model's own earlier predictions.

    Exit code: 0 if every text is that of plain decoding but for near-ties, 1 if one is not or if
    the model cannot be fetched.

    **Examples**

    `treespec demo`

    `treespec demo --dtype float32 --max-new-tokens 200`

    `treespec demo --model ./my-model -p "List the planets."`
    """
    console = Console(highlight=False)
    place = choose_device(device)
    with reported_errors():
        folder = model or str(_fetch(SMOLLM2))
        if dtype is Dtype.AUTO and model is None:
            dtype = quicker_dtype(place)
        tokenizer = load_tokenizer(folder, hint="--model")
        prompts = prompt or list(PROMPTS)
        inputs = [encode(tokenizer, text, chat=None)["input_ids"].to(place) for text in prompts]
        target = load_model(folder, dtype=dtype, device=place, hint="--model")
        runs = measure(target, inputs, max_new_tokens=max_new_tokens, rounds=rounds)
        setting = _setting(folder, target, len(runs[0][0].times_s))
        parted = [ids for ids, line in zip(inputs, runs, strict=True) if _has_tie(line)]
        exact = []
        if parted and model is None and target.dtype is not torch.float32:
            exact = measure(target.float(), parted, max_new_tokens=max_new_tokens, rounds=1)
    for text, of_prompt in zip(prompts, runs, strict=True):
        _show_text(console, tokenizer, text, of_prompt)
    console.print(_table(runs))
    console.print(setting)
    conclude(console, runs, exact)


def quicker_dtype(device: torch.device) -> Dtype:
    """bfloat16, unless this device multiplies matrices more quickly in float32."""
    costs_s = {}
    for dtype in (Dtype.BFLOAT16, Dtype.FLOAT32):
        left = torch.ones(32, 1024, dtype=getattr(torch, dtype), device=device)
        right = torch.ones(1024, 1024, dtype=getattr(torch, dtype), device=device)
        trials_s = []
        for _ in range(5):
            started = time.perf_counter()
            (left @ right)[0, 0].item()
            trials_s.append(time.perf_counter() - started)
        costs_s[dtype] = min(trials_s)
    return min(costs_s, key=lambda dtype: costs_s[dtype])


def _fetch(model: PackagedModel) -> Path:
    """The model's folder, fetched behind a progress bar where it is not there."""
    if is_complete(models_folder() / model.folder):
        return fetch_model(model)
    typer.echo(f"fetching {model.requirement} into {models_folder()}", err=True)
    with progress_bar() as bars:
        work = bars.add_task("download", total=None, detail="")

        def show(stage: str, done: int, total: int) -> None:
            detail = f"{done / 1e6:.0f} of {total / 1e6:.0f} MB" if total else ""
            bars.update(work, description=stage, completed=done, total=total or None, detail=detail)
            if stage == "unpack":
                bars.stop()  # transformers shows bars of its own

        return fetch_model(model, progress=show)


def _show_text(
    console: Console, tokenizer: PreTrainedTokenizerBase, prompt: str, runs: Sequence[Run]
) -> None:
    """The prompt, and what was generated with trees."""
    tree = next(run for run in runs if run.method == "tree")
    answer = tokenizer.decode(tree.new_ids, skip_special_tokens=True)
    console.print(Panel(Group(Text(prompt, style="dim"), Rule(style="dim"), Text(str(answer)))))


def _table(runs: Sequence[Sequence[Run]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("prompt")
    table.add_column("method")
    for heading in ("tokens", "steps", "acceptance\nlength", "tokens/s", "speed-up"):
        table.add_column(heading, justify="right")
    table.add_column("text")
    for number, of_prompt in enumerate(runs, start=1):
        for run in of_prompt:
            cells = rates([run], of_prompt[:1])
            first = str(number) if run is of_prompt[0] else ""
            table.add_row(first, run.method, *cells, _sameness(run))
        table.add_section()
    if len(runs) > 1:
        for place, method in enumerate(run.method for run in runs[0]):
            column = [of_prompt[place] for of_prompt in runs]
            cells = rates(column, [of_prompt[0] for of_prompt in runs])
            table.add_row("" if place else "all", method, *cells, style="bold")
    return table


def _sameness(run: Run) -> str:
    if run.method == "plain":
        return ""
    if run.is_same:
        return "identical"
    place = run.divergence.index if run.divergence is not None else len(run.new_ids)
    return f"{'tie' if run.is_near_tie else 'WRONG'} at {place + 1}"


def _setting(folder: str, target: PreTrainedModel, rounds: int) -> str:
    device = target.device.type
    threads = f", {torch.get_num_threads()} threads" if device == "cpu" else ""
    runs = "one run" if rounds == 1 else f"median of {rounds} runs"
    return (
        f"{folder} in {str(target.dtype).removeprefix('torch.')} on {device}{threads}; {runs}, "
        f"prompt included. Chains have up to {CHAIN_LENGTH} draft tokens a step."
    )


def _has_tie(runs: Sequence[Run]) -> bool:
    return any(run.is_near_tie for run in runs)


def conclude(
    console: Console, runs: Sequence[Sequence[Run]], exact: Sequence[Sequence[Run]]
) -> None:
    """Say in words whether the texts are the same, and exit with 1 if one is wrong.

    Args:
        console: where to say it.
        runs: all runs, by prompt.
        exact: float32 runs of the prompts that have a near-tie; none if there was no reason.
    """
    drafted = _drafted(runs)
    same = sum(run.is_same for run in drafted)
    console.print(f"{same} of {len(drafted)} texts are token for token those of plain decoding.")
    ties = [run.divergence for run in drafted if run.divergence is not None and run.is_near_tie]
    if ties:
        console.print(
            f"{len(ties)} part from it at a near-tie: two tokens whose logits are at most "
            f"{max(abs(tie.gap) for tie in ties):.3g} apart, which is within what rounding does to "
            "them when a forward holds several tokens instead of one."
        )
    again = _drafted(exact)
    if again:
        same = sum(run.is_same for run in again)
        console.print(f"The same prompts in float32: {same} of {len(again)} texts are identical.")
    elif ties:
        console.print("--dtype float32 leaves next to no such ties.")
    wrong = sum(run.is_wrong for run in [*drafted, *again])
    if wrong:
        console.print(f"{wrong} differ by more than rounding explains: a bug.", style="red")
        raise typer.Exit(FAILED)


def _drafted(runs: Sequence[Sequence[Run]]) -> list[Run]:
    return [run for of_prompt in runs for run in of_prompt if run.method != "plain"]
