"""What foreign checkpoints are made of: sizes of a tiny target, random weights, a Llama layer."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

V, H, I = 97, 32, 48  # noqa: E741 (as on paper)
HEADS, KEYS, DIM = 4, 2, 8
LAYERS = 8  # of the target; EAGLE-3 then reads the states 2, 4 and 5
DRAFT_IDS = torch.arange(3, V, 4)
D = len(DRAFT_IDS)


@dataclass
class Foreign:
    """One checkpoint.

    Attributes:
        config: of `config.json`; None for none.
        tensors: what is in the file of weights.
        file: its name.
    """

    config: dict[str, Any] | None
    tensors: dict[str, Tensor]
    file: str = "model.safetensors"
    extra: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write it, and return the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.config is not None:
            (folder / "config.json").write_text(json.dumps(self.config))
        for name, tensors in {self.file: self.tensors, **self.extra}.items():
            separate = {key: tensor.clone() for key, tensor in tensors.items()}
            if name.endswith(".safetensors"):
                save_file(separate, folder / name)
            else:
                torch.save(separate, folder / name)
        return folder


class Draw:
    """Random weights of a size that matters."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        noise = torch.randn(*shape, generator=self.generator)
        return noise * shape[-1] ** -0.5 if len(shape) > 1 else 1 + 0.2 * noise


def llama_layer(draw: Draw, prefix: str, inputs: int) -> dict[str, Tensor]:
    """Attention and MLP of a Llama layer whose projections read `inputs` numbers."""
    return {
        f"{prefix}self_attn.q_proj.weight": draw(HEADS * DIM, inputs),
        f"{prefix}self_attn.k_proj.weight": draw(KEYS * DIM, inputs),
        f"{prefix}self_attn.v_proj.weight": draw(KEYS * DIM, inputs),
        f"{prefix}self_attn.o_proj.weight": draw(H, HEADS * DIM),
        f"{prefix}mlp.gate_proj.weight": draw(I, H),
        f"{prefix}mlp.up_proj.weight": draw(I, H),
        f"{prefix}mlp.down_proj.weight": draw(H, I),
        f"{prefix}post_attention_layernorm.weight": draw(H),
    }


def llama_config() -> dict[str, Any]:
    """Fields of a Llama config of one layer."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": H,
        "intermediate_size": I,
        "max_position_embeddings": 2048,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEYS,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-05,
        "vocab_size": V,
    }
