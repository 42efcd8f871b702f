"""A model card: what the heads are, for whom, and how to use them."""

import json
from collections.abc import Mapping

from treespec.heads.formats.checkpoint import Checkpoint, Recipe


def model_card(checkpoint: Checkpoint, acceptance: Mapping[str, float]) -> str:
    """The README of a repository of heads."""
    recipe = checkpoint.recipe
    parts = [_front_matter(recipe), _introduction(checkpoint)]
    if acceptance:
        rows = [f"| {name} | {length:.2f} |" for name, length in acceptance.items()]
        parts.append("\n".join(["| text | tokens a forward pass |", "|---|---|", *rows]))
    parts.append(_usage(recipe))
    return "\n\n".join(parts) + "\n"


def sizes_of(recipe: Recipe) -> dict[str, str]:
    """Names and values of what one asks first about heads."""
    settings = recipe.settings
    sizes = {}
    if "num_heads" in settings:
        sizes["heads"] = str(settings["num_heads"])
        sizes["layers of a head"] = str(settings["num_layers"])
        sizes["hidden size"] = str(settings["hidden_size"])
        lm_head = {"each": "one for each head", "target": "the target's"}[settings["lm_head"]]
    else:
        layer = settings["layer"]
        sizes["hidden size"] = str(layer.hidden_size)
        sizes["attention"] = (
            f"{layer.num_attention_heads} heads of {layer.head_dim}, "
            f"{layer.num_key_value_heads} for keys and values, rope_theta {layer.rope_theta:g}"
        )
        lm_head = {"own": "its own", "target": "the target's"}[settings["lm_head"]]
    sizes["LM head"] = lm_head
    if recipe.vocabulary is not None:
        sizes["draft vocabulary"] = f"{len(recipe.vocabulary):,} tokens"
    return sizes


def _front_matter(recipe: Recipe) -> str:
    lines = ["---", "library_name: treespec", "tags:", "- speculative-decoding"]
    lines.append(f"- {recipe.family}")
    if recipe.base_model and "/" in recipe.base_model:
        lines.append(f"base_model: {json.dumps(recipe.base_model)}")
    return "\n".join([*lines, "---"])


def _introduction(checkpoint: Checkpoint) -> str:
    recipe = checkpoint.recipe
    count = sum(tensor.numel() for tensor in checkpoint.tensors.values())
    sizes = {
        **sizes_of(recipe),
        "parameters": f"{count / 1e6:,.1f} million, {str(checkpoint.dtype).removeprefix('torch.')}",
    }
    rows = [f"| {name} | {value} |" for name, value in sizes.items()]
    whose = f" for `{recipe.base_model}`" if recipe.base_model else ""
    return "\n".join(
        [
            f"# {recipe.family.capitalize()} draft heads{whose}",
            "",
            "They guess the next tokens of this target, which checks its guesses in one forward "
            "pass: text as from the target alone, sooner.",
            "",
            "| | |",
            "|---|---|",
            *rows,
        ]
    )


def _usage(recipe: Recipe) -> str:
    target = recipe.base_model or "TARGET"
    return "\n".join(
        [
            "```python",
            "from transformers import AutoModelForCausalLM",
            "from treespec import TreeDecoder",
            "from treespec.heads import HeadDrafter, load_heads",
            "",
            f"target = AutoModelForCausalLM.from_pretrained({json.dumps(target)})",
            'heads = load_heads("THIS_REPOSITORY", target)',
            "decoder = TreeDecoder(target, HeadDrafter(heads))",
            "```",
        ]
    )
