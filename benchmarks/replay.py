"""Acceptance length of drafters on recorded text, without running the target again.

    python -m benchmarks.replay record MODEL --data FOLDER [--split tuning] [--out FOLDER]
    python -m benchmarks.replay run [--budget 31] [--out FOLDER]

`record` lets a model answer HumanEval and Spec-Bench prompts greedily and keeps its eight most
probable tokens at every position; `run` leads drafters through those answers: propose, follow the
recorded answer through the tree, observe. The target's opinion off the recorded path is not known,
so rejected nodes get a row without a preference, and whatever a drafter could learn from rejected
nodes is missing: what is printed is a lower bound for drafters that do.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

import numpy as np
import torch
import typer
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm
from transformers import AutoTokenizer

from benchmarks.linear import PromptLookupChain
from benchmarks.prompts import Prompt, humaneval, spec_bench
from benchmarks.recordings import Recording, record
from treespec.drafters.base import DraftContext, Drafter, Round
from treespec.drafters.lookup import LookupDrafter
from treespec.drafters.merged import MergedDrafter
from treespec.drafters.recycle import RecycleDrafter
from treespec.sampling import RowNoise
from treespec.target import TargetOutput
from treespec.tree.shapes import BestFirst, Chain
from treespec.tree.token_tree import TokenTree
from treespec.verify.acceptance import Acceptance

# Which HumanEval prompts, and which of each category of Spec-Bench. Whoever tunes a drafter does it
# on the tuning split.
Split = Literal["evaluation", "tuning"]
SPLITS: dict[Split, tuple[slice, slice]] = {
    "evaluation": (slice(0, 12), slice(0, 2)),
    "tuning": (slice(20, 32), slice(2, 4)),
}
DEFAULT_FOLDER = Path.home() / ".cache" / "treespec-recordings"


@dataclass(frozen=True, slots=True)
class Replayed:
    """What one replay of one recording measured.

    Attributes:
        category: the recording's category.
        steps: passes of the target after prefill.
        emitted: tokens of the answer.
        drafted: draft tokens over all steps.
        propose_s: seconds spent in `propose`.
        observe_s: seconds spent in `observe`, prefill's included.
    """

    category: str
    steps: int
    emitted: int
    drafted: int
    propose_s: float
    observe_s: float

    @property
    def acceptance_length(self) -> float:
        """Tokens emitted per pass of the target; plain decoding gives 1."""
        return (self.emitted - 1) / self.steps


def with_compact_ids(recordings: Sequence[Recording]) -> tuple[list[Recording], int]:
    """The recordings with the ids that occur in them numbered anew, and how many there are.

    Drafters do not care what an id means, and rows of logits over a few thousand ids are made much
    faster than rows over a whole vocabulary.
    """
    parts = [
        part for each in recordings for part in (each.prompt, each.answer, each.top_ids.reshape(-1))
    ]
    used = np.unique(torch.cat(parts).numpy())

    def renumber(ids: Tensor) -> Tensor:
        return torch.from_numpy(np.searchsorted(used, ids.numpy()))

    return [
        replace(
            each,
            prompt=renumber(each.prompt),
            answer=renumber(each.answer),
            top_ids=renumber(each.top_ids),
        )
        for each in recordings
    ], len(used)


def logits_row(recording: Recording, position: int, vocab_size: int) -> Float[Tensor, " V"]:
    """A row with the recorded probabilities after `position`; other ids share the rest evenly."""
    top = recording.top_log_probs[position]
    rest = max(1.0 - float(top.exp().sum()), 1e-9) / max(vocab_size - len(top), 1)
    row = torch.full((vocab_size,), float(np.log(rest)))
    row[recording.top_ids[position]] = top
    return row


def follow(tree: TokenTree, ahead: Sequence[int]) -> tuple[int, ...]:
    """The path of nodes whose tokens are the first of `ahead`."""
    path = [0]
    for token in ahead:
        children = tree.topology.children[path[-1]]
        found = [child for child in children if tree.token_list[child] == token]
        if not found:
            break
        path.append(found[0])
    return tuple(path)


def replay(
    drafter: Drafter, recording: Recording, shape: BestFirst, *, vocab_size: int
) -> Replayed:
    """Lead `drafter` through one recorded answer."""
    prompt, answer = recording.prompt, recording.answer.tolist()
    context = DraftContext(
        noises=[RowNoise(None)],
        temperature=0.0,
        vocab_size=vocab_size,
        device=torch.device("cpu"),
        draw="shared",
    )
    row = partial(logits_row, recording, vocab_size=vocab_size)
    session = drafter.begin([prompt], context)
    first = TargetOutput(
        logits=row(len(prompt) - 1)[None], top_ids=recording.top_ids[: len(prompt)]
    )
    before = time.perf_counter()
    session.observe([Round(None, Acceptance((), answer[0]), first)])
    observe_s, propose_s = time.perf_counter() - before, 0.0
    emitted, steps, drafted = 1, 0, 0
    while emitted < len(answer):
        before = time.perf_counter()
        tree = session.propose([shape.limits(depth=len(answer) - emitted - 1)])[0]
        propose_s += time.perf_counter() - before
        # The last token of the answer comes from the target, as it does when a limit ends decoding.
        path = follow(tree, answer[emitted:-1])
        logits = torch.zeros(len(tree), vocab_size)
        root_position = len(prompt) + emitted - 1
        for depth, node in enumerate(path):
            logits[node] = row(root_position + depth)
        next_token = answer[emitted + len(path) - 1]
        outcome = Round(tree, Acceptance(path, next_token), TargetOutput(logits=logits))
        before = time.perf_counter()
        session.observe([outcome])
        observe_s += time.perf_counter() - before
        emitted += len(path)
        steps += 1
        drafted += len(tree) - 1
    return Replayed(recording.category, steps, emitted, drafted, propose_s, observe_s)


@dataclass(frozen=True, slots=True)
class Method:
    """A drafter and the shape of its trees under a name."""

    name: str
    drafter: Callable[[], Drafter]
    shape: BestFirst


def methods(budget: int) -> list[Method]:
    """The training-free drafters at one budget, after the linear baselines."""
    shape = BestFirst(budget=budget, depth=budget, width=8)

    def merged() -> Drafter:
        return MergedDrafter([LookupDrafter(), RecycleDrafter()])

    return [
        Method("prompt lookup 10", partial(PromptLookupChain, 10), Chain(10)),
        Method("prompt lookup 24", partial(PromptLookupChain, 24), Chain(24)),
        Method(f"lookup chain {budget}", LookupDrafter, Chain(budget)),
        Method(f"lookup tree {budget}", LookupDrafter, shape),
        Method(f"recycle chain {budget}", RecycleDrafter, Chain(budget)),
        Method(f"recycle tree {budget}", RecycleDrafter, shape),
        Method(f"merged chain {budget}", merged, Chain(budget)),
        Method(f"merged tree {budget}", merged, shape),
    ]


def summary(results: Sequence[Replayed]) -> dict[str, float]:
    """Mean acceptance length by category, over all, and milliseconds a step."""
    ordered = sorted(results, key=lambda each: each.category)
    table = {
        category: fmean(each.acceptance_length for each in group)
        for category, group in groupby(ordered, key=lambda each: each.category)
    }
    others = [value for category, value in table.items() if category != "humaneval"]
    steps = sum(each.steps for each in results)
    table["others"] = fmean(others) if others else float("nan")
    table["propose_ms"] = 1e3 * sum(each.propose_s for each in results) / steps
    table["observe_ms"] = 1e3 * sum(each.observe_s for each in results) / steps
    return table


def load(folder: Path) -> list[Recording]:
    """Every recording in a folder."""
    paths = sorted(folder.glob("*.npz"))
    if not paths:
        raise SystemExit(f"there is no recording in {folder}; make some with `record` first")
    return [Recording.load(path) for path in paths]


def run(folder: Path, budget: int) -> None:
    """Replay every method on every recording and print a table."""
    recordings, vocab_size = with_compact_ids(load(folder))
    tables: dict[str, dict[str, float]] = {}
    for method in methods(budget):
        results = [
            replay(method.drafter(), each, method.shape, vocab_size=vocab_size)
            for each in tqdm(recordings, desc=method.name, leave=False)
            if len(each.answer) > 1
        ]
        tables[method.name] = summary(results)
    width = max(map(len, tables)) + 2
    names = [name[: width - 2].rjust(width) for name in tables]
    print(" " * 16 + "".join(names))
    for quantity in next(iter(tables.values())):
        cells = "".join(f"{table[quantity]:{width}.2f}" for table in tables.values())
        print(quantity.ljust(16) + cells)


def split_prompts(data: Path, tokenizer: Any, split: Split) -> list[tuple[list[Prompt], int]]:
    """Prompts of one split of the evaluation files, and how many tokens to answer with."""
    code, of_category = SPLITS[split]
    chosen = humaneval(data / "humaneval.jsonl", tokenizer, code.stop)[code]
    prompts = spec_bench(data / "spec_bench.jsonl", tokenizer, of_category.stop)
    by_category: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    others = [prompt for group in by_category.values() for prompt in group[of_category]]
    return [(chosen, 192), (others, 64)]


app = typer.Typer(help="Acceptance length of drafters on recorded text.")


@app.command("record")
def record_split(
    model: str,
    data: Annotated[Path, typer.Option(help="folder with humaneval.jsonl and spec_bench.jsonl")],
    out: Annotated[Path, typer.Option(help="folder of recordings")] = DEFAULT_FOLDER,
    split: Split = "evaluation",
    batch_size: int = 16,
) -> None:
    """Record the answers of MODEL to the prompts of one split."""
    out.mkdir(parents=True, exist_ok=True)
    for prompts, new_tokens in split_prompts(data, AutoTokenizer.from_pretrained(model), split):
        recorded = record(model, prompts, new_tokens=new_tokens, batch_size=batch_size)
        for index, recording in enumerate(tqdm(recorded, total=len(prompts), desc="record")):
            recording.save(out / f"{recording.category}-{index:03d}.npz")


@app.command("run")
def run_all(
    out: Annotated[Path, typer.Option(help="folder of recordings")] = DEFAULT_FOLDER,
    budget: Annotated[int, typer.Option(help="draft tokens a step")] = 31,
) -> None:
    """Replay every method on every recording."""
    run(out, budget)


if __name__ == "__main__":
    app()
