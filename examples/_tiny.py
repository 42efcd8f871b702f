"""The models of the examples: tiny random ones, or real ones by name."""

import argparse
import copy

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

WORDS = (
    "a and are as at be bird but by cat dog fish for from green he her his house I in is it like "
    "moon not of old on one or red river sat saw sea she sings sky sleeps small song star stone "
    "sun that the they tree two under was we went wind with you ."
)


def model_names(description: str, *options: str) -> argparse.Namespace:
    """The command line of an example: for each of `options` the name of a model, or None."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    for option in options:
        parser.add_argument(f"--{option}", help="folder or hub name; a tiny random model without")
    return parser.parse_args()


def load(name: str | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model and its tokenizer; without a name a tiny one that writes word salad.

    Float32, so that tree output equals plain output token for token.
    """
    if name is None:
        return _random_model(), _word_tokenizer()
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(name, padding_side="left")


def load_draft(name: str | None, target: PreTrainedModel) -> PreTrainedModel:
    """A draft model; without a name a blurred copy of the tiny target."""
    if name is not None:
        return load(name)[0]
    draft = copy.deepcopy(target)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.02)
    return draft


def _random_model() -> PreTrainedModel:
    """A Llama of two layers, its weights large enough that it does not repeat one word for ever."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS.split()) + 2,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.15,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def _word_tokenizer() -> PreTrainedTokenizerBase:
    """One token a word of `WORDS`."""
    ids = {word: place for place, word in enumerate(("<pad>", "<unknown>", *WORDS.split()))}
    core = Tokenizer(models.WordLevel(ids, unk_token="<unknown>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", unk_token="<unknown>", padding_side="left"
    )
