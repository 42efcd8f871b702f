"""`treespec check --audit`: does tree decoding say what plain decoding says, on real prompts?"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from treespec.audit import Audit, Divergence, audit
from treespec.cli.loading import encode
from treespec.cli.reporting import progress_bar
from treespec.decoder import TreeDecoder

_HINT = "--audit"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """How prompts are decoded.

    Attributes:
        prompts: file of prompts: JSON lines with `prompt`, `text` or `turns` (the first is taken),
            or plain text with one prompt a line.
        max_new_tokens: most new tokens for each.
        temperature: 0 for greedy decoding.
        limit: most prompts to take.
    """

    prompts: Path
    max_new_tokens: int
    temperature: float
    limit: int


def run_audit(
    console: Console,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: AuditSettings,
) -> bool:
    """Decode every prompt both ways, report where they part; whether nothing is unexplained."""
    texts = read_prompts(settings.prompts)[: settings.limit]
    decoder = TreeDecoder(model, self_check=False)
    found: list[Audit] = []
    sampling = (
        {"do_sample": True, "temperature": settings.temperature, "top_k": 0}
        if settings.temperature > 0
        else {"do_sample": False}
    )
    with progress_bar() as progress:
        work = progress.add_task("auditing", total=len(texts), detail="")
        for text in texts:
            inputs = encode(tokenizer, text, chat=None)
            found.append(
                audit(
                    decoder,
                    inputs["input_ids"].to(model.device),
                    attention_mask=inputs["attention_mask"].to(model.device),
                    max_new_tokens=settings.max_new_tokens,
                    **sampling,
                )
            )
            progress.advance(work)
    console.print(_divergence_table(found))
    tokens, near_ties = sum(one.tokens for one in found), sum(one.near_ties for one in found)
    violations = sum(one.violations for one in found)
    console.print(
        f"audit: {len(found)} prompts, {tokens} equal tokens, {near_ties} near-ties, "
        f"{violations} violations",
        style="red" if violations else "green",
    )
    return violations == 0


def read_prompts(path: Path) -> list[str]:
    """Prompts of a file, JSON lines or plain lines.

    Raises:
        typer.BadParameter: naming the file, and the line that cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}", param_hint=_HINT) from error
    prompts = [
        _prompt_of(line, f"{path}, line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not prompts:
        raise typer.BadParameter(f"{path} holds no prompt", param_hint=_HINT)
    return prompts


def _prompt_of(line: str, where: str) -> str:
    if not line.lstrip().startswith("{"):
        return line
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise typer.BadParameter(f"{where} is not JSON: {error}", param_hint=_HINT) from error
    for key in ("prompt", "text"):
        if isinstance(entry.get(key), str):
            return str(entry[key])
    turns = entry.get("turns")
    if isinstance(turns, list) and turns and isinstance(turns[0], str):
        return turns[0]
    raise typer.BadParameter(
        f"{where} has none of prompt, text and turns; it has {', '.join(entry) or 'nothing'}",
        param_hint=_HINT,
    )


def _divergence_table(found: Sequence[Audit]) -> Table:
    table = Table(title="first differences", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("prompt", "token", "plain", "tree", "gap", "moved by", "tolerance", "is a"):
        table.add_column(heading, justify="right")
    for prompt, one in enumerate(found, start=1):
        for divergence in one.divergences:
            table.add_row(str(prompt), *_cells(divergence))
    return table


def _cells(one: Divergence) -> tuple[str, ...]:
    return (
        str(one.index),
        str(one.plain_token),
        str(one.tree_token),
        f"{one.gap:.4f}",
        f"{one.difference:.4f}",
        f"{one.tolerance:.4f}",
        one.verdict,
    )
