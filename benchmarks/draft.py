"""What one draft with heads costs, against a forward of the target.

python benchmarks/draft.py MODEL [--prefix 512] [--budget 31] [--depth 4] [--repeats 15]

The heads are random and never trained: what a draft costs does not depend on what it says. Each
step the heads read one newly committed pair and draft a whole tree to the full depth. Drafts of
every family and forwards of one token and of the whole tree run in one process, interleaved;
medians.
"""

import statistics
import time
from collections.abc import Callable

import torch
import typer
from prompts import threads
from step import random_tree
from transformers import AutoModelForCausalLM

from treespec import BestFirst, DraftContext, Round
from treespec.drafters.base import DraftSession
from treespec.heads import (
    DraftHeads,
    DraftVocabulary,
    EagleConfig,
    EagleHead,
    HeadDrafter,
    HydraConfig,
    HydraHeads,
    LayerConfig,
    MedusaConfig,
    MedusaHeads,
)
from treespec.heads.eagle import default_taps
from treespec.sampling import RowNoise
from treespec.target import Target, TargetOutput
from treespec.verify.acceptance import Acceptance

DRAFT_VOCABULARY = 32768


def families(target: Target, depth: int) -> dict[str, DraftHeads]:
    """Random heads of every family, shaped as their authors shape them for this target."""
    config = target.model.config
    size, last = config.hidden_size, config.num_hidden_layers
    layer = LayerConfig(
        hidden_size=size,
        intermediate_size=config.intermediate_size,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=size // config.num_attention_heads,
    )
    vocabulary = DraftVocabulary(torch.arange(DRAFT_VOCABULARY), target.vocab_size)
    eagle = EagleConfig(
        version=1,
        layer=layer,
        target_hidden_size=size,
        taps=(last,),
        fc_bias=True,
        own_embedding=False,
        lm_head="target",
    )
    eagle3 = EagleConfig(
        version=3,
        layer=layer,
        target_hidden_size=size,
        taps=default_taps(last),
        fc_bias=False,
        own_embedding=False,
        lm_head="own",
    )
    medusa = MedusaConfig(num_heads=depth, hidden_size=size, lm_head="target")
    hydra = HydraConfig(
        num_heads=depth,
        num_layers=1,
        hidden_size=size,
        prefix=layer,
        lm_head="target",
        lm_head_bias=False,
    )
    return {
        "medusa, shared LM head, 32k": MedusaHeads(medusa, target.model, vocabulary),
        "hydra with prefix layer, shared LM head, 32k": HydraHeads(hydra, target.model, vocabulary),
        "eagle, shared LM head, all tokens": EagleHead(eagle, target.model),
        "eagle, shared LM head, 32k": EagleHead(eagle, target.model, vocabulary),
        "eagle3, own LM head, 32k": EagleHead(eagle3, target.model, vocabulary),
    }


class Drafting:
    """One family's session, and one step of it."""

    def __init__(self, heads: DraftHeads, target: Target, text: torch.Tensor) -> None:
        drafter = HeadDrafter(heads.to(torch.bfloat16).eval(), least_gain=0.0)
        context = DraftContext(
            noises=[RowNoise(None)],
            temperature=0.0,
            vocab_size=target.vocab_size,
            device=target.device,
            draw="shared",
        )
        cache = target.new_cache(1, capacity=len(text) + 8)
        output = target.prefill(cache, [text], top=8, taps=drafter.taps)[0]
        self.session: DraftSession = drafter.begin([text], context)
        self.session.observe([Round(None, Acceptance((), 1), output)])
        self.hidden = {tap: states[:1] for tap, states in output.hidden.items()}
        self.logits = output.logits

    def step(self, limits: BestFirst, depth: int) -> float:
        """Seconds of one proposal after one committed pair; the tree must be full."""
        start = time.perf_counter()
        tree = self.session.propose([limits.limits(depth=depth)])[0]
        took = time.perf_counter() - start
        if len(tree) != limits.budget + 1 or tree.topology.max_depth > depth:
            raise RuntimeError(f"the tree has {len(tree)} nodes, depth {tree.topology.max_depth}")
        hidden = {tap: states.expand(len(tree), -1) for tap, states in self.hidden.items()}
        output = TargetOutput(self.logits.expand(len(tree), -1), hidden)
        self.session.observe([Round(tree, Acceptance((0,), 1), output)])
        return took


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@torch.no_grad()
def main(
    model: str, prefix: int = 512, budget: int = 31, depth: int = 4, repeats: int = 15
) -> None:
    """Print a line per family."""
    torch.manual_seed(0)
    target = Target(AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16))
    print(threads())
    generator = torch.Generator().manual_seed(prefix)
    text = torch.randint(target.vocab_size, (prefix,), generator=generator)
    drafting = {
        name: Drafting(heads, target, text) for name, heads in families(target, depth).items()
    }
    cache = target.new_cache(1, capacity=prefix + 4 * budget)
    target.prefill(cache, [text], top=8)
    trees = {nodes: random_tree(nodes, target.vocab_size, generator) for nodes in (1, budget + 1)}

    def forward(nodes: int) -> None:
        target.score(cache, [trees[nodes]])
        cache.commit([()])

    times: dict[str, list[float]] = {}
    for repeat in range(repeats + 2):
        found = {str(nodes): seconds(lambda nodes=nodes: forward(nodes)) for nodes in trees}
        shape = BestFirst(budget=budget, depth=depth)
        found |= {name: one.step(shape, depth) for name, one in drafting.items()}
        if repeat >= 2:
            for name, value in found.items():
                times.setdefault(name, []).append(value)
    median = {name: statistics.median(values) for name, values in times.items()}
    one, tree = median.pop("1"), median.pop(str(budget + 1))
    print(f"forward of 1 token {one * 1e3:.0f} ms, of {budget + 1} nodes {tree * 1e3:.0f} ms")
    for name, took in median.items():
        print(
            f"{name}: {took * 1e3:.1f} ms = {took / one:.1%} of a one-token forward, "
            f"{took / tree:.1%} of the tree's"
        )


if __name__ == "__main__":
    typer.run(main)
