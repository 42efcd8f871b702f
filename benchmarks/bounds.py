"""Acceptance of every rule at one position of real text, against the best that is possible.

python benchmarks/bounds.py TARGET DRAFT --data FOLDER [--positions 10 --draws 24]

The target samples short answers; at their tokens both models' laws are taken, restricted to the
union of their 200 most probable tokens with all others as one more token. Candidates are drawn, and
decided on, by the code that decodes. The bound is that of optimal transport for candidates drawn
without replacement. Means over positions, with standard errors.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from jaxtyping import Float
from prompts import Prompt, spec_bench, threads
from torch import Tensor
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from treespec import TreeDecoder
from treespec.drafters.drawing import Place, draw_children
from treespec.sampling import RowNoise
from treespec.scores import NodeScores
from treespec.tree.token_tree import TokenTree
from treespec.verify import make_verifier
from treespec.verify.exact import optimal_acceptance

TOP = 200
# Rule, draw, and whether it takes several candidates.
RULES = [
    ("gumbel", "shared", True),
    ("gumbel", "topk", True),
    ("rejection", "swor", True),
    ("rejection", "iid", True),
    ("traversal", "swor", True),
    ("kseq", "iid", True),
    ("token", "iid", False),
    ("block", "iid", False),
]


@dataclass(frozen=True, slots=True)
class Pair:
    """Both models' laws of one position over the same few tokens, float64."""

    target: Float[Tensor, " V"]
    draft: Float[Tensor, " V"]


def answers(target: PreTrainedModel, prompts: list[Prompt], new_tokens: int) -> list[Tensor]:
    """Each prompt with what the target says to it at temperature 1, shape `[L]`."""
    longest = max(prompt.input_ids.shape[1] for prompt in prompts)
    block = torch.zeros(len(prompts), longest, dtype=torch.int64)
    mask = torch.zeros_like(block)
    for row, prompt in enumerate(prompts):
        block[row, longest - prompt.input_ids.shape[1] :] = prompt.input_ids[0]
        mask[row, longest - prompt.input_ids.shape[1] :] = 1
    output = TreeDecoder(target, None).generate(
        input_ids=block,
        attention_mask=mask,
        max_new_tokens=new_tokens,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        seed=1,
    )
    ends = [one.emitted for one in output.stats]
    return [
        text[columns.bool()]
        for text, columns in zip(
            output.sequences,
            torch.cat([mask, torch.arange(new_tokens).lt(torch.tensor(ends)[:, None])], dim=1),
            strict=True,
        )
    ]


@torch.no_grad()
def last_logits(model: PreTrainedModel, text: Tensor, count: int) -> Float[Tensor, "C V"]:
    """Logits that speak of the last `count` tokens of a text."""
    return model(text[None, :-1], logits_to_keep=count).logits[0].double()


def restricted(target: Float[Tensor, " V"], draft: Float[Tensor, " W"]) -> Pair:
    """Two laws over the most probable tokens of either, and one token for all others."""
    shared = min(len(target), len(draft))
    ids = torch.cat([target[:shared].topk(TOP).indices, draft[:shared].topk(TOP).indices]).unique()

    def law(probs: Tensor) -> Tensor:
        return torch.cat([probs[ids], (1 - probs[ids].sum()).clamp(min=1e-12)[None]])

    return Pair(law(target), law(draft))


def accepts(pair: Pair, rule: str, draw: str, candidates: int, seed: int, position: int) -> bool:
    """Draw candidates once, and ask the rule once."""
    noise = RowNoise(seed)
    drawn = draw_children(
        pair.draft.log().float()[None],
        Place(noise=noise, root_position=position, nodes=[0], depths=[0]),
        draw=draw,
        temperature=1.0,
        width=candidates,
    )
    tokens = drawn.candidates[0].tokens
    tree = TokenTree.from_lists([-1] + [0] * len(tokens), [0, *tokens], draw=draw)
    if drawn.laws is not None:
        probs = torch.zeros(len(tree), len(pair.draft))
        probs[0] = drawn.laws[0]
        tree = TokenTree(tree.topology, tree.tokens, tree.sources, draw, draft_probs=probs)
    scores = NodeScores.of_all(pair.target.log().float().expand(len(tree), -1))
    (decided,) = make_verifier(rule).accept([tree], [scores], [noise], [position])
    return decided.num_accepted > 0


def with_error(values: Tensor) -> str:
    """Mean and standard error of one number per position."""
    return f"{values.mean():.3f} +- {values.std() / len(values) ** 0.5:.3f}"


def main(
    target: str,
    draft: str,
    data: Annotated[Path, typer.Option(help="folder with spec_bench.jsonl")],
    per_category: int = 2,
    positions: Annotated[int, typer.Option(help="tokens of each answer")] = 10,
    draws: Annotated[int, typer.Option(help="times that a rule is asked at each position")] = 24,
    temperatures: str = "1.0,0.6",
) -> None:
    """Print a table for each temperature and number of candidates."""
    print(threads())
    models = [
        AutoModelForCausalLM.from_pretrained(m, dtype=torch.bfloat16) for m in (target, draft)
    ]
    tokenizer = AutoTokenizer.from_pretrained(target)
    prompts = spec_bench(data / "spec_bench.jsonl", tokenizer, per_category)
    texts = answers(models[0], prompts, positions)
    logits = [[last_logits(model, text, positions) for model in models] for text in tqdm(texts)]
    for temperature in (float(part) for part in temperatures.split(",")):
        pairs = [
            restricted((one / temperature).softmax(-1), (other / temperature).softmax(-1))
            for both in logits
            for one, other in zip(*both, strict=True)
        ]
        print(f"T = {temperature}, {len(pairs)} positions")
        for candidates in (1, 2, 4):
            bound = torch.tensor(
                [
                    optimal_acceptance(
                        (pair.target / pair.target.sum()).numpy(),
                        (pair.draft / pair.draft.sum()).numpy(),
                        candidates=candidates,
                        draw="swor",
                    )
                    for pair in pairs
                ]
            )
            print(f"  K = {candidates}: bound {with_error(bound)}")
            for rule, draw, takes_several in RULES:
                if candidates > 1 and not takes_several:
                    continue
                found = torch.tensor(
                    [
                        sum(
                            accepts(pair, rule, draw, candidates, seed, place)
                            for seed in range(draws)
                        )
                        / draws
                        for place, pair in enumerate(pairs)
                    ]
                )
                share = found.mean() / bound.mean()
                gap = with_error(bound - found)
                print(
                    f"    {rule:10} {draw:7} {with_error(found)}  {share:.3f} of the bound "
                    f"(short of it by {gap})",
                    flush=True,
                )


if __name__ == "__main__":
    typer.run(main)
