"""Audit real models: every difference between tree and plain decoding must be a near-tie.

python benchmarks/audit.py MODEL --data FOLDER [--draft-model MODEL] [--dtype bfloat16] \
    [--temperature 0.8 --top-p 0.9 --repetition-penalty 1.1]
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from prompts import Prompt, humaneval, spec_bench
from transformers import AutoModelForCausalLM, AutoTokenizer

from treespec import (
    BestFirst,
    LookupDrafter,
    ModelDrafter,
    RecycleDrafter,
    TreeDecoder,
    TreeGenerate,
)
from treespec.audit import Audit, compare


def options(
    temperature: float, top_k: int, top_p: float, min_p: float, repetition_penalty: float
) -> dict[str, Any]:
    """What `generate` is asked for, the model's own defaults overridden."""
    asked: dict[str, Any] = {"do_sample": temperature > 0, "repetition_penalty": repetition_penalty}
    if temperature > 0:
        asked |= {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        asked |= {"min_p": min_p} if min_p else {}
    return asked


def audit_prompt(
    decoders: Mapping[str, TreeDecoder], prompt: Prompt, seed: int, asked: Mapping[str, Any]
) -> dict[str, Audit]:
    """Decode one prompt plainly once, and compare every decoder with that."""

    def decoded(decoder: TreeDecoder) -> TreeGenerate:
        hook = decoder.hook(seed=seed)
        hook.call(prompt.input_ids, **asked)
        return hook

    target = next(iter(decoders.values())).target
    plain = decoded(TreeDecoder(target.model, None, self_check=False))
    return {
        name: compare(
            target,
            plain.rows,
            decoded(decoder).rows,
            nodes=decoder.tree.limits(depth=2**31).budget + 1,
            temperature=plain.temperature,
        )
        for name, decoder in decoders.items()
    }


def main(
    model: str,
    data: Annotated[Path, typer.Option(help="folder with humaneval.jsonl and spec_bench.jsonl")],
    draft_model: Annotated[
        str | None, typer.Option(help="also audit a ModelDrafter with this; MODEL itself will do")
    ] = None,
    dtype: str = "bfloat16",
    max_new_tokens: int = 64,
    count: Annotated[int, typer.Option(help="prompts of each of the two files")] = 10,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    budget: int = 31,
    depth: int = 8,
    parts: Annotated[bool, typer.Option(help="audit lookup and recycling also alone")] = False,
) -> None:
    """Print each divergence with its gap, then the counts."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    target = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    shape = BestFirst(budget=budget, depth=depth)
    decoders = {"default": TreeDecoder(target, tree=BestFirst(budget=budget))}
    if parts:
        decoders["lookup"] = TreeDecoder(target, LookupDrafter(), tree=shape)
        decoders["recycle"] = TreeDecoder(target, RecycleDrafter(), tree=shape)
    if draft_model:
        draft = AutoModelForCausalLM.from_pretrained(draft_model, dtype=getattr(torch, dtype))
        decoders["model"] = TreeDecoder(target, ModelDrafter(draft), tree=shape)
    prompts = humaneval(data / "humaneval.jsonl", tokenizer, count)
    prompts += spec_bench(data / "spec_bench.jsonl", tokenizer, 1)[:count]
    asked = options(temperature, top_k, top_p, min_p, repetition_penalty)
    asked["max_new_tokens"] = max_new_tokens
    found: dict[str, list[Audit]] = {name: [] for name in decoders}
    for number, prompt in enumerate(prompts):
        for name, audit in audit_prompt(decoders, prompt, number, asked).items():
            found[name].append(audit)
            for one in audit.divergences:
                print(
                    f"{name} prompt {number} ({prompt.category}) token {one.index}: gap "
                    f"{one.gap:.4f}, tree forward moves it by {one.difference:.4f}, tolerance "
                    f"{one.tolerance:.4f}: {one.verdict}",
                    flush=True,
                )
    for name, audits in found.items():
        print(
            f"{name}: {len(audits)} texts, {sum(one.tokens for one in audits)} equal tokens, "
            f"{sum(one.near_ties - one.cut_offs for one in audits)} near-ties, "
            f"{sum(one.cut_offs for one in audits)} at a cut-off, "
            f"{sum(one.violations for one in audits)} violations"
        )


if __name__ == "__main__":
    typer.run(main)
