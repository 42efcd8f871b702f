"""A prompt while it is being answered, turn by turn."""

from collections.abc import Collection
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from treespec.errors import DataError
from treespec.training.masks import MaskedText, encode, extended, mask_chat, render
from treespec.training.prompts import Prompt


@dataclass(frozen=True, slots=True)
class Answer:
    """What the target said to one request.

    Attributes:
        tokens: its tokens, the end token included.
        text: the same without the end token, for the turns that follow.
        states: hidden states of request and answer, if they were asked for; those of the last
            token may be missing.
    """

    tokens: tuple[int, ...]
    text: str
    states: Float[Tensor, "_L F"] | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """One text of a finished conversation.

    Attributes:
        text: its tokens and which are supervised.
        states: hidden states at its tokens; None if not asked for.
    """

    text: MaskedText
    states: Float[Tensor, "_L F"] | None = None


class Conversation:
    """A prompt, the answers so far, and what they come to as training texts.

    Without a chat template, a prompt of a single user's message is continued as it stands.

    Args:
        prompt: what is to be answered.
        tokenizer: the target's.

    Raises:
        DataError: if it needs a chat template, and there is none.
    """

    def __init__(self, prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> None:
        self.prompt = prompt
        self.pieces: list[Piece] = []
        self.num_answers = 0
        self._tokenizer = tokenizer
        self._messages: list[dict[str, str]] = []
        self._written = ""
        self._is_chat = prompt.text is None and bool(tokenizer.chat_template)
        if prompt.text is None and not self._is_chat and not _is_single(prompt):
            raise DataError(
                f"prompt {prompt.id!r} has several messages, but the tokenizer has no chat "
                "template; give prompts of one turn, or a chat model"
            )
        self.request = self._next_request()

    @property
    def is_finished(self) -> bool:
        """Whether every turn is answered."""
        return self.num_answers >= max(len(self.prompt.turns), 1)

    @property
    def plain_text(self) -> str | None:
        """What to continue as it stands; None for a chat."""
        if self._is_chat:
            return None
        prompt = self.prompt
        return prompt.turns[0].request[0].content if prompt.text is None else prompt.text

    @property
    def messages(self) -> list[dict[str, str]]:
        """The chat up to the answer that is wanted."""
        return list(self._messages)

    def take(self, answer: Answer) -> None:
        """Take in the next answer."""
        tokens = (*self.request, *answer.tokens)
        text = MaskedText(tokens, ((len(self.request), len(tokens)),) if answer.tokens else ())
        texts = extended([piece.text for piece in self.pieces], text)
        # States of a longer text cover those of the text that it goes on from.
        self.pieces = [*self.pieces[: len(texts) - 1], Piece(texts[-1], answer.states)]
        self.num_answers += 1
        if not self.is_finished:
            self._messages.append({"role": "assistant", "content": answer.text})
            self.request = self._next_request()

    def tokens_of(self, text: str) -> list[int]:
        """Tokens of an answer that is known as text, as they would stand behind the request."""
        whole = self._encode(self._written + text)
        if whole[: len(self.request)] == self.request:
            return whole[len(self.request) :]
        return encode(self._tokenizer, text)

    def stop(self) -> None:
        """Leave the turns that are left unanswered."""
        self.num_answers = max(len(self.prompt.turns), 1)

    def _next_request(self) -> list[int]:
        """Tokens that the next answer follows."""
        text = self.plain_text
        if text is None:
            self._messages += [one.as_dict() for one in self.prompt.turns[self.num_answers].request]
            text = render(self._tokenizer, self._messages, answer_follows=True)
        self._written = text
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        """Tokens of a request; a template has written the special ones, a plain text has none."""
        if self._is_chat:
            return encode(self._tokenizer, text)
        return [int(token) for token in self._tokenizer(text)["input_ids"]]


def existing_answers(
    prompt: Prompt, tokenizer: PreTrainedTokenizerBase, end_ids: Collection[int] = ()
) -> list[MaskedText]:
    """A conversation as the data have it, the assistant's tokens marked.

    Raises:
        DataError: if it has no answers, or they cannot be told from the rest.
    """
    answered = [place for place, turn in enumerate(prompt.turns) if turn.answer is not None]
    if not answered:
        raise DataError(
            f"prompt {prompt.id!r} has no answer of an assistant; let the target answer it, "
            "or leave it out"
        )
    messages: list[dict[str, str]] = []
    for turn in prompt.turns[: answered[-1] + 1]:
        messages += [one.as_dict() for one in turn.request]
        if turn.answer is not None:
            messages.append({"role": "assistant", "content": turn.answer})
    try:
        return mask_chat(tokenizer, messages, end_ids)
    except DataError as error:
        raise DataError(f"prompt {prompt.id!r}: {error}") from error


def _is_single(prompt: Prompt) -> bool:
    return len(prompt.turns) == 1 and len(prompt.turns[0].request) == 1
