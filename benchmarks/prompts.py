"""Evaluation prompts for the benchmarks, read from files that are not part of the repository."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt.

    Attributes:
        category: what kind it is.
        input_ids: its token ids, shape `[1, L]`, chat template applied.
    """

    category: str
    input_ids: Tensor


def chat_ids(tokenizer: Any, text: str) -> Tensor:
    """Token ids of one user turn, shape `[1, L]`."""
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": text}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )["input_ids"]


def humaneval(path: Path, tokenizer: Any, count: int, *, start: int = 0) -> list[Prompt]:
    """Requests to complete a function, from a JSONL of HumanEval's prompts."""
    lines = path.read_text().splitlines()[start : start + count]
    return [
        Prompt(
            "humaneval",
            chat_ids(
                tokenizer,
                f"Complete this Python function:\n```python\n{json.loads(line)['prompt']}```",
            ),
        )
        for line in lines
    ]


def spec_bench(path: Path, tokenizer: Any, per_category: int) -> list[Prompt]:
    """First turns of Spec-Bench, a few of each category."""
    taken: dict[str, int] = {}
    prompts = []
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        category = entry["category"]
        if taken.get(category, 0) < per_category:
            taken[category] = taken.get(category, 0) + 1
            prompts.append(Prompt(category, chat_ids(tokenizer, entry["turns"][0])))
    return prompts


def load(folder: Path, tokenizer: Any, *, code: int, per_category: int) -> Sequence[Prompt]:
    """Prompts of both files in `folder` (`humaneval.jsonl`, `spec_bench.jsonl`)."""
    prompts = humaneval(folder / "humaneval.jsonl", tokenizer, code)
    if per_category:
        prompts += spec_bench(folder / "spec_bench.jsonl", tokenizer, per_category)
    return prompts


def threads() -> str:
    """What the figures were measured on, in one line."""
    return f"torch {torch.__version__}, {torch.get_num_threads()} threads"
