"""Audit real models: every difference between tree and plain decoding must be a near-tie.

python benchmarks/audit.py MODEL --data FOLDER [--draft-model MODEL] [--dtype bfloat16]
"""

from pathlib import Path
from typing import Annotated

import torch
import typer
from prompts import humaneval, spec_bench
from transformers import AutoModelForCausalLM, AutoTokenizer

from treespec import BestFirst, ModelDrafter, TreeDecoder
from treespec.audit import audit


def main(
    model: str,
    data: Annotated[Path, typer.Option(help="folder with humaneval.jsonl and spec_bench.jsonl")],
    draft_model: str | None = None,
    dtype: str = "bfloat16",
    max_new_tokens: int = 64,
    count: int = 10,
    temperature: float = 0.0,
    budget: int = 31,
    depth: int = 8,
) -> None:
    """Print each divergence with its gap, then the counts."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    target = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    shape = BestFirst(budget=budget, depth=depth)
    decoders = {"default": TreeDecoder(target, tree=BestFirst(budget=budget))}
    if draft_model:
        draft = AutoModelForCausalLM.from_pretrained(draft_model, dtype=getattr(torch, dtype))
        decoders["model"] = TreeDecoder(target, ModelDrafter(draft), tree=shape)
    prompts = humaneval(data / "humaneval.jsonl", tokenizer, count)
    prompts += spec_bench(data / "spec_bench.jsonl", tokenizer, 1)[:count]
    sampling = (
        {"do_sample": True, "temperature": temperature, "top_k": 0}
        if temperature
        else {"do_sample": False}
    )
    for name, decoder in decoders.items():
        rows = tokens = ties = violations = 0
        for number, prompt in enumerate(prompts):
            found = audit(decoder, prompt.input_ids, max_new_tokens=max_new_tokens, **sampling)
            rows, tokens = rows + found.rows, tokens + found.tokens
            ties, violations = ties + found.near_ties, violations + found.violations
            for one in found.divergences:
                print(
                    f"{name} prompt {number} ({prompt.category}) token {one.index}: gap "
                    f"{one.gap:.4f}, "
                    f"tree forward moves it by {one.difference:.4f}, tolerance "
                    f"{one.tolerance:.4f}: "
                    f"{'near-tie' if one.is_near_tie else 'VIOLATION'}",
                    flush=True,
                )
        print(
            f"{name}: {rows} rows, {tokens} equal tokens, {ties} near-ties, {violations} violations"
        )


if __name__ == "__main__":
    typer.run(main)
