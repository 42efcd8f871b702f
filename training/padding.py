"""Prompts side by side, as `generate` takes them."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor


def left_padded(
    prompts: Sequence[Int[Tensor, " _L"]],
) -> tuple[Int[Tensor, "B W"], Int[Tensor, "B W"]]:
    """Prompts padded on the left with 0, and which of the tokens are real, on the CPU."""
    width = max(len(prompt) for prompt in prompts)
    block = torch.zeros(len(prompts), width, dtype=torch.int64)
    mask = torch.zeros_like(block)
    for row, prompt in enumerate(prompts):
        block[row, width - len(prompt) :] = prompt
        mask[row, width - len(prompt) :] = 1
    return block, mask
