"""Which tokens of a chat are the assistant's own: only they, and their end token, are supervised.

A chat template that marks answers with `{% generation %}` is believed. With any other, the chat is
written once up to each answer and once through it, and what was added is the answer. Where even
that fails there is an error: a mask is never guessed.
"""

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from treespec.errors import DataError

Chat = Sequence[Mapping[str, str]]

_MARKS_ANSWERS = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True, slots=True)
class MaskedText:
    """Tokens, and which of them are supervised.

    Attributes:
        tokens: ids of the L tokens.
        spans: pairs of start and end, in order; the tokens in between are the assistant's.
    """

    tokens: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring tokens that are all supervised, or none of them.

    Attributes:
        text: what they say.
        is_supervised: whether they are.
    """

    text: str
    is_supervised: bool


def mask_chat(
    tokenizer: PreTrainedTokenizerBase, messages: Chat, end_ids: Collection[int] = ()
) -> list[MaskedText]:
    """A chat as tokens, the assistant's marked.

    Args:
        tokenizer: the target's, with a chat template.
        messages: dictionaries with role and content.
        end_ids: tokens that end an answer, besides the tokenizer's special ones.

    Returns:
        One text; more where the template writes an answer otherwise once something follows it,
        as those do that drop earlier reasoning: then the earlier text comes first.

    Raises:
        DataError: if it cannot be told which tokens are the assistant's.
    """
    ends = _ends(tokenizer, end_ids)
    texts: list[MaskedText] = []
    if _MARKS_ANSWERS.search(template_of(tokenizer)):
        texts = _by_marks(tokenizer, messages, ends)
    if not any(text.spans for text in texts):
        texts = _by_prefixes(tokenizer, messages, ends)
    for text in texts:
        if sum(end - start for start, end in text.spans) == len(text.tokens):
            raise DataError(
                "the chat template gives every token to the assistant, so nothing tells answers "
                "from prompts; mend its {% generation %} blocks, or give another template"
            )
    return texts


def extended(texts: Sequence[MaskedText], longer: MaskedText) -> list[MaskedText]:
    """Texts with one more answer: the last text goes on if `longer` begins with all its answers."""
    if texts:
        last = texts[-1]
        same = common_prefix(last.tokens, longer.tokens)
        if not last.spans or same >= last.spans[-1][1]:
            return [*texts[:-1], MaskedText(longer.tokens, last.spans + longer.spans)]
    return [*texts, longer]


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    for place, (first, second) in enumerate(zip(one, other, strict=False)):
        if first != second:
            return place
    return min(len(one), len(other))


def render(
    tokenizer: PreTrainedTokenizerBase, messages: Chat, *, answer_follows: bool = False
) -> str:
    """A chat as the template writes it.

    Raises:
        DataError: if there is no template, or it refuses the messages.
    """
    template_of(tokenizer)
    chat: Any = [dict(message) for message in messages]
    try:
        text = tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=answer_follows
        )
    except (TemplateError, TypeError, ValueError) as error:
        raise DataError(f"the chat template refuses the messages: {error}") from error
    return str(text)


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Tokens of what a template wrote, which has its special tokens already."""
    return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]


def template_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """The chat template.

    Raises:
        DataError: if there is none.
    """
    if not tokenizer.chat_template:
        raise DataError(
            "the tokenizer has no chat template, so it cannot be told what the assistant says; "
            "give prompts of one turn, or rows of `text` for the target to continue"
        )
    return str(tokenizer.get_chat_template())


def hash_of_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """SHA-256 of the chat template; None without one."""
    if not tokenizer.chat_template:
        return None
    return hashlib.sha256(template_of(tokenizer).encode()).hexdigest()


def closing_token(tokenizer: PreTrainedTokenizerBase, end_ids: Collection[int] = ()) -> int | None:
    """The token that the template ends an answer with; None if it ends without one."""
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    text = mask_chat(tokenizer, chat, end_ids)[-1]
    last = text.tokens[text.spans[-1][1] - 1] if text.spans else None
    return last if last in _ends(tokenizer, end_ids) else None


def runs(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], supervised: Sequence[bool]
) -> list[Run]:
    """What the tokens say, cut wherever supervision begins or ends; for showing a mask."""
    found: list[Run] = []
    start = 0
    for place in range(1, len(tokens) + 1):
        if place == len(tokens) or supervised[place] != supervised[start]:
            text = tokenizer.decode(list(tokens[start:place]), skip_special_tokens=False)
            found.append(Run(str(text), bool(supervised[start])))
            start = place
    return found


def stretches(flags: Sequence[int]) -> list[tuple[int, int]]:
    """Start and end of every stretch of true values, or of ones."""
    edges = [
        place
        for place, (before, after) in enumerate(zip([0, *flags], [*flags, 0], strict=True))
        if bool(before) != bool(after)
    ]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _by_marks(
    tokenizer: PreTrainedTokenizerBase, messages: Chat, ends: Collection[int]
) -> list[MaskedText]:
    """What `{% generation %}` blocks hold; nothing where the tokenizer knows no offsets."""
    chat: Any = [dict(message) for message in messages]
    try:
        output: Any = tokenizer.apply_chat_template(
            chat, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
    except TemplateError as error:
        raise DataError(f"the chat template refuses the messages: {error}") from error
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        return []
    tokens = tuple(int(token) for token in output["input_ids"])
    spans = []
    for start, end in stretches(output["assistant_masks"]):
        own = _end_of_answer(tokenizer, tokens[:end], start, ends)
        # Many templates write the end token behind the block.
        if own == end < len(tokens) and tokens[end - 1] not in ends and tokens[end] in ends:
            own += 1
        spans.append((start, own))
    return [MaskedText(tokens, tuple(spans))]


def _by_prefixes(
    tokenizer: PreTrainedTokenizerBase, messages: Chat, ends: Collection[int]
) -> list[MaskedText]:
    """What writing each answer adds to the chat before it."""
    texts: list[MaskedText] = []
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = render(tokenizer, messages[:place], answer_follows=True)
        through = render(tokenizer, messages[: place + 1])
        if not through.startswith(before):
            raise DataError(
                f"the chat template writes message {place + 1} so that the chat before it is no "
                "prefix, and has no {% generation %} blocks; give a template that marks answers "
                "with them, or let the target answer anew"
            )
        prompt, tokens = encode(tokenizer, before), encode(tokenizer, through)
        start = common_prefix(prompt, tokens)
        if start < len(prompt):  # a token that is half prompt, half answer
            start += 1
        end = _end_of_answer(tokenizer, tokens, start, ends)
        spans = ((start, end),) if start < end else ()
        texts = extended(texts, MaskedText(tuple(tokens), spans))
    return texts


def _ends(tokenizer: PreTrainedTokenizerBase, end_ids: Collection[int]) -> set[int]:
    """Tokens that may end an answer."""
    return {*end_ids, *(int(token) for token in tokenizer.all_special_ids)}


def _end_of_answer(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], start: int, ends: Collection[int]
) -> int:
    """Where the answer ends that begins at `start`: behind its end token, if it has one.

    What a template writes behind the end token, as a line break, is not the assistant's.
    """
    end = len(tokens)
    for place in range(len(tokens) - 1, start - 1, -1):
        if tokens[place] in ends:
            end = place + 1
        elif str(tokenizer.decode([tokens[place]])).strip():
            break
    return end
