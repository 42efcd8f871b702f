"""Answers by a server that runs the target."""

from collections.abc import Collection
from threading import Lock
from typing import Any

from transformers import PreTrainedTokenizerBase

from treespec.training.answering import DistillOptions, seed_of
from treespec.training.conversations import Answer, Conversation
from treespec.training.masks import closing_token
from treespec.training.prompts import Prompt
from treespec.training.server import ChatServer, RequestRefusedError


class ServerAnswers:
    """A server that answers conversations, for many threads; the tokenizer serves them by turns.

    Args:
        server: where the target runs.
        tokenizer: its tokenizer.
        options: how.
        end_ids: tokens that end an answer, besides the tokenizer's special ones.

    Attributes:
        refusal: the last request that the server would not answer, if any.
    """

    def __init__(
        self,
        server: ChatServer,
        tokenizer: PreTrainedTokenizerBase,
        options: DistillOptions,
        end_ids: Collection[int],
    ) -> None:
        self.refusal: RequestRefusedError | None = None
        self._server = server
        self._tokenizer = tokenizer
        self._options = options
        self._lock = Lock()
        end = tokenizer.eos_token_id
        self._end = closing_token(tokenizer, end_ids) if tokenizer.chat_template else end

    def ask(self, prompt: Prompt) -> Conversation:
        """A prompt with every answer that the server gives."""
        with self._lock:
            conversation = Conversation(prompt, self._tokenizer)
        while not conversation.is_finished:
            text = conversation.plain_text
            settings: dict[str, Any] = {
                "max_new_tokens": self._options.max_new_tokens,
                "temperature": self._options.temperature,
                "seed": seed_of(conversation, self._options.seed),
            }
            try:
                if text is None:
                    said = self._server.chat(conversation.messages, **settings)
                else:
                    said = self._server.complete(text, **settings)
            except RequestRefusedError as error:
                self.refusal = error
                conversation.stop()
                break
            with self._lock:
                tokens = conversation.tokens_of(said.text)
                if said.is_ended and self._end is not None:
                    tokens.append(self._end)
                conversation.take(Answer(tuple(tokens), said.text))
        return conversation
