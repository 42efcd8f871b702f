"""Only what the assistant says is supervised, its end token included."""

import pytest

from tests.training.chats import CHAT, FORGETFUL, MARKED, PLAIN, chat_tokenizer
from treespec.errors import DataError
from treespec.training.masks import MaskedText, closing_token, mask_chat, runs

ALL_MARKED = (
    "{% for m in messages %}{% generation %}{{ m.content }}</s>{% endgeneration %}{% endfor %}"
)
REVERSED = "{% for m in messages | reverse %}<user>{{ m.role }}</s>{% endfor %}"


def shown(text: MaskedText, template: str = PLAIN) -> list[str]:
    """What the supervised spans say."""
    tokenizer = chat_tokenizer(template)
    return [tokenizer.decode(text.tokens[start:end]) for start, end in text.spans]


@pytest.mark.parametrize("template", [PLAIN, MARKED], ids=["prefixes", "marks"])
def test_the_same_content_is_supervised_only_where_the_assistant_says_it(template: str):
    tokenizer = chat_tokenizer(template)
    (text,) = mask_chat(tokenizer, CHAT)
    assert shown(text) == ["again</s>", "again</s>"]
    written = "<user>again\n<bot>again</s>\n" * 2
    assert list(text.tokens) == tokenizer(written, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("template", [PLAIN, MARKED], ids=["prefixes", "marks"])
def test_the_end_token_is_supervised_although_it_is_the_padding_token(template: str):
    tokenizer = chat_tokenizer(template)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    (text,) = mask_chat(tokenizer, CHAT)
    assert [text.tokens[end - 1] for _, end in text.spans] == [tokenizer.eos_token_id] * 2


def test_an_answer_without_a_closing_token_ends_where_the_next_message_begins():
    template = PLAIN.replace("</s>\n", "")
    (text,) = mask_chat(chat_tokenizer(template), CHAT)
    assert shown(text) == ["again", "again"]


def test_a_template_that_rewrites_answers_gives_a_text_for_each():
    texts = mask_chat(chat_tokenizer(FORGETFUL), CHAT)
    assert [shown(text) for text in texts] == [["!again</s>"], ["!again</s>"]]
    assert len(texts[0].tokens) < len(texts[1].tokens)


def test_a_token_that_is_half_prompt_is_not_supervised():
    tokenizer = chat_tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}")
    tokenizer.add_tokens(["\n\n"])
    chat = [{"role": "user", "content": "a\n"}, {"role": "assistant", "content": "\nb"}]
    (text,) = mask_chat(tokenizer, chat)
    assert [tokenizer.decode(text.tokens[start:end]) for start, end in text.spans] == ["b"]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        (ALL_MARKED, "every token to the assistant"),
        (REVERSED, "no prefix"),
        ("{{ raise_exception('no') }}", "refuses the messages"),
    ],
)
def test_a_mask_is_never_guessed(template: str | None, message: str):
    with pytest.raises(DataError, match=message):
        mask_chat(chat_tokenizer(template), CHAT)


def test_a_chat_without_answers_has_no_text():
    assert mask_chat(chat_tokenizer(), CHAT[:1]) == []


def test_the_closing_token_is_the_templates():
    assert closing_token(chat_tokenizer(PLAIN)) == chat_tokenizer().eos_token_id
    assert closing_token(chat_tokenizer(PLAIN.replace("</s>", ""))) is None


def test_runs_are_cut_where_supervision_changes():
    tokenizer = chat_tokenizer()
    tokens = tokenizer("abcd", add_special_tokens=False)["input_ids"]
    found = runs(tokenizer, tokens, [False, True, True, False])
    assert [(run.text, run.is_supervised) for run in found] == [
        ("a", False),
        ("bc", True),
        ("d", False),
    ]
