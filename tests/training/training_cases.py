"""A tiny target, texts that it wrote itself, and short training runs on them."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from tests.families import build, family
from treespec.heads.formats.fingerprint import Fingerprint
from treespec.training.config import TrainConfig
from treespec.training.data import DataFolder, DataMeta, Example

VOCAB = 61
HIDDEN = 48
PROMPT = 4  # tokens of every prompt
FAMILIES = ("medusa", "hydra", "eagle3", "eagle")


@lru_cache(maxsize=1)
def tiny_target() -> PreTrainedModel:
    """Shared between tests, so do not change it."""
    return build(family("llama"), "sdpa", vocab_size=VOCAB, hidden_size=HIDDEN)


@lru_cache(maxsize=8)
def written_by_target(count: int, new_tokens: int, seed: int = 0) -> tuple[Example, ...]:
    """What the target says, greedily, to random prompts; all of it is supervised.

    No two prompts begin alike: what follows is decided at every place.
    """
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(1, VOCAB, (count, PROMPT), generator=generator)
    prompts[:, 0] = 1 + torch.randperm(VOCAB - 1, generator=generator)[:count]
    texts = tiny_target().generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return tuple(
        example(text, (PROMPT, len(text)), f"text-{row}") for row, text in enumerate(texts)
    )


def example(
    tokens: Sequence[int] | torch.Tensor, span: tuple[int, int], name: str = "a"
) -> Example:
    """A text with one supervised span."""
    ids = torch.as_tensor(tokens, dtype=torch.int64)
    supervised = torch.zeros(len(ids), dtype=torch.bool)
    supervised[slice(*span)] = True
    return Example(name, None, ids, supervised)


def ragged_examples(count: int = 24, seed: int = 0) -> tuple[Example, ...]:
    """Random texts of 5 to 30 tokens, each with a prompt that is not supervised."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        length = int(torch.randint(5, 31, (1,), generator=generator))
        tokens = torch.randint(1, VOCAB, (length,), generator=generator)
        found.append(example(tokens, (2, length), f"ragged-{number}"))
    return tuple(found)


def folder_of(examples: Sequence[Example], taps: tuple[int, ...] | None = None) -> DataFolder:
    """The examples as data of the tiny target; only their hidden states would be on disk."""
    meta = DataMeta(
        target="tiny",
        fingerprint=Fingerprint.of(tiny_target()),
        vocab_size=VOCAB,
        chat_template_sha256=None,
        taps=taps,
        hidden_dtype=None,
        options={},
    )
    return DataFolder(Path("nowhere"), meta, examples, {})


def settings(family: str = "medusa", **changes: Any) -> TrainConfig:
    """A run that is small and ends soon."""
    small: dict[str, Any] = {"batch_tokens": 64, "max_length": 32, "held_out": 0, "max_steps": 4}
    return TrainConfig(**{"family": family, **small, **changes})
