"""Answers by the target itself, in batches, through the tree decoder."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from treespec.decoder import TreeDecoder
from treespec.errors import ConfigError
from treespec.heads.base import last_tap
from treespec.settings import default_drafter
from treespec.training.capture import CapturingDrafter, states_of
from treespec.training.conversations import Answer, Conversation
from treespec.training.padding import left_padded

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillOptions:
    """How answers are made.

    Attributes:
        max_new_tokens: most tokens of an answer, at least 1.
        batch_size: conversations that are answered together, at least 1.
        temperature: 0 for the most probable answer; otherwise answers are sampled.
        seed: of sampled answers, together with the id of each prompt.
        taps: indices of `hidden_states` to store, negative ones from the end; () for none.
        hidden_dtype: type to store them in, "float32", "bfloat16" or "float16"; None for the
            target's own.
        keep_answers: use the answers that the prompts have, and write none.
    """

    max_new_tokens: int = 512
    batch_size: int = 8
    temperature: float = 0.0
    seed: int = 0
    taps: tuple[int, ...] = ()
    hidden_dtype: str | None = None
    keep_answers: bool = False

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: naming the option that is outside its range.
        """
        for name in ("max_new_tokens", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature must be at least 0, got {self.temperature}")
        if self.hidden_dtype is not None and self.hidden_dtype not in _DTYPES:
            raise ConfigError(
                f"hidden_dtype must be one of {', '.join(_DTYPES)}, got {self.hidden_dtype!r}"
            )
        if self.hidden_dtype is not None and not self.taps:
            raise ConfigError("hidden_dtype is given, but no taps; give both or neither")

    def recorded(self) -> dict[str, Any]:
        """What examples of one folder must have in common, for `data.json`."""
        if self.keep_answers:
            return {"answers": "kept"}
        return {
            "answers": "target",
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
        }


class TargetAnswers:
    """A target that answers conversations, or runs texts that exist.

    Args:
        target: the model.
        tokenizer: its tokenizer.
        options: how.

    Attributes:
        decoder: what decodes.
        taps: indices of the hidden states that are kept; () for none.
        hidden_dtype: name of the type that they are kept in; None without taps.

    Raises:
        ConfigError: for taps that the target does not have.
    """

    def __init__(
        self, target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, options: DistillOptions
    ) -> None:
        self.taps = _resolved(options.taps, last_tap(target))
        self._options = options
        self._tokenizer = tokenizer
        self._dtype = target.dtype if self.taps else None
        if options.hidden_dtype is not None:
            self._dtype = _DTYPES[options.hidden_dtype]
        self.hidden_dtype = None if self._dtype is None else str(self._dtype).split(".")[-1]
        self._capture = (
            CapturingDrafter(default_drafter(), self.taps, self._dtype) if self.taps else None
        )
        self.decoder = TreeDecoder(target, self._capture or ...)

    def answer(self, conversations: Sequence[Conversation]) -> None:
        """Answer every turn that there is room for; those without are left unanswered."""
        live = list(conversations)
        while live:
            for one in live:
                if not self._has_room(one.request):
                    one.stop()
            live = [one for one in live if not one.is_finished]
            for group in self._groups(live):
                for one, answer in zip(group, self._generate(group), strict=True):
                    one.take(answer)
            live = [one for one in live if not one.is_finished]

    def states(self, texts: Sequence[Sequence[int]]) -> list[Float[Tensor, "_L F"] | None]:
        """Hidden states of texts that exist; None without taps."""
        if not self.taps:
            return [None] * len(texts)
        tensors = [torch.tensor(list(text), dtype=torch.int64) for text in texts]
        switches = self.decoder.target.support.rope_switch is not None
        groups = [[tensor] for tensor in tensors] if switches else [tensors]
        found: list[Float[Tensor, "_L F"] | None] = []
        for group in groups:
            found += states_of(self.decoder.target, group, self.taps, self._dtype)
        return found

    def fits(self, length: int) -> bool:
        """Whether the target has positions for so many tokens."""
        limit = self.decoder.target.max_positions
        return limit is None or length <= limit

    def _has_room(self, request: Sequence[int]) -> bool:
        return len(request) > 0 and self.fits(len(request) + 1)

    def _groups(self, live: Sequence[Conversation]) -> list[list[Conversation]]:
        """Conversations that can be decoded together."""
        if not live:
            return []
        switch = self.decoder.target.support.rope_switch
        longest = max(len(one.request) for one in live) + self._options.max_new_tokens
        if switch is not None and longest > switch:
            return [[one] for one in live]
        return [list(live)]

    def _generate(self, group: Sequence[Conversation]) -> list[Answer]:
        """The next answer of each."""
        block, mask = left_padded([torch.tensor(one.request) for one in group])
        width = block.shape[1]
        device = self.decoder.target.device
        output = self.decoder.generate(
            block.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=self._options.max_new_tokens,
            pad_token_id=0,  # rows end where their counts say, whatever stands behind
            **self._sampling(group),
        )
        answers = []
        for row, stats in enumerate(output.stats):
            tokens: list[int] = output.sequences[row, width : width + stats.emitted].tolist()
            spoken = tokens[:-1] if stats.finish_reason == "eos" else tokens
            text = str(self._tokenizer.decode(spoken, skip_special_tokens=True))
            states = None if self._capture is None else self._capture.states(row)
            answers.append(Answer(tuple(tokens), text, states))
        return answers

    def _sampling(self, group: Sequence[Conversation]) -> dict[str, Any]:
        if self._options.temperature == 0:
            return {"do_sample": False}
        return {
            "do_sample": True,
            "temperature": self._options.temperature,
            "seed": [seed_of(one, self._options.seed) for one in group],
        }


def seed_of(conversation: Conversation, seed: int) -> int:
    """Seed of the next answer, which depends on nothing but the prompt and its turn."""
    name = f"{seed}:{conversation.num_answers}:{conversation.prompt.id}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 1


def _resolved(taps: Sequence[int], last: int) -> tuple[int, ...]:
    """Taps without negative ones."""
    resolved = tuple(tap + last + 1 if tap < 0 else tap for tap in taps)
    for given, tap in zip(taps, resolved, strict=True):
        if not 0 <= tap <= last:
            raise ConfigError(
                f"tap {given} does not exist: the target has hidden states 0 to {last}, or "
                f"{-last - 1} to -1 from the end"
            )
    if len(set(resolved)) < len(resolved):
        raise ConfigError(f"taps {', '.join(map(str, taps))} name a hidden state twice")
    return resolved
