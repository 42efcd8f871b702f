"""A server can be the target; what it fails at is asked again, or told."""

from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from tests.training.chats import asks, chat_model, chat_tokenizer
from tests.training.stub_server import Reply, Stub, said, stub_server
from treespec.errors import ConfigError, ServerError
from treespec.heads.formats.fingerprint import Fingerprint
from treespec.training.answering import DistillOptions
from treespec.training.distill import DistillReport, distill_from_server
from treespec.training.prompts import Prompt
from treespec.training.server import ChatServer

PROMPTS = [asks("a", "hi", "and"), asks("b", "why"), asks("c", "how")]


def client(stub: Stub, **settings: Any) -> ChatServer:
    """One that does not wait long."""
    return ChatServer(stub.url, "tiny", **{"attempts": 3, "pause_s": 0.0, **settings})


def run(stub: Stub, out: Path, prompts: list[Prompt] = PROMPTS, **options: Any) -> DistillReport:
    """Distil from the server."""
    tokenizer = chat_tokenizer()
    fingerprint = Fingerprint.of_config(chat_model().config, tokenizer)
    return distill_from_server(
        client(stub), tokenizer, fingerprint, prompts, out, DistillOptions(**options)
    )


def repeat(_: int, body: dict[str, Any]) -> Reply:
    """Says what the user said last."""
    return said(body["messages"][-1]["content"] if "messages" in body else body["prompt"])


def test_every_turn_is_answered_and_the_end_token_added(tmp_path: Path):
    with stub_server(repeat) as stub:
        report = run(stub, tmp_path)
    tokenizer = chat_tokenizer()
    by_id = {one.id: one for one in report.data.examples}
    assert set(by_id) == {"a", "b", "c"}
    assert tokenizer.decode(by_id["a"].tokens) == ("<user>hi\n<bot>hi</s>\n<user>and\n<bot>and</s>")
    assert tokenizer.decode(by_id["a"].tokens[by_id["a"].supervised]) == "hi</s>and</s>"
    report.data.require_target(chat_model(), tokenizer)


def test_an_answer_that_was_cut_off_gets_no_end_token(tmp_path: Path):
    with stub_server(lambda *_: said("long", "length")) as stub:
        (one,) = run(stub, tmp_path, PROMPTS[1:2]).data.examples
    assert chat_tokenizer().decode(one.tokens[one.supervised]) == "long"


def test_a_request_carries_what_decides_the_answer(tmp_path: Path):
    with stub_server(repeat) as stub:
        run(stub, tmp_path, PROMPTS[1:2], temperature=0.5, max_new_tokens=9)
        client(stub, api_key="secret").complete("x", max_new_tokens=1, temperature=0.0, seed=1)
    (chat_path, chat), (text_path, text) = stub.requests
    assert (chat_path, text_path) == ("/v1/chat/completions", "/v1/completions")
    assert chat["messages"] == [{"role": "user", "content": "why"}]
    assert (chat["model"], chat["max_tokens"], chat["temperature"]) == ("tiny", 9, 0.5)
    assert isinstance(chat["seed"], int)
    assert "seed" not in text
    assert stub.keys == [None, "Bearer secret"]


def test_a_text_is_continued(tmp_path: Path):
    with stub_server(lambda *_: said(" upon a time")) as stub:
        (one,) = run(stub, tmp_path, [Prompt("t", None, text="Once")]).data.examples
    tokenizer = chat_tokenizer()
    assert tokenizer.decode(one.tokens) == "Once upon a time</s>"
    assert tokenizer.decode(one.tokens[one.supervised]) == " upon a time</s>"


def test_a_busy_server_is_asked_again(tmp_path: Path):
    def busy(number: int, body: dict[str, Any]) -> Reply:
        return (503 if number == 0 else 429, {}) if number < 2 else repeat(number, body)

    with stub_server(busy) as stub:
        report = run(stub, tmp_path, PROMPTS[1:2])
    assert report.num_added == 1
    assert len(stub.requests) == 3


def test_requests_are_under_way_together(tmp_path: Path):
    together = Barrier(3, timeout=20)

    def wait(number: int, body: dict[str, Any]) -> Reply:
        if number < 3:
            together.wait()  # fails, and with it the reply, unless three come at once
        return repeat(number, body)

    with stub_server(wait) as stub:
        assert run(stub, tmp_path, batch_size=3).num_added == 3


def test_a_prompt_that_is_refused_is_skipped(tmp_path: Path):
    def pick(number: int, body: dict[str, Any]) -> Reply:
        is_bad = body["messages"][-1]["content"] == "why"
        return (400, {"error": "too long"}) if is_bad else repeat(number, body)

    with stub_server(pick) as stub:
        report = run(stub, tmp_path)
    assert (report.num_added, report.num_skipped) == (2, 1)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((400, {"error": "no such option"}), "refused a request: 400.*no such option"),
        ((404, {"error": "no model"}), "answers 404.*name of the model"),
        ((401, {}), "answers 401"),
        ((500, {}), "no answer in 3 attempts: 500"),
        ((200, {"hello": "world"}), "does not answer as OpenAI's API does"),
        (said("x", "content_filter"), "because of 'content_filter'"),
        (said("x", reasoning_content="hm"), "reasoning parser"),
    ],
)
def test_a_server_that_fails_is_told_of(tmp_path: Path, reply: Reply, message: str):
    with stub_server(lambda *_: reply) as stub, pytest.raises(ServerError, match=message):
        run(stub, tmp_path, PROMPTS[1:2])


def test_what_was_answered_before_a_failure_is_kept(tmp_path: Path):
    def fail_later(number: int, body: dict[str, Any]) -> Reply:
        return repeat(number, body) if number < 2 else (401, {})

    with stub_server(fail_later) as stub, pytest.raises(ServerError):
        run(stub, tmp_path, PROMPTS[1:] + PROMPTS[:1], batch_size=1)
    with stub_server(repeat) as stub:
        report = run(stub, tmp_path)
    assert report.num_added <= 2
    assert len(report.data.examples) == 3


def test_a_server_that_is_not_there_is_told_of():
    gone = ChatServer("http://127.0.0.1:9/v1", "tiny", attempts=2, pause_s=0.0)
    with pytest.raises(ServerError, match="no answer in 2 attempts"):
        gone.complete("x", max_new_tokens=1, temperature=0.0, seed=0)


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="base_url must begin with"):
        ChatServer("localhost:8000", "tiny")


@pytest.mark.parametrize("options", [{"taps": (1,)}, {"keep_answers": True}])
def test_what_a_server_cannot_give_is_refused(tmp_path: Path, options: dict[str, Any]):
    with (
        stub_server(repeat) as stub,
        pytest.raises(ConfigError, match=f"{next(iter(options))} cannot be combined"),
    ):
        run(stub, tmp_path, **options)
