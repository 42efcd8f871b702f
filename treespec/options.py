"""What a caller of `generate` asked for, and the refusal of what tree decoding cannot honour."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Int
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StopStringCriteria,
)

from treespec.errors import ConfigError, UnsupportedOptionError

# Fields of GenerationConfig that change what is generated in ways a tree cannot follow, with the
# values that mean "off".
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "num_beams": (None, 1),
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None, 0.0),
    "dola_layers": (None,),
    "constraints": (None,),
    "force_words_ids": (None,),
    "guidance_scale": (None, 1.0),
    "watermarking_config": (None,),
    "token_healing": (None, False),
    "prompt_lookup_num_tokens": (None,),
    "assistant_early_exit": (None,),
    "use_mtp": (None, False),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
    "cache_implementation": (None, "dynamic"),
    "stop_strings": (None,),
    "use_cache": (None, True),
}

_ADVICE: Mapping[str, str] = {
    "num_beams": "beam search keeps several texts; treespec decodes one per row",
    "use_cache": "tree decoding needs a cache",
    "cache_implementation": "tree decoding brings its own cache",
    "prompt_lookup_num_tokens": "use TreeDecoder(target, LookupDrafter())",
    "assistant_model": "use TreeDecoder(target, ModelDrafter(model))",
    "inputs_embeds": "give input_ids",
    "position_ids": "positions follow from attention_mask; leave them out",
    "stop_strings": "pass stop_strings= and tokenizer= to decoder.generate",
}

# Arguments of `generate` that never reach a callable behind `custom_generate`, or that mean
# something a tree has no counterpart for.
REFUSED_ARGUMENTS = (
    "assistant_model",
    "assistant_tokenizer",
    "custom_generate",
    "inputs_embeds",
    "negative_prompt_ids",
    "negative_prompt_attention_mask",
    "position_ids",
    "synced_gpus",
    "token_type_ids",
)

_CARRIED = (
    "attention_mask",
    "position_ids",
    "cache",
    "past_key_values",
    "logits_to_keep",
    "use_cache",
)


def refuse(name: str, value: object) -> UnsupportedOptionError:
    """The error for an option that cannot be honoured."""
    advice = _ADVICE.get(name)
    return UnsupportedOptionError(
        f"{name}={value!r} is not supported by tree decoding"
        + (f": {advice}" if advice else "; leave it out")
    )


def refuse_batch_across(switch: int, model_class: str) -> UnsupportedOptionError:
    """The error for a batch in which one row could change the rotary frequencies of the others."""
    return UnsupportedOptionError(
        f"{model_class} changes its rotary frequencies for the whole batch when one row reaches "
        f"position "
        f"{switch}; decode prompts that may get there one by one, or lower max_new_tokens"
    )


def check_config(config: GenerationConfig) -> None:
    """Refuse settings that cannot be honoured.

    Raises:
        UnsupportedOptionError: naming the option and its value.
    """
    for name, neutral in _NEUTRAL.items():
        value = getattr(config, name, None)
        if value not in neutral:
            raise refuse(name, value)


def check_model_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse model inputs that the tree forward would not pass on.

    Raises:
        UnsupportedOptionError: naming the argument.
    """
    for name, value in arguments.items():
        if name not in _CARRIED and value is not None:
            raise refuse(name, type(value).__name__)


def eos_ids(config: GenerationConfig) -> frozenset[int]:
    """Ids that end a text, whether given as None, an int, a list or a tensor."""
    given = config.eos_token_id
    if given is None:
        return frozenset()
    if isinstance(given, int):
        return frozenset({given})
    return frozenset(int(token) for token in given)


def pad_id(config: GenerationConfig) -> int:
    """Id that fills the ends of short rows, as `generate` chooses it."""
    if config.pad_token_id is not None:
        return int(config.pad_token_id)
    ends = config.eos_token_id
    if ends is None:
        return 0
    return int(ends) if isinstance(ends, int) else int(next(iter(ends)))


def other_criteria(criteria: StoppingCriteriaList) -> list[StoppingCriteria]:
    """The stopping criteria that are not about length or end ids, which rows check themselves."""
    return [one for one in criteria if not isinstance(one, MaxLengthCriteria | EosTokenCriteria)]


def left_padded(
    block: Int[Tensor, "B W"], mask: Int[Tensor, "B W"] | None
) -> tuple[Int[Tensor, "B W"], Int[Tensor, "B W"] | None]:
    """The prompts with their padding moved to the left, which is where `generate` wants it."""
    if mask is None or block.ndim != 2 or mask.shape != block.shape or bool(mask[:, -1].all()):
        return block, mask
    order = mask.bool().long().argsort(dim=1, stable=True)
    return block.gather(1, order), mask.gather(1, order)


def stop_string_criteria(stop_strings: str | list[str], tokenizer: Any) -> StopStringCriteria:
    """The criterion that ends a row at one of these texts.

    Raises:
        ConfigError: without a tokenizer.
    """
    if tokenizer is None:
        raise ConfigError("stop_strings needs the target's tokenizer; pass tokenizer= as well")
    return StopStringCriteria(tokenizer=tokenizer, stop_strings=stop_strings)
