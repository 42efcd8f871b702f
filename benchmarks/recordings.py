"""Recorded answers of a target: what it said, and its most probable tokens at every position.

Recording needs the model and takes minutes; everything that is measured on recordings afterwards
takes seconds and is exactly repeatable.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from benchmarks.prompts import Prompt

_Item = TypeVar("_Item")

TOP = 8
_LOGIT_CHUNK = (
    64  # positions whose logits are ranked at once: bounds the memory for large vocabularies
)


@dataclass(frozen=True, slots=True)
class Recording:
    """One prompt, its greedy answer, and the target's opinion at every position of both.

    Attributes:
        category: the prompt's category.
        prompt: ids of the prompt, `[P]`.
        answer: ids of the answer, `[A]`; ends with the token that ended it, if one did.
        top_ids: the target's most probable next tokens after each of the P + A tokens, most
            probable first.
        top_log_probs: their log-probabilities over the whole vocabulary.
    """

    category: str
    prompt: Int[Tensor, " P"]
    answer: Int[Tensor, " A"]
    top_ids: Int[Tensor, "PA K"]
    top_log_probs: Float[Tensor, "PA K"]

    def save(self, path: Path) -> None:
        """Write an `.npz` file."""
        np.savez_compressed(
            path,
            category=self.category,
            prompt=self.prompt.numpy(),
            answer=self.answer.numpy(),
            top_ids=self.top_ids.to(torch.int32).numpy(),
            top_log_probs=self.top_log_probs.numpy(),
        )

    @classmethod
    def load(cls, path: Path) -> "Recording":
        """Read a file that `save` wrote."""
        with np.load(path) as parts:
            return cls(
                category=str(parts["category"]),
                prompt=torch.from_numpy(parts["prompt"]),
                answer=torch.from_numpy(parts["answer"]),
                top_ids=torch.from_numpy(parts["top_ids"]).long(),
                top_log_probs=torch.from_numpy(parts["top_log_probs"]),
            )


def record(
    model_path: str, prompts: Sequence[Prompt], *, new_tokens: int, batch_size: int
) -> Iterator[Recording]:
    """Answer the prompts greedily in left-padded batches, then score each text in one forward.

    Short prompts come first, so that little of a batch is padding.

    Args:
        model_path: name or folder of the target.
        prompts: what to answer.
        new_tokens: most tokens of an answer.
        batch_size: prompts answered together.
    """
    tokenizer = AutoTokenizer.from_pretrained(model_path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.bfloat16).eval()
    ordered = sorted(prompts, key=lambda prompt: prompt.input_ids.shape[1])
    for batch in _chunks(ordered, batch_size):
        ids = [prompt.input_ids[0].tolist() for prompt in batch]
        padded = tokenizer.pad({"input_ids": ids}, return_tensors="pt")
        with torch.inference_mode():
            texts = model.generate(**padded, do_sample=False, max_new_tokens=new_tokens)
        answers = texts[:, padded["input_ids"].shape[1] :]
        for prompt, answer in zip(batch, answers, strict=True):
            yield _recording(model, prompt, _until_end(answer, model))


def _chunks(items: list[_Item], size: int) -> Iterator[list[_Item]]:
    """Consecutive parts of a list."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _recording(model: PreTrainedModel, prompt: Prompt, answer: Int[Tensor, " A"]) -> Recording:
    """A prompt and its answer with the target's opinion on both."""
    ids = prompt.input_ids[0]
    top_log_probs, top_ids = top_of_text(model, torch.cat([ids, answer]))
    return Recording(
        category=prompt.category,
        prompt=ids,
        answer=answer,
        top_ids=top_ids,
        top_log_probs=top_log_probs,
    )


def _until_end(answer: Int[Tensor, " A"], model: PreTrainedModel) -> Int[Tensor, " B"]:
    """The answer up to and with its first end token, without the padding after it."""
    ends = torch.tensor(model.generation_config.eos_token_id).reshape(-1)
    found = torch.isin(answer, ends).nonzero()
    return answer[: int(found[0]) + 1].clone() if len(found) else answer.clone()


@torch.inference_mode()
def top_of_text(
    model: PreTrainedModel, ids: Int[Tensor, " L"]
) -> tuple[Float[Tensor, "L K"], Int[Tensor, "L K"]]:
    """Log-probabilities and ids of the most probable tokens after each position of a text."""
    logits = model(input_ids=ids[None], use_cache=False).logits[0]
    tops = [
        part.float().log_softmax(dim=-1).topk(TOP, dim=-1) for part in logits.split(_LOGIT_CHUNK)
    ]
    return torch.cat([top.values for top in tops]), torch.cat([top.indices for top in tops])
