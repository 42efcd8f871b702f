"""Decode several prompts together, and stream one as it comes.

Usage:
    python examples/03_batch_and_stream.py
    python examples/03_batch_and_stream.py --model Qwen/Qwen2.5-0.5B-Instruct
"""

import torch
from _tiny import load, model_names
from transformers import TextStreamer

from treespec import TreeDecoder, row_seed

PROMPTS = [
    "the moon sings",
    "she saw the river and the river saw her and she",
    "one fish . two fish . red fish . one fish . two fish .",
]
SAMPLED = {"do_sample": True, "temperature": 0.7, "max_new_tokens": 32}
SEED = 11


def main() -> None:
    """Show that a row does not depend on its neighbours, and that streaming changes nothing."""
    target, tokenizer = load(model_names(__doc__, "model").model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    decoder = TreeDecoder(target)

    batch = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    output = decoder.generate(**batch, seed=SEED, **SAMPLED)
    width = batch["input_ids"].shape[1]
    for row, (prompt, stats) in enumerate(zip(PROMPTS, output.stats, strict=True)):
        new_ids = output.sequences[row, width:][: stats.emitted]
        print(f"{prompt} > {tokenizer.decode(new_ids, skip_special_tokens=True)}")
        alone = tokenizer(prompt, return_tensors="pt")
        single = decoder.generate(**alone, seed=row_seed(SEED, row), **SAMPLED)
        same = torch.equal(single.sequences[0, alone["input_ids"].shape[1] :], new_ids)
        print(
            f"  ended by {stats.finish_reason}, {stats.acceptance_length:.2f} tokens a pass; "
            f"decoded alone: {'the same text' if same else 'ANOTHER TEXT'}\n"
        )

    print("Streamed, through the model's own generate:")
    streamer = TextStreamer(tokenizer, skip_special_tokens=True)
    prompt = tokenizer(PROMPTS[0], return_tensors="pt")
    target.generate(**prompt, custom_generate=decoder.hook(streamer=streamer, seed=SEED), **SAMPLED)


if __name__ == "__main__":
    main()
