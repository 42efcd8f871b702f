"""Models and tokenizers from what a user typed, with errors that say what to type instead."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)


class Dtype(StrEnum):
    """Number formats that a model can be loaded in."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Attention(StrEnum):
    """Attention implementations that take a tree's mask."""

    EAGER = "eager"
    SDPA = "sdpa"
    FLEX = "flex_attention"


ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Folder or Hub id of a causal LM.", show_default=False),
]
DtypeOption = Annotated[
    Dtype,
    typer.Option(
        metavar="DTYPE",
        help="Number format of the weights: float32, bfloat16, float16, or auto, the one they are "
        "stored in.",
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE",
        help="cpu, cuda, cuda:1, ... By default the first CUDA device, or else the CPU.",
        show_default=False,
    ),
]
AttentionOption = Annotated[
    Attention | None,
    typer.Option(
        metavar="ATTN",
        help="Attention implementation: eager, sdpa or flex_attention. By default the one that "
        "transformers chooses.",
        show_default=False,
    ),
]


def choose_device(name: str | None) -> torch.device:
    """The device called `name`; without a name the first CUDA device, or else the CPU."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise typer.BadParameter(
            f"{name!r} cannot be used: {first_line(error)}; give cpu, or a device of this machine",
            param_hint="--device",
        ) from error
    return device


def load_model(
    name: str,
    *,
    dtype: Dtype = Dtype.AUTO,
    device: torch.device,
    attention: Attention | None = None,
    hint: str = "MODEL",
) -> PreTrainedModel:
    """The causal LM called `name`.

    Args:
        name: folder or Hub id.
        dtype: number format of the weights.
        device: where the weights go.
        attention: attention implementation; transformers' choice if None.
        hint: the argument that `name` came from, for errors.
    """
    _check_folder(name, hint)
    # A foreign configuration can fail in many ways; all of them mean that this model is not usable.
    try:
        model = AutoModelForCausalLM.from_pretrained(
            name, dtype=str(dtype), attn_implementation=attention and str(attention)
        )
    except (OSError, ValueError, ImportError, KeyError, AttributeError, TypeError) as error:
        raise typer.BadParameter(
            f"no causal LM could be loaded from {name!r}: {first_line(error)}", param_hint=hint
        ) from error
    return _moved(model, device)


def load_tokenizer(name: str, hint: str = "MODEL") -> PreTrainedTokenizerBase:
    """The tokenizer that comes with the model called `name`."""
    _check_folder(name, hint)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, ImportError, KeyError, AttributeError, TypeError) as error:
        raise typer.BadParameter(
            f"no tokenizer could be loaded from {name!r}: {first_line(error)}; check "
            "the name, or save the tokenizer beside the weights",
            param_hint=hint,
        ) from error
    return tokenizer


def first_line(error: BaseException) -> str:
    """First line of an error's message, or its type where it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def encode(
    tokenizer: PreTrainedTokenizerBase, text: str, *, chat: bool | None
) -> dict[str, torch.Tensor]:
    """Token ids and attention mask of a prompt, shape `[1, L]`.

    Args:
        tokenizer: the target's.
        text: what the user wrote.
        chat: whether it is a turn of a chat; None if so wherever there is a chat template.
    """
    if chat is None:
        chat = tokenizer.chat_template is not None
    if chat and tokenizer.chat_template is None:
        raise typer.BadParameter(
            "the model's tokenizer has no chat template; use --no-chat", param_hint="--chat"
        )
    if chat:
        turn = [{"role": "user", "content": text}]
        inputs: Any = tokenizer.apply_chat_template(
            turn, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
    else:
        inputs = tokenizer(text, return_tensors="pt")
    if inputs["input_ids"].shape[1] == 0:
        raise typer.BadParameter("the prompt has no tokens; write something", param_hint="--prompt")
    return {name: inputs[name] for name in ("input_ids", "attention_mask")}


def _check_folder(name: str, hint: str) -> None:
    """Tell a misspelt path from a Hub id, which would end in a misleading network error."""
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise typer.BadParameter(
                f"{name!r} has no config.json; give a folder that save_pretrained() wrote",
                param_hint=hint,
            )
    elif path.exists() or name.startswith((".", "/", "~")):
        raise typer.BadParameter(
            f"{name!r} is not a folder; give one that save_pretrained() wrote, or a Hub id",
            param_hint=hint,
        )


def _moved(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    moved: PreTrainedModel = model.to(device).eval()  # type: ignore[arg-type]
    return moved
