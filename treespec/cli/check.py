"""`treespec check`: what a model is, whether trees work on it, and what their nodes cost."""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers import AutoTokenizer, PreTrainedModel

from treespec.attention import require_implementation
from treespec.cache import TreeCache
from treespec.cli.auditing import AuditSettings, run_audit
from treespec.cli.loading import (
    Attention,
    AttentionOption,
    DeviceOption,
    Dtype,
    DtypeOption,
    ModelArgument,
    choose_device,
    first_line,
    load_model,
    load_tokenizer,
)
from treespec.cli.reporting import FAILED, progress_bar
from treespec.errors import TreespecError, UnsupportedOptionError, UnsupportedTargetError
from treespec.options import check_config
from treespec.self_check import self_check
from treespec.support import Support, inspect_support
from treespec.target import Target
from treespec.tree.token_tree import TokenTree

_TREE_SIZES = (1, 8, 16, 32, 64)
_PREFIX_LENGTH = 128
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What came of one attention implementation.

    Attributes:
        name: of the implementation.
        works: whether trees can be scored with it.
        text: how well it does, or why it does not.
    """

    name: str
    works: bool
    text: str


def check(
    model: ModelArgument,
    dtype: DtypeOption = Dtype.AUTO,
    device: DeviceOption = None,
    attn: AttentionOption = None,
    audit: Annotated[
        Path | None,
        typer.Option(
            metavar="PROMPTS",
            help="Also decode these prompts (JSON lines with prompt, text or turns, or plain "
            "lines) with trees and plainly, and explain every difference.",
            show_default=False,
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="New tokens for each prompt of the audit.")
    ] = 64,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Of the audit; 0 decodes greedily.")
    ] = 0.0,
    limit: Annotated[int, typer.Option(min=1, help="Most prompts to audit.")] = 20,
) -> None:
    """Tell whether a model can decode with token trees, and what a tree costs on this machine.

    Loads the model, reports what matters about it, scores one random tree and compares it with
    plain forwards of the same texts (the self-check), and times forwards of 1 to 64 nodes.

    With --audit it also decodes real prompts both ways and sorts the first difference of each into
    near-tie (rounding decides between two tokens) and violation (something is wrong).

    Exit code: 0 if the model can be used as loaded here, 1 if it is refused, fails the self-check
    or has a violation, 2 for a wrong command line.

    **Examples**

    `treespec check Qwen/Qwen2.5-1.5B-Instruct`

    `treespec check ./model --dtype bfloat16 --device cuda --attn sdpa`

    `treespec check ./model --audit prompts.jsonl --max-new-tokens 96 --temperature 1`
    """
    console = Console(highlight=False)
    loaded = load_model(model, dtype=dtype, device=choose_device(device), attention=attn)
    chosen = str(loaded.config.get_text_config(decoder=True)._attn_implementation)
    console.print(_model_table(model, loaded, chosen))
    try:
        support = inspect_support(loaded)
    except UnsupportedTargetError as error:
        console.print(f"refused: {error}", style="red", markup=False)
        raise typer.Exit(FAILED) from error
    console.print(_support_table(support, loaded))
    verdicts = _try_implementations(loaded, chosen, others=attn is None)
    console.print(_verdict_table(verdicts))
    if not verdicts[0].works:
        usable = [verdict.name for verdict in verdicts if verdict.works]
        advice = f"; load it with attn_implementation={usable[0]!r}" if usable else ""
        console.print(f"failed: not usable with {chosen} attention{advice}", style="red")
        raise typer.Exit(FAILED)
    console.print(_cost_table(loaded))
    if audit is not None:
        settings = AuditSettings(
            prompts=audit, max_new_tokens=max_new_tokens, temperature=temperature, limit=limit
        )
        if not run_audit(console, loaded, load_tokenizer(model), settings):
            raise typer.Exit(FAILED)
    console.print(f"supported: {type(loaded).__name__} can decode with trees", style="green")


def _model_table(name: str, model: PreTrainedModel, attention: str) -> Table:
    table = _facts(name)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    table.add_row("class", f"{type(model).__name__} ({model.config.model_type})")
    table.add_row(
        "parameters", f"{parameters / 1e6:,.1f} million, {model.dtype}, on {model.device}"
    )
    table.add_row("attention", attention)
    table.add_row("tokenizer", _tokenizer_text(name))
    return table


def _tokenizer_text(name: str) -> str:
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, ImportError, KeyError, AttributeError, TypeError) as error:
        return f"none ({first_line(error)})"
    chat = "with" if tokenizer.chat_template else "without"
    return f"{len(tokenizer):,} tokens, {chat} a chat template"


def _support_table(support: Support, model: PreTrainedModel) -> Table:
    table = _facts("as a target")
    for kind in support.kinds:
        sees = "everything before it"
        if kind.window is not None:
            sees = f"the last {kind.window:,} positions"
        elif kind.chunk is not None:
            sees = f"its chunk of {kind.chunk:,} positions"
        table.add_row(kind.name, f"a token sees {sees}")
    table.add_row("cache", f"{support.num_layers} layers")
    limit = support.max_positions
    table.add_row("positions", "no limit" if limit is None else f"at most {limit:,}")
    if support.rope_switch is not None:
        behind = "no drafting behind it" if support.rope_moves_on else "no tree crosses it"
        table.add_row("frequencies", f"change at position {support.rope_switch:,}; {behind}")
    table.add_row("logits", f"{support.vocab_size:,} token ids")
    table.add_row("generation config", _defaults_text(model))
    return table


def _try_implementations(model: PreTrainedModel, chosen: str, *, others: bool) -> list[_Verdict]:
    """One verdict per attention implementation, the chosen one first; it is the one left set."""
    names = [chosen]
    if others:
        names += [str(name) for name in Attention if str(name) != chosen and _is_worth(name, model)]
    verdicts = [_try_implementation(model, name) for name in names]
    model.set_attn_implementation(chosen)
    try:
        require_implementation("flash_attention_2", type(model).__name__)
    except UnsupportedTargetError as error:
        verdicts.append(_Verdict("flash_attention_2", False, f"refused: {error}"))
    return verdicts


def _is_worth(name: Attention, model: PreTrainedModel) -> bool:
    """Flex attention compiles itself, which takes minutes on a CPU; --attn asks for it."""
    return name is not Attention.FLEX or model.device.type == "cuda"


def _try_implementation(model: PreTrainedModel, name: str) -> _Verdict:
    # transformers says in its own ways that a model lacks an implementation.
    try:
        model.set_attn_implementation(name)
        result = self_check(model)
    except TreespecError as error:
        return _Verdict(name, False, str(error))
    except (ValueError, ImportError, RuntimeError, NotImplementedError) as error:
        return _Verdict(name, False, f"not available: {first_line(error)}")
    now = model.config.get_text_config(decoder=True)._attn_implementation
    if now != name:
        return _Verdict(name, False, f"not available: the model stays with {now}")
    return _Verdict(
        name,
        True,
        f"self-check passed; largest deviation of a logit {result.max_deviation:.1e}, mean "
        f"{result.mean_deviation:.1e} standard deviations",
    )


def _verdict_table(verdicts: list[_Verdict]) -> Table:
    table = _facts("attention")
    for verdict in verdicts:
        table.add_row(verdict.name, Text(verdict.text, style="" if verdict.works else "yellow"))
    return table


def _defaults_text(model: PreTrainedModel) -> str:
    """What the model's own generation config would run into."""
    try:
        check_config(model.generation_config)
    except UnsupportedOptionError as error:
        return f"refused unless overridden: {error}"
    return "its defaults are supported"


