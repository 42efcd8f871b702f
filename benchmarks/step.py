"""What a step costs besides the target's forward: prepare, score and commit against a bare forward.

python benchmarks/step.py MODEL [--prefixes 256,1024,4096] [--nodes 32] [--repeats 15]

Both run in one process, interleaved, on caches of the same length; medians and their ratio are
printed.
The bare forward gets a ready mask and ready ids and leaves the cache as it was.
"""

import statistics
import time
from collections.abc import Callable

import torch
import typer
from prompts import threads
from transformers import AutoModelForCausalLM

from treespec import BestFirst, DraftContext, Round, default_drafter
from treespec.attention import NewNodes, build_masks
from treespec.sampling import RowNoise
from treespec.scores import NodeScores
from treespec.target import Target, TargetOutput
from treespec.tree.token_tree import TokenTree
from treespec.verify.acceptance import Acceptance
from treespec.verify.gumbel import Gumbel


def elapsed_s(work: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def random_tree(nodes: int, vocab_size: int, generator: torch.Generator) -> TokenTree:
    """A tree whose nodes hang from random earlier ones."""
    parents = [-1] + [
        int(torch.randint(max(0, n - 4), n, (), generator=generator)) for n in range(1, nodes)
    ]
    return TokenTree.from_lists(
        parents, torch.randint(vocab_size, (nodes,), generator=generator).tolist()
    )


@torch.no_grad()
def measure(target: Target, prefix: int, nodes: int, repeats: int) -> dict[str, float]:
    """Median seconds of a bare forward and of the parts of a step, at one prefix length."""
    generator = torch.Generator().manual_seed(prefix)
    text = torch.randint(target.vocab_size, (prefix,), generator=generator)
    cache = target.new_cache(1, capacity=prefix + 4 * nodes)
    output = target.prefill(cache, [text], top=8)
    tree = random_tree(nodes, target.vocab_size, generator)
    session = default_drafter().begin(
        [text],
        DraftContext(
            noises=[RowNoise(None)],
            temperature=0.0,
            vocab_size=target.vocab_size,
            device=target.device,
            draw="shared",
        ),
    )
    session.observe([Round(None, Acceptance((), tree.token_list[0]), output[0])])
    new = NewNodes(tree.tokens, tree.topology.depths, tree.topology.ancestor_mask)
    arguments = {
        "input_ids": tree.tokens[None],
        "position_ids": (new.positions + prefix)[None],
        "attention_mask": build_masks(
            [new],
            [prefix],
            prefix + nodes,
            kinds=target.support.kinds,
            implementation=target.support.implementation,
            dtype=target.model.dtype,
            device=target.device,
        ),
        "cache": cache.hf,
        "use_cache": True,
    }
    deepest = max(range(nodes), key=lambda node: tree.topology.depth_list[node])
    path = tree.topology.path_to(deepest)

    def bare() -> None:
        cache.reserve(nodes)
        target.model(**arguments)

    def step() -> list[TargetOutput]:
        outputs = target.score(cache, [tree])
        cache.commit([path])
        cache.lengths = [prefix]
        return outputs

    times: dict[str, list[float]] = {
        "bare": [],
        "step": [],
        "accept": [],
        "propose": [],
        "observe": [],
    }
    limits = [BestFirst(budget=nodes - 1).limits(depth=nodes)]
    for repeat in range(repeats + 2):
        bare_s, step_s = elapsed_s(bare), elapsed_s(step)
        outputs = step()
        accept_s = elapsed_s(
            lambda logits=outputs[0].logits: Gumbel().accept(
                [tree], [NodeScores.of_all(logits)], [RowNoise(None)], [prefix]
            )
        )
        proposed: list[TokenTree] = []
        propose_s = elapsed_s(lambda kept=proposed: kept.extend(session.propose(limits)))
        following = Acceptance((0,), int(torch.randint(target.vocab_size, (), generator=generator)))
        size = len(proposed[0])
        seen = Round(proposed[0], following, TargetOutput(outputs[0].logits[:size]))
        observe_s = elapsed_s(lambda one=seen: session.observe([one]))
        if repeat >= 2:
            for name, value in zip(
                times, (bare_s, step_s, accept_s, propose_s, observe_s), strict=True
            ):
                times[name].append(value)
    return {name: statistics.median(values) for name, values in times.items()}


def main(model: str, prefixes: str = "256,1024,4096", nodes: int = 32, repeats: int = 15) -> None:
    """Print a line per prefix length."""
    target = Target(AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16))
    print(threads())
    for prefix in (int(part) for part in prefixes.split(",")):
        took = measure(target, prefix, nodes, repeats)
        whole = took["step"] + took["accept"] + took["propose"] + took["observe"]
        print(
            f"prefix {prefix}: bare {took['bare'] * 1e3:.1f} ms, prepare+score+commit "
            f"{took['step'] * 1e3:.1f} ms = {took['step'] / took['bare']:.3f} x; accept "
            f"{took['accept'] * 1e3:.1f}, propose {took['propose'] * 1e3:.1f}, observe "
            f"{took['observe'] * 1e3:.1f} ms; propose is {took['propose'] / whole:.2%} of the step",
            flush=True,
        )


if __name__ == "__main__":
    typer.run(main)
