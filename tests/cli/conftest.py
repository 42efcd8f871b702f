"""Tiny random models, saved as users have them: a folder of weights, config and tokenizer."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging
from typer.testing import CliRunner, Result

from treespec.cli import app

CHAT_TEMPLATE = "{% for m in messages %}<user>{{ m['content'] }}<bot>{% endfor %}"

Run = Callable[..., Result]

logging.disable_progress_bar()  # loading bars would stand among the messages


@pytest.fixture
def run() -> Run:
    """Runs a command line; a wide terminal keeps messages on one line."""

    def invoke(*arguments: object, stdin: str | None = None) -> Result:
        words = [str(argument) for argument in arguments]
        return CliRunner().invoke(
            app, words, input=stdin, env={"COLUMNS": "400"}, catch_exceptions=False
        )

    return invoke


def words_of(text: str) -> str:
    """Text without boxes, colours and line breaks, for matching messages."""
    return re.sub(r"[\s│╭╮╰╯─]+", " ", re.sub(r"\x1b\[[0-9;]*m", "", text))


def byte_tokenizer(*, chat: bool = True) -> PreTrainedTokenizerFast:
    """One token per byte, and three special ones; no merges, so that nothing need be trained."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {
        token: index for index, token in enumerate(["</s>", "<user>", "<bot>", *alphabet])
    }
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="</s>",
        pad_token="</s>",
        extra_special_tokens=["<user>", "<bot>"],
    )
    if chat:
        tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def save_model(
    folder: Path, *, seed: int = 0, chat: bool = True, max_position_embeddings: int = 256
) -> Path:
    """A random Llama of two layers, which never ends its text by itself."""
    torch.manual_seed(seed)
    tokenizer = byte_tokenizer(chat=chat)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_position_embeddings,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with a chat template."""
    return save_model(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft model for it."""
    return save_model(tmp_path_factory.mktemp("models") / "draft", seed=1)


@pytest.fixture(scope="session")
def bare_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target without a chat template."""
    return save_model(tmp_path_factory.mktemp("models") / "bare", chat=False)