def _cost_table(model: PreTrainedModel) -> Table:
    target = Target(model)
    costs_s = _time_trees(target)
    table = Table(title="cost of a step", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("nodes", "ms", "against one token", "pays from acceptance length"):
        table.add_column(heading, justify="right")
    for size, cost_s in costs_s.items():
        ratio = cost_s / costs_s[1]
        pays = "" if size == 1 else f"{max(ratio, 1.0):.2f}"
        table.add_row(str(size), f"{cost_s * 1e3:.1f}", f"{ratio:.2f}", pays)
    return table


def _time_trees(target: Target) -> dict[int, float]:
    """Median seconds of a forward for each tree size, the sizes taking turns."""
    room = target.max_positions or _PREFIX_LENGTH + max(_TREE_SIZES)
    prefix = max(1, min(_PREFIX_LENGTH, room - max(_TREE_SIZES).bit_length()))
    cache = target.new_cache(1, capacity=prefix + max(_TREE_SIZES))
    target.prefill(cache, [torch.zeros(prefix, dtype=torch.int64)])
    times_s: dict[int, list[float]] = {size: [] for size in _TREE_SIZES}
    with progress_bar() as progress:
        work = progress.add_task("timing trees", total=_REPEATS + 1, detail="")
        for repeat in range(_REPEATS + 1):
            for size in _TREE_SIZES:
                elapsed_s = _time_tree(target, cache, size)
                if repeat > 0:  # the first round warms up
                    times_s[size].append(elapsed_s)
            progress.advance(work)
    return {size: statistics.median(times) for size, times in times_s.items()}


def _time_tree(target: Target, cache: TreeCache, size: int) -> float:
    """Seconds of one forward of a binary tree, which is then forgotten."""
    tree = TokenTree.from_lists([-1, *((node - 1) // 2 for node in range(1, size))], [0] * size)
    started = time.perf_counter()
    scored = target.score(cache, [tree])[0]
    scored.logits[0, 0].item()  # waits for the device
    elapsed_s = time.perf_counter() - started
    cache.commit([[]])
    return elapsed_s


def _facts(title: str) -> Table:
    """A table of names and what is to be said of them."""
    table = Table(title=title, title_justify="left", show_header=False, box=box.SIMPLE)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    return table
