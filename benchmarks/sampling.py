"""What sampling costs of a step: processing the scores, noise, and the walk, while decoding text.

python benchmarks/sampling.py MODEL --data FOLDER [--temperature 0.8 --top-p 0.95]
"""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from audit import options
from prompts import humaneval, spec_bench, threads
from transformers import AutoModelForCausalLM, AutoTokenizer

from treespec import BestFirst, TreeDecoder
from treespec.drafters.base import DraftSession
from treespec.rows import Row
from treespec.scores import NodeScores
from treespec.target import TargetOutput
from treespec.tree.token_tree import TokenTree
from treespec.verify.acceptance import Acceptance


class TimedDecoder(TreeDecoder):
    """Notes for every step when it began, and how long processing and accepting took."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.process_s: list[float] = []
        self.accept_s: list[float] = []
        self.undecided: list[int] = []
        self.ends: list[float] = []

    def _process(
        self, rows: Sequence[Row], trees: Sequence[TokenTree], outputs: Sequence[TargetOutput]
    ) -> list[NodeScores]:
        start = time.perf_counter()
        scores = super()._process(rows, trees, outputs)
        self.process_s.append(time.perf_counter() - start)
        flags = scores[0].undecided
        self.undecided.append(0 if flags is None else int(flags.sum()))
        return scores

    def _accept(
        self, rows: Sequence[Row], trees: Sequence[TokenTree], scores: Sequence[NodeScores]
    ) -> list[Acceptance]:
        start = time.perf_counter()
        accepted = super()._accept(rows, trees, scores)
        self.accept_s.append(time.perf_counter() - start)
        return accepted

    def _drop_finished(
        self, live: list[int], rows: Sequence[Row], cache: Any, session: DraftSession
    ) -> list[int]:
        self.ends.append(time.perf_counter())
        return super()._drop_finished(live, rows, cache, session)


def main(
    model: str,
    data: Annotated[Path, typer.Option(help="folder with humaneval.jsonl and spec_bench.jsonl")],
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 0.95,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    budget: int = 31,
    max_new_tokens: int = 48,
    count: int = 3,
) -> None:
    """Print medians over all steps whose tree is full, and the share of the whole step."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    print(threads())
    prompts = humaneval(data / "humaneval.jsonl", tokenizer, count)
    prompts += spec_bench(data / "spec_bench.jsonl", tokenizer, 1)[:count]
    asked = options(temperature, top_k, top_p, min_p, repetition_penalty)
    process_s, accept_s, step_s, undecided = [], [], [], []
    for seed, prompt in enumerate(prompts):
        decoder = TimedDecoder(target, tree=BestFirst(budget=budget), self_check=False)
        decoder.hook(seed=seed).call(prompt.input_ids, max_new_tokens=max_new_tokens, **asked)
        # The first entry of each is prefill's, or the end of it.
        process_s += decoder.process_s[1:]
        accept_s += decoder.accept_s[1:]
        undecided += decoder.undecided[1:]
        step_s += [end - start for start, end in zip(decoder.ends, decoder.ends[1:], strict=False)]
    shares = [
        (process + accept) / step
        for process, accept, step in zip(process_s, accept_s, step_s, strict=True)
    ]
    print(
        f"{len(step_s)} steps: process {median(process_s) * 1e3:.1f} ms, accept "
        f"{median(accept_s) * 1e3:.1f} ms of {median(step_s) * 1e3:.1f} ms; median share "
        f"{median(shares):.2%}; {sum(undecided) / len(undecided):.2f} nodes a step undecided"
    )


if __name__ == "__main__":
    typer.run(main)
