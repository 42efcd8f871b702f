"""A fingerprint of the target that heads were trained for: enough to notice another one."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from treespec.errors import CheckpointError, UnsupportedTargetError

_SAMPLES = 16  # numbers taken of each weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What tells one target from another.

    Attributes:
        model_type: architecture, as its config calls it.
        hidden_size: H.
        vocab_size: number of its logits.
        num_hidden_layers: layers.
        tokenizer: hash of the tokenizer's vocabulary; None if it was not known.
        weights: hash of some numbers of every weight, rounded to bfloat16, so that it does not
            depend on the type that they are loaded in.
    """

    model_type: str
    hidden_size: int
    vocab_size: int
    num_hidden_layers: int
    tokenizer: str | None
    weights: str | None

    @classmethod
    def of(
        cls, target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None
    ) -> "Fingerprint":
        """That of a target; without a tokenizer the one is looked at that its folder has.

        Raises:
            UnsupportedTargetError: if the target has no LM head.
        """
        config: Any = target.config.get_text_config(decoder=True)
        head: Any = target.get_output_embeddings()
        if head is None:
            raise UnsupportedTargetError(
                f"{type(target).__name__} has no LM head, so no heads can belong to it; load it "
                "with AutoModelForCausalLM"
            )
        return cls(
            model_type=str(config.model_type),
            hidden_size=int(config.hidden_size),
            vocab_size=int(head.weight.shape[0]),
            num_hidden_layers=int(config.num_hidden_layers),
            tokenizer=_hash_of_tokenizer(target, tokenizer),
            weights=_hash_of_weights(target),
        )

    @classmethod
    def of_config(
        cls, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase
    ) -> "Fingerprint":
        """That of a target whose weights are somewhere else."""
        text: Any = config.get_text_config(decoder=True)
        return cls(
            model_type=str(text.model_type),
            hidden_size=int(text.hidden_size),
            vocab_size=int(text.vocab_size),
            num_hidden_layers=int(text.num_hidden_layers),
            tokenizer=_hash_of_vocabulary(tokenizer),
            weights=None,
        )

    @classmethod
    def from_dict(cls, values: object) -> "Fingerprint":
        """What `as_dict` gave.

        Raises:
            CheckpointError: if it is anything else.
        """
        names = {one.name for one in fields(cls)}
        if not isinstance(values, Mapping) or set(values) != names:
            raise CheckpointError(
                f"the fingerprint of the target in config.json must have {', '.join(sorted(names))}"
            )
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        """For a config."""
        return asdict(self)

    def contradictions(self, other: "Fingerprint") -> list[str]:
        """Why a target with the `other` fingerprint cannot be used, as parts of a sentence."""
        words = {
            "model_type": "architecture",
            "hidden_size": "hidden size",
            "vocab_size": "number of logits",
            "num_hidden_layers": "number of layers",
        }
        found = [
            f"{word} {getattr(other, name)} instead of {getattr(self, name)}"
            for name, word in words.items()
            if getattr(self, name) != getattr(other, name)
        ]
        if self.tokenizer and other.tokenizer and self.tokenizer != other.tokenizer:
            found.append("another tokenizer")
        return found

    def has_other_weights(self, other: "Fingerprint") -> bool:
        """Whether both are known and differ."""
        return None not in (self.weights, other.weights) and self.weights != other.weights


def _hash_of_tokenizer(
    target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
) -> str | None:
    if tokenizer is None and target.name_or_path:
        # Many kinds of error mean the same: nothing is known of the tokenizer.
        try:
            tokenizer = AutoTokenizer.from_pretrained(target.name_or_path, local_files_only=True)
        except (OSError, ValueError, ImportError, KeyError, AttributeError, TypeError):
            return None
    return None if tokenizer is None else _hash_of_vocabulary(tokenizer)


def _hash_of_vocabulary(tokenizer: PreTrainedTokenizerBase) -> str:
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    return _digest(json.dumps(vocabulary).encode())


@torch.no_grad()
def _hash_of_weights(target: PreTrainedModel) -> str | None:
    samples: dict[torch.device, list[Tensor]] = {}
    order: list[tuple[torch.device, int]] = []
    for weight in target.parameters():
        if weight.is_meta:
            return None
        if not weight.is_floating_point() or not weight.numel():
            continue
        last = weight.numel() - 1
        places = [last * sample // (_SAMPLES - 1) for sample in range(_SAMPLES)]
        index = torch.tensor(places, device=weight.device)
        taken = weight.detach().reshape(-1)[index].to(torch.bfloat16)
        samples.setdefault(weight.device, []).append(taken)
        order.append((weight.device, len(samples[weight.device]) - 1))
    if not order:
        return None
    # One transfer per device.
    fetched = {device: torch.stack(taken).cpu() for device, taken in samples.items()}
    rows = torch.stack([fetched[device][row] for device, row in order])
    return _digest(rows.view(torch.int16).numpy().tobytes())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
