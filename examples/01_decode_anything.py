"""Decode with any causal LM through token trees: no drafter to choose, nothing to train.

Usage:
    python examples/01_decode_anything.py
    python examples/01_decode_anything.py --model Qwen/Qwen2.5-0.5B-Instruct
"""

import torch
from _tiny import load, model_names

from treespec import TreeDecoder

PROMPT = "the cat sat under the old tree . the bird sat in the old tree . the cat saw the bird ."
NEW_TOKENS = 64


def main() -> None:
    """Compare tree decoding with the model's own `generate`."""
    target, tokenizer = load(model_names(__doc__, "model").model)
    prompt = tokenizer(PROMPT, return_tensors="pt")

    plain = target.generate(**prompt, max_new_tokens=NEW_TOKENS, do_sample=False)

    decoder = TreeDecoder(target)  # drafts from the text and from the target's own earlier guesses
    output = decoder.generate(**prompt, max_new_tokens=NEW_TOKENS, do_sample=False)

    stats = output.stats[0]
    new_ids = output.sequences[0, prompt["input_ids"].shape[1] :]
    print(tokenizer.decode(new_ids, skip_special_tokens=True))
    print()
    print("the text of model.generate:", "yes" if torch.equal(output.sequences, plain) else "no")
    print(f"{stats.emitted} tokens: one from the prompt's forward pass, the others from")
    print(f"  {stats.steps} passes over trees instead of {stats.emitted - 1} over single tokens,")
    print(f"  {stats.acceptance_length:.2f} tokens a pass")
    print(f"{stats.drafted} tokens drafted, {stats.accepted} of them accepted")
    for depth, times in enumerate(stats.accepted_by_depth, start=1):
        print(f"  {times:3} of {stats.steps} passes went at least {depth} deep")


if __name__ == "__main__":
    main()
