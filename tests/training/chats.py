"""Tokenizers, chats and tiny chat models for tests of distilling."""

from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from tests.cli.conftest import byte_tokenizer
from tests.families import redraw
from treespec.training.prompts import Message, Prompt, Turn

_BEFORE = (
    "{% for m in messages %}{% if m.role != 'assistant' %}<user>{{ m.content }}\n{% else %}<bot>"
)
_AFTER = "{% endif %}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"

PLAIN = _BEFORE + "{{ m.content }}</s>\n" + _AFTER
"""An answer ends with the end token; the line break behind it is the template's."""

MARKED = _BEFORE + "{% generation %}{{ m.content }}{% endgeneration %}</s>\n" + _AFTER
"""Marks answers, and leaves the end token outside, as many do."""

FORGETFUL = _BEFORE + "{% if loop.last %}!{% endif %}{{ m.content }}</s>\n" + _AFTER
"""Writes an answer otherwise once something follows it."""

CHAT = [
    {"role": "user", "content": "again"},
    {"role": "assistant", "content": "again"},
    {"role": "user", "content": "again"},
    {"role": "assistant", "content": "again"},
]
"""The same content four times; only two of them are the assistant's."""


def chat_tokenizer(template: str | None = PLAIN) -> PreTrainedTokenizerFast:
    """One token a byte; the padding token is the end token."""
    tokenizer = byte_tokenizer(chat=False)
    tokenizer.chat_template = template
    return tokenizer


def chat_model(end_id: int | None = None, positions: int = 256) -> PreTrainedModel:
    """A random Llama for these tokens whose text wanders."""
    config = LlamaConfig(
        vocab_size=len(byte_tokenizer()),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        bos_token_id=None,
        eos_token_id=end_id,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    redraw(model, 0)
    return model


def asks(name: str, *questions: str, answers: tuple[str | None, ...] = ()) -> Prompt:
    """A prompt of these turns, with the answers that it comes with."""
    given = (*answers, *[None] * (len(questions) - len(answers)))
    turns = [
        Turn((Message("user", question),), answer)
        for question, answer in zip(questions, given, strict=True)
    ]
    return Prompt(name, "test", tuple(turns))
