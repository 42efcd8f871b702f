"""A target's own answers become training data, the same however the run went."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tests.training.chats import FORGETFUL, asks, chat_model, chat_tokenizer
from treespec.errors import ConfigError, DataError
from treespec.training.answering import DistillOptions
from treespec.training.data import DataFolder
from treespec.training.distill import distill
from treespec.training.prompts import Prompt

PROMPTS = [
    asks("a", "why is the sky blue"),
    asks("b", "hi", "and then", "x"),
    asks("c", "tell me a story"),
    asks("d", "one two", "three"),
    asks("e", "?"),
]


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    """A model that never ends by itself."""
    return chat_model()


def texts(data: DataFolder) -> dict[str, tuple[list[int], list[bool]]]:
    """Tokens and masks by id."""
    return {one.id: (one.tokens.tolist(), one.supervised.tolist()) for one in data.examples}


def plain_answer(target: PreTrainedModel, tokens: list[int], new_tokens: int) -> list[int]:
    """What `generate` gives."""
    ids = torch.tensor([tokens])
    output = target.generate(
        ids,
        attention_mask=torch.ones_like(ids),  # a token of the text may be the padding token
        max_new_tokens=new_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    return output[0, len(tokens) :].tolist()


def test_answers_are_what_the_target_says_and_only_they_are_supervised(
    target: PreTrainedModel, tmp_path: Path
):
    options = DistillOptions(max_new_tokens=6, batch_size=3)
    data = distill(target, chat_tokenizer(), PROMPTS, tmp_path, options).data
    for one in data.examples:
        tokens, mask = one.tokens.tolist(), one.supervised.tolist()
        starts = [at for at in range(len(mask)) if mask[at] and not mask[at - 1]]
        assert not mask[0]
        for start in starts:
            assert tokens[start : start + 6] == plain_answer(target, tokens[:start], 6)
            assert mask[start : start + 6] == [True] * 6
        assert sum(mask) == 6 * len(starts)
    assert {one.conversation for one in data.examples} == set("abcde")
    # Whether the text of an answer gives its tokens again decides on one text or several.
    assert data.num_supervised == 6 * 8


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_answers_do_not_depend_on_the_batch(
    target: PreTrainedModel, tmp_path: Path, temperature: float
):
    found = []
    for size in (1, 4):
        options = DistillOptions(max_new_tokens=5, batch_size=size, temperature=temperature, seed=3)
        out = tmp_path / str(size)
        found.append(texts(distill(target, chat_tokenizer(), PROMPTS, out, options).data))
    assert found[0] == found[1]


def test_the_seed_decides_sampled_answers(target: PreTrainedModel, tmp_path: Path):
    found = []
    for seed in (1, 2):
        options = DistillOptions(max_new_tokens=8, temperature=1.0, seed=seed)
        out = tmp_path / str(seed)
        found.append(texts(distill(target, chat_tokenizer(), PROMPTS[:2], out, options).data))
    assert found[0] != found[1]


def test_hidden_states_are_those_of_a_forward_over_the_whole_text(
    target: PreTrainedModel, tmp_path: Path
):
    options = DistillOptions(max_new_tokens=6, batch_size=2, taps=(1, -1))
    data = distill(target, chat_tokenizer(), PROMPTS, tmp_path, options).data
    assert (data.meta.taps, data.meta.hidden_dtype) == ((1, 2), "float32")
    for one in data.examples:
        with torch.no_grad():
            output = target(one.tokens[None], output_hidden_states=True)
        expected = torch.cat([output.hidden_states[1][0], output.hidden_states[2][0]], dim=-1)
        states = data.hidden(one)
        assert states.shape == expected.shape
        torch.testing.assert_close(states[:-1], expected[:-1], atol=2e-4, rtol=1e-3)


class KilledError(Exception):
    """Stands for whatever ends a run."""


@pytest.mark.parametrize("taps", [(), (2,)], ids=["tokens", "states"])
def test_an_interrupted_run_is_taken_up_where_it_stopped(
    target: PreTrainedModel, tmp_path: Path, taps: tuple[int, ...]
):
    options = DistillOptions(max_new_tokens=5, batch_size=1, taps=taps)
    whole = distill(target, chat_tokenizer(), PROMPTS, tmp_path / "whole", options).data

    def kill(done: int, total: int, tokens: int) -> None:
        if done == 2:
            raise KilledError

    with pytest.raises(KilledError):
        distill(target, chat_tokenizer(), PROMPTS, tmp_path / "cut", options, notify=kill)
    seen: list[tuple[int, int]] = []
    report = distill(
        target,
        chat_tokenizer(),
        PROMPTS,
        tmp_path / "cut",
        options,
        notify=lambda done, total, tokens: seen.append((done, total)),
    )
    assert report.num_added == 3
    assert seen == [(3, 5), (4, 5), (5, 5)]
    assert texts(report.data) == texts(whole)
    if taps:
        for one, same in zip(report.data.examples, whole.examples, strict=True):
            # The sizes of the trees follow the clock, and with them the last bits of the states.
            torch.testing.assert_close(report.data.hidden(one), whole.hidden(same))


def test_the_end_token_is_the_last_supervised_one(target: PreTrainedModel, tmp_path: Path):
    tokenizer = chat_tokenizer()
    request = tokenizer("<user>hi\n<bot>", add_special_tokens=False)["input_ids"]
    answer = plain_answer(target, request, 6)
    end = answer[3]
    ending = chat_model(end_id=end)
    options = DistillOptions(max_new_tokens=6)
    data = distill(ending, tokenizer, [asks("a", "hi")], tmp_path, options).data
    own = data.examples[0].tokens[data.examples[0].supervised].tolist()
    assert own == answer[: answer.index(end) + 1]


def test_a_template_that_rewrites_answers_gives_an_example_for_each(
    target: PreTrainedModel, tmp_path: Path
):
    options = DistillOptions(max_new_tokens=4)
    tokenizer = chat_tokenizer(FORGETFUL.replace("{{ m.content }}</s>", "{{ m.content }}!</s>"))
    data = distill(target, tokenizer, [asks("a", "hi", "you")], tmp_path, options).data
    assert [one.id for one in data.examples] == ["a", "a/turn-2"]
    assert [one.num_supervised for one in data.examples] == [4, 4]


def test_existing_answers_are_used_as_they_are(target: PreTrainedModel, tmp_path: Path):
    prompts = [asks("a", "hi", "and", answers=("hello", "so")), asks("b", "x", answers=("y",))]
    options = DistillOptions(keep_answers=True, taps=(2,), batch_size=2)
    tokenizer = chat_tokenizer()
    data = distill(target, tokenizer, prompts, tmp_path, options).data
    first = next(one for one in data.examples if one.id == "a")
    assert tokenizer.decode(first.tokens) == "<user>hi\n<bot>hello</s>\n<user>and\n<bot>so</s>\n"
    assert tokenizer.decode(first.tokens[first.supervised]) == "hello</s>so</s>"
    with torch.no_grad():
        expected = target(first.tokens[None], output_hidden_states=True).hidden_states[2][0]
    torch.testing.assert_close(data.hidden(first), expected, atol=2e-4, rtol=1e-3)


def test_a_text_is_continued_without_a_template(target: PreTrainedModel, tmp_path: Path):
    options = DistillOptions(max_new_tokens=4)
    data = distill(
        target, chat_tokenizer(), [Prompt("t", None, text="Once")], tmp_path, options
    ).data
    tokens = data.examples[0].tokens.tolist()
    start = chat_tokenizer()("Once")["input_ids"]
    assert tokens == [*start, *plain_answer(target, start, 4)]


def test_prompts_without_room_are_skipped_and_counted(tmp_path: Path):
    short = chat_model(positions=64)
    options = DistillOptions(max_new_tokens=100)
    prompts = [asks("long", "x" * 80), asks("fits", "hi")]
    report = distill(short, chat_tokenizer(), prompts, tmp_path, options)
    assert report.num_skipped == 1
    assert [one.id for one in report.data.examples] == ["fits"]
    assert len(report.data.examples[0].tokens) <= 65
    with pytest.raises(DataError, match="room for an answer"):
        distill(short, chat_tokenizer(), prompts[:1], tmp_path / "none", options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"temperature": -1.0}, "temperature must be"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"hidden_dtype": "int8", "taps": (1,)}, "hidden_dtype must be one of"),
        ({"hidden_dtype": "float16"}, "but no taps"),
    ],
)
def test_an_option_outside_its_range_is_refused(change: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        DistillOptions(**change)


@pytest.mark.parametrize(
    ("taps", "message"), [((3,), "tap 3 does not exist"), ((2, -1), "hidden state twice")]
)
def test_taps_that_do_not_exist_are_refused(
    target: PreTrainedModel, tmp_path: Path, taps: tuple[int, ...], message: str
):
    with pytest.raises(ConfigError, match=message):
        distill(target, chat_tokenizer(), PROMPTS, tmp_path, DistillOptions(taps=taps))


@pytest.mark.parametrize(
    ("prompt", "keep_answers", "template", "message"),
    [
        (asks("a", "x"), True, "chat", "'a' has no answer"),
        (Prompt("a", None, text="x"), True, "chat", "'a' has no answer"),
        (asks("a", "x", "y"), False, None, "'a' has several messages"),
        (asks("a", "x", answers=("y",)), True, None, "'a': the tokenizer has no chat template"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_named(
    target: PreTrainedModel,
    tmp_path: Path,
    prompt: Prompt,
    keep_answers: bool,
    template: str | None,
    message: str,
):
    tokenizer = chat_tokenizer() if template else chat_tokenizer(None)
    options = DistillOptions(keep_answers=keep_answers)
    with pytest.raises(DataError, match=message):
        distill(target, tokenizer, [prompt], tmp_path, options)
