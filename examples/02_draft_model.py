"""Draft with a smaller model: as a chain, as a tree, greedily and sampled with one seed.

Usage:
    python examples/02_draft_model.py
    python examples/02_draft_model.py --model Qwen/Qwen2.5-1.5B-Instruct \
        --draft Qwen/Qwen2.5-0.5B-Instruct
"""

import torch
from _tiny import load, load_draft, model_names

from treespec import BestFirst, Chain, ModelDrafter, TreeDecoder

PROMPT = "the wind went from the sea and the moon"
NEW_TOKENS = 48
SHAPES = {
    "chain of 4": Chain(4),
    "tree of 15": BestFirst(budget=15, depth=4, width=4),
}
LAWS = {
    "greedy": {"do_sample": False},
    "temperature 0.8": {"do_sample": True, "temperature": 0.8, "seed": 7},
}


def main() -> None:
    """Print what each shape saves under each way of choosing tokens."""
    names = model_names(__doc__, "model", "draft")
    target, tokenizer = load(names.model)
    drafter = ModelDrafter(load_draft(names.draft, target))
    prompt = tokenizer(PROMPT, return_tensors="pt")
    plain = TreeDecoder(target, None)  # the same loop, one token a pass

    for law, settings in LAWS.items():
        expected = plain.generate(**prompt, max_new_tokens=NEW_TOKENS, **settings).sequences
        new_ids = expected[0, prompt["input_ids"].shape[1] :]
        print(f"{law}: {tokenizer.decode(new_ids, skip_special_tokens=True)}")
        for name, shape in SHAPES.items():
            decoder = TreeDecoder(target, drafter, tree=shape)
            output = decoder.generate(**prompt, max_new_tokens=NEW_TOKENS, **settings)
            stats = output.stats[0]
            same = torch.equal(output.sequences, expected)
            print(
                f"  {name}: {stats.acceptance_length:.2f} tokens a pass, "
                f"{stats.acceptance_rate:.0%} of the draft accepted, "
                f"{'the same text' if same else 'ANOTHER TEXT'}"
            )
        print()


if __name__ == "__main__":
    main()
