"""Tree decoding with nothing but the target against plain decoding and transformers' prompt lookup.

python benchmarks/speed.py MODEL --data FOLDER [--code 12] [--per-category 2]

All methods run on every prompt in turn, in one process; tokens per second by category, and ratios.
Where tree and plain texts part, the audit says whether a near-tie explains it.
"""

import time
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import torch
import typer
from prompts import humaneval, spec_bench, threads
from transformers import AutoModelForCausalLM, AutoTokenizer

from treespec import Target, TreeDecoder
from treespec.audit import compare
from treespec.rows import Row


def explain(target: Target, plain: list[Row], tree: list[Row]) -> None:
    """Print where two decodings of a prompt part, and why."""
    for one in compare(target, plain, tree, nodes=32, temperature=0.0).divergences:
        print(
            f"  texts part at token {one.index}: gap {one.gap:.4f}, tolerance {one.tolerance:.4f}: "
            f"{one.verdict}",
            flush=True,
        )


def main(
    model: str,
    data: Annotated[Path, typer.Option(help="folder with humaneval.jsonl and spec_bench.jsonl")],
    code: int = 12,
    code_tokens: int = 192,
    per_category: int = 2,
    tokens: int = 64,
    methods: str = "plain,tree,lookup10,lookup24",
) -> None:
    """Print a line per prompt and a table by category."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    print(threads())
    decoders = {"plain": TreeDecoder(target, None), "tree": TreeDecoder(target)}
    hooks = {name: decoder.hook() for name, decoder in decoders.items()}
    runs = {
        "plain": lambda ids, n: hooks["plain"].call(ids, max_new_tokens=n, do_sample=False),
        "tree": lambda ids, n: hooks["tree"].call(ids, max_new_tokens=n, do_sample=False),
        "hf": lambda ids, n: target.generate(ids, max_new_tokens=n, do_sample=False),
        "lookup10": lambda ids, n: target.generate(
            ids, max_new_tokens=n, do_sample=False, prompt_lookup_num_tokens=10
        ),
        "lookup24": lambda ids, n: target.generate(
            ids, max_new_tokens=n, do_sample=False, prompt_lookup_num_tokens=24
        ),
    }
    chosen = methods.split(",")
    work = [
        (prompt, code_tokens) for prompt in humaneval(data / "humaneval.jsonl", tokenizer, code)
    ]
    if per_category:
        work += [
            (p, tokens) for p in spec_bench(data / "spec_bench.jsonl", tokenizer, per_category)
        ]
    for name in chosen:
        runs[name](work[0][0].input_ids, 8)
    spent: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for prompt, count in work:
        line = []
        for name in chosen:
            start = time.perf_counter()
            output = runs[name](prompt.input_ids, count)
            took = time.perf_counter() - start
            sequences = output if isinstance(output, torch.Tensor) else output.sequences
            emitted = sequences.shape[1] - prompt.input_ids.shape[1]
            spent[prompt.category][name] += took / emitted
            line.append(f"{name} {emitted} tokens {took:.1f} s")
            if name == "tree":
                line.append(f"acceptance length {output.stats[0].acceptance_length:.2f}")
        print(f"{prompt.category}: {', '.join(line)}", flush=True)
    for category, seconds in spent.items():
        ratios = ", ".join(f"{name} {seconds['plain'] / seconds[name]:.2f} x" for name in chosen)
        print(f"{category}: {ratios}")


if __name__ == "__main__":
    typer.run(main)
