"""A server that speaks OpenAI's protocol, as vLLM, SGLang, llama.cpp and others do."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from treespec.errors import ConfigError, ServerError

_AGAIN = frozenset({408, 409, 425, 429})
_REFUSED = frozenset({400, 413, 422})
_LONGEST_PAUSE_S = 60.0


class RequestRefusedError(ServerError):
    """A server will not answer this request, but may answer others."""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """What a server said.

    Attributes:
        text: the answer.
        is_ended: whether the model ended it, not the limit of tokens.
    """

    text: str
    is_ended: bool


class ChatServer:
    """A server that answers chats; may be used from several threads.

    Args:
        base_url: where its API is, such as "http://localhost:8000/v1".
        model: what it calls the model.
        api_key: sent as a bearer token, if given.
        timeout_s: seconds to wait for one answer.
        attempts: how often a request is made before giving up.
        pause_s: seconds before the second attempt; doubled for each further one.

    Raises:
        ConfigError: if the address is none of the web.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        attempts: int = 6,
        pause_s: float = 1.0,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(f"base_url must begin with http:// or https://, got {base_url!r}")
        self.base_url = base_url.rstrip("/")
        self.model = model
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._pause_s = pause_s

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        max_new_tokens: int,
        temperature: float,
        seed: int,
    ) -> ServerAnswer:
        """The assistant's next message.

        Raises:
            RequestRefusedError: if the server will not answer this chat.
            ServerError: if it cannot be reached, or answers something else.
        """
        body = {"messages": [dict(one) for one in messages], **_settings(temperature, seed)}
        choice = self._choice("chat/completions", body, max_new_tokens)
        message = choice.get("message")
        if not isinstance(message, Mapping):
            raise ServerError(f"{self.base_url} gave a choice without a message")
        if message.get("reasoning_content") or message.get("reasoning"):
            raise ServerError(
                f"{self.base_url} hands reasoning over apart from the answer, so the model's own "
                "text is not known; start the server without a reasoning parser"
            )
        return _answer(choice, message.get("content"))

    def complete(
        self, text: str, *, max_new_tokens: int, temperature: float, seed: int
    ) -> ServerAnswer:
        """The continuation of a text; raises as `chat`."""
        body = {"prompt": text, **_settings(temperature, seed)}
        choice = self._choice("completions", body, max_new_tokens)
        return _answer(choice, choice.get("text"))

    def _choice(self, path: str, body: Mapping[str, Any], max_new_tokens: int) -> dict[str, Any]:
        """The only choice of the reply to a request."""
        body = {"model": self.model, "max_tokens": max_new_tokens, **body}
        reply = self._post(f"{self.base_url}/{path}", json.dumps(body).encode())
        try:
            choice = json.loads(reply)["choices"][0]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ServerError(
                f"{self.base_url}/{path} does not answer as OpenAI's API does; give the address "
                "that ends in /v1"
            ) from error
        if not isinstance(choice, dict):
            raise ServerError(f"{self.base_url}/{path} gave a choice that is no object")
        return choice

    def _post(self, url: str, body: bytes) -> bytes:
        """The reply to a request, made again while the server is busy or away."""
        headers = {"Content-Type": "application/json"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        pause_s = self._pause_s
        for attempt in range(1, self._attempts + 1):
            request = urllib.request.Request(url, data=body, headers=headers)
            asked_s: float | None = None
            try:
                with urllib.request.urlopen(request, timeout=self._timeout_s) as reply:
                    content: bytes = reply.read()
                    return content
            except urllib.error.HTTPError as error:
                reason = f"{error.code} {_excerpt(error)}"
                if error.code in _REFUSED:
                    raise RequestRefusedError(f"{url} refused a request: {reason}") from error
                if error.code < 500 and error.code not in _AGAIN:
                    raise ServerError(
                        f"{url} answers {reason}; check the address, the name of the model "
                        f"({self.model!r}) and the key"
                    ) from error
                asked_s = _seconds(error.headers.get("Retry-After"))
            except (OSError, HTTPException) as error:
                reason = str(error) or type(error).__name__
            if attempt < self._attempts:
                time.sleep(min(pause_s if asked_s is None else asked_s, _LONGEST_PAUSE_S))
                pause_s *= 2
        raise ServerError(
            f"{url} gave no answer in {self._attempts} attempts: {reason}; what was answered so "
            "far is kept, so run the same command again once the server is up"
        )


def _settings(temperature: float, seed: int) -> dict[str, Any]:
    """What decides how an answer is drawn."""
    return {"temperature": temperature} | ({"seed": seed} if temperature > 0 else {})


def _answer(choice: Mapping[str, Any], text: object) -> ServerAnswer:
    """An answer from a choice."""
    reason = choice.get("finish_reason")
    if reason not in ("stop", "length"):
        raise RequestRefusedError(f"the server ended an answer because of {reason!r}")
    return ServerAnswer(text if isinstance(text, str) else "", reason == "stop")


def _excerpt(error: urllib.error.HTTPError) -> str:
    """The beginning of what a server says about an error."""
    try:
        return error.read(300).decode("utf-8", "replace").strip()
    except (OSError, HTTPException):
        return ""


def _seconds(value: str | None) -> float | None:
    """Seconds from a header; a date is left aside."""
    return float(value) if value is not None and value.strip().isdigit() else None
