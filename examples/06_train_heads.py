"""Let a target answer prompts, train Hydra heads on the answers, and decode with them.

Usage:
    python examples/06_train_heads.py
    python examples/06_train_heads.py --model Qwen/Qwen2.5-0.5B-Instruct
"""

import tempfile
from pathlib import Path

import torch
from _tiny import WORDS, load, model_names

from treespec import TreeDecoder
from treespec.heads import HeadDrafter, load_heads
from treespec.training import DistillOptions, Recipe, TrainConfig, Watchers, make_heads
from treespec.training.prompts import Prompt

NEW_TOKENS = 32
RECIPE = Recipe(
    train=TrainConfig(family="hydra", num_heads=3, lr=5e-3, epochs=8, batch_tokens=512,
                      max_length=256, eval_every=10),
    distill=DistillOptions(max_new_tokens=NEW_TOKENS, batch_size=32),
    budget=15,
)  # fmt: skip


def main() -> None:
    """Print how the loss falls, and what the heads save."""
    names = model_names(__doc__, "model")
    target, tokenizer = load(names.model)
    words = WORDS.split()
    texts = [f"the {one} sees a {two}" for one in words[:20] for two in words[20:28]]
    prompts = [Prompt(f"text-{n}", None, text=text) for n, text in enumerate(texts)]

    losses: list[float] = []
    watchers = Watchers(on_stage=print, on_step=lambda report: losses.append(report.train.loss))
    with tempfile.TemporaryDirectory() as work:
        made = make_heads(target, tokenizer, prompts, Path(work), RECIPE, watchers)
        print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} after {made.step} steps")
        for one in made.evaluation.simulated:
            print(f"{one.name}: {one.acceptance_length:.2f} tokens a pass, simulated")
        drafter = HeadDrafter(load_heads(work, target))

    prompt = tokenizer("the fish sees a bird", return_tensors="pt")
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False}
    output = TreeDecoder(target, drafter, tree=made.tree.tree).generate(**prompt, **options)
    plain = TreeDecoder(target, None).generate(**prompt, **options)
    same = torch.equal(output.sequences, plain.sequences)
    print(f"{output.stats[0].acceptance_length:.2f} tokens a pass in truth, same text: {same}")


if __name__ == "__main__":
    main()
