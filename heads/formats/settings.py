"""Values from a `config.json`, each checked for its type, and a decoder layer's sizes from it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from treespec.errors import CheckpointError
from treespec.heads.layer import LayerConfig


@dataclass(frozen=True, slots=True)
class Settings:
    """A part of a config.

    Attributes:
        values: what stands in it.
        where: what messages call it.
    """

    values: Mapping[str, Any]
    where: str = "config.json"

    def has(self, name: str) -> bool:
        """Whether there is a value other than null."""
        return self.values.get(name) is not None

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive integer.

        Raises:
            CheckpointError: if it is something else, or missing without a default.
        """
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            raise CheckpointError(
                f"{self.where} does not say {name}, which the tensors cannot tell; keep the "
                "config.json that came with the weights beside them"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CheckpointError(f"{self.where}: {name} is {value!r}, not a positive integer")
        return value

    def number(self, name: str, default: float) -> float:
        """A positive number."""
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise CheckpointError(f"{self.where}: {name} is {value!r}, not a positive number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """A truth value."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise CheckpointError(f"{self.where}: {name} is {value!r}, not true or false")
        return value

    def text(self, name: str, default: str) -> str:
        """A string."""
        return self.optional_text(name) or default

    def optional_text(self, name: str) -> str | None:
        """A string, or None."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise CheckpointError(f"{self.where}: {name} is {value!r}, not a string")
        return value

    def integers(self, name: str) -> tuple[int, ...] | None:
        """A list of integers, or None."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or any(
            isinstance(one, bool) or not isinstance(one, int) for one in value
        ):
            raise CheckpointError(f"{self.where}: {name} is {value!r}, not a list of integers")
        return tuple(value)

    def part(self, name: str) -> "Settings":
        """An object inside; empty if there is none."""
        value = self.values.get(name) or {}
        if not isinstance(value, Mapping):
            raise CheckpointError(f"{self.where}: {name} is {value!r}, not an object of settings")
        return Settings(value, f"{name} in {self.where}")


def layer_config(config: Settings, names: Collection[str]) -> LayerConfig:
    """A decoder layer's sizes; `names` are its tensors, which tell about biases and norms.

    Where the config is silent the defaults are those of Llama's configuration, also for
    `rope_theta`: 10000, whatever the target has.
    """
    hidden_size = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    parameters = _rope_parameters(config)
    return LayerConfig(
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=config.integer("num_key_value_heads", heads),
        head_dim=config.integer("head_dim", max(1, hidden_size // heads)),
        hidden_act=config.text("hidden_act", "silu"),
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        rope_theta=parameters.pop("rope_theta"),
        rope_parameters=parameters or None,
        max_position_embeddings=config.integer("max_position_embeddings", 2048),
        **layer_variant(names),
    )


def layer_variant(names: Collection[str]) -> dict[str, bool]:
    """What a layer's tensors tell of its kind."""
    return {
        "qkv_bias": "self_attn.q_proj.bias" in names,
        "o_bias": "self_attn.o_proj.bias" in names,
        "mlp_bias": "mlp.gate_proj.bias" in names,
        "qk_norm": "self_attn.q_norm.weight" in names,
    }


def _rope_parameters(config: Settings) -> dict[str, Any]:
    """Rotary parameters in the way of today's transformers, from today's config or older ones.

    `rope_theta` is always there; what else there is, is more than plain frequencies.
    """
    scaling = config.part("rope_parameters")
    if not scaling.values:
        scaling = config.part("rope_scaling")
    parameters = dict(scaling.values)
    kind = parameters.pop("rope_type", parameters.pop("type", "default"))
    theta = scaling.number("rope_theta", config.number("rope_theta", 10000.0))
    parameters.pop("rope_theta", None)
    parameters.pop("type", None)
    if kind == "default":
        return {"rope_theta": theta}
    return {"rope_type": kind, **parameters, "rope_theta": theta}
