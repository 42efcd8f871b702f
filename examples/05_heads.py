"""Save draft heads, look at them, load them, decode with them, and export them for vLLM.

Usage:
    python examples/05_heads.py
    python examples/05_heads.py --model Qwen/Qwen2.5-0.5B-Instruct --heads FOLDER_OR_HUB_ID
"""

import tempfile
from pathlib import Path

import torch
from _tiny import load, model_names

from treespec import BestFirst, TreeDecoder
from treespec.heads import (
    HeadDrafter,
    MedusaConfig,
    MedusaHeads,
    export_heads,
    inspect_heads,
    load_heads,
)

PROMPT = "the wind went from the sea and the moon"
NEW_TOKENS = 32


def main() -> None:
    """Print what heads are, and what they save."""
    names = model_names(__doc__, "model", "heads")
    target, tokenizer = load(names.model)
    prompt = tokenizer(PROMPT, return_tensors="pt")
    with tempfile.TemporaryDirectory() as work:
        place = names.heads
        if place is None:  # untrained: each head says what the target's LM head says
            size = target.config.get_text_config(decoder=True).hidden_size
            config = MedusaConfig(num_heads=4, hidden_size=size, lm_head="each")
            place = MedusaHeads(config, target).save_pretrained(Path(work) / "heads")

        report = inspect_heads(place)
        print(f"{report.layout}, {report.num_parameters:,} parameters of {report.dtype}")
        print(f"needs {', '.join(report.needs)}")

        heads = load_heads(place, target)
        decoder = TreeDecoder(target, HeadDrafter(heads), tree=BestFirst(budget=15, depth=4))
        output = decoder.generate(**prompt, max_new_tokens=NEW_TOKENS, do_sample=False)
        plain = TreeDecoder(target, None).generate(
            **prompt, max_new_tokens=NEW_TOKENS, do_sample=False
        )
        same = torch.equal(output.sequences, plain.sequences)
        print(f"{output.stats[0].acceptance_length:.2f} tokens a pass, same text: {same}")

        folder = export_heads(heads, "vllm", Path(work) / "for_vllm")
        print("for vLLM:", ", ".join(sorted(path.name for path in folder.iterdir())))


if __name__ == "__main__":
    main()
