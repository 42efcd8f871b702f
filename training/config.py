"""What a training run is told: the heads, the loss, the batches and the optimiser."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from treespec.errors import ConfigError

Family = Literal["medusa", "hydra", "eagle", "eagle3"]

# Settings that only some families have. None, their default, stands for what `_USUAL` says.
_BELONGS: Mapping[str, tuple[str, ...]] = {
    "num_heads": ("medusa", "hydra"),
    "num_layers": ("medusa", "hydra"),
    "prefix": ("hydra",),
    "intermediate_size": ("hydra", "eagle", "eagle3"),
    "unroll_steps": ("eagle", "eagle3"),
    "taps": ("eagle3",),
    "fc_norm": ("eagle3",),
    "feature_weight": ("eagle",),
}
_USUAL_DEPTH = {"medusa": 4, "hydra": 4, "eagle": 3, "eagle3": 3}

_AT_LEAST: Mapping[str, int] = {
    "num_heads": 1,
    "num_layers": 1,
    "intermediate_size": 1,
    "unroll_steps": 1,
    "draft_vocab_size": 1,
    "kl_top_k": 1,
    "epochs": 1,
    "max_steps": 1,
    "batch_tokens": 3,
    "max_length": 3,
    "accumulation": 1,
    "held_out": 0,
    "eval_every": 1,
    "save_every": 1,
    "seed": 0,
    "feature_weight": 0,
    "weight_decay": 0,
}
# Settings that may change between a checkpoint and its continuation: they decide when something is
# written, never what is learned. Accumulation may make up for another number of processes.
_FREE = frozenset({"save_every", "report_to", "dtype", "accumulation"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How heads are made and trained.

    Attributes:
        family: "medusa", "hydra", "eagle" (version 1, which EAGLE-2 uses too) or "eagle3".
        num_heads: Medusa, Hydra: tokens that they look ahead behind the next one; None for 4.
        num_layers: Medusa, Hydra: layers of a head; None for 1.
        prefix: Hydra: whether a decoder layer prepares the hidden states; None for true.
        intermediate_size: Hydra, EAGLE: width of the decoder layer's MLP; None for the target's.
        unroll_steps: EAGLE: how many times the head continues its own output in training; None
            for 3. With 1 it learns nothing about its own output.
        taps: EAGLE-3: indices of the target's hidden states that it reads; None for an early, a
            middle and a late one.
        fc_norm: EAGLE-3: whether every hidden state is normed before they are fused; None for
            false.
        feature_weight: EAGLE-1: weight of the distance between predicted and true features, a
            smooth L1 loss; None for 1.
        lm_head: whether heads use the "target"'s LM head or have their "own", which begins as its
            copy.
        draft_vocab_size: how many of the most frequent supervised tokens the heads can propose;
            None for all tokens.
        loss: "ce", cross-entropy on the tokens of the data; "kl", divergence from the target's own
            distribution; or "mixed".
        kl_weight: share of the divergence in a mixed loss, in [0, 1].
        kl_top_k: the divergence looks at the target's k most probable tokens.
        head_decay: the loss of depth k is weighted with this to the power of k, in (0, 1].
        lr: highest learning rate.
        warmup_ratio: share of the steps in which the learning rate rises, in [0, 1].
        min_lr_ratio: share of `lr` that the cosine falls to, in [0, 1].
        weight_decay: of matrices, as AdamW has it.
        grad_clip: largest norm of the gradient; None for no limit.
        epochs: passes over the data; ignored where `max_steps` is given.
        max_steps: optimiser steps; None for what `epochs` gives.
        batch_tokens: tokens in one forward, padding included.
        accumulation: forwards whose gradients make one step.
        max_length: tokens of an example that are used, at most `batch_tokens`.
        held_out: examples that are never trained on; None for 5 % of them, at most 64.
        eval_every: steps between two looks at the held-out examples.
        save_every: steps between two checkpoints.
        seed: of fresh weights, of the order of the examples and of what is held out.
        precision: number format of the heads' own arithmetic; their weights are float32.
        dtype: number format that finished heads are saved in.
        report_to: "none", "tensorboard", "trackio" or "wandb", besides the log file.
    """

    family: Family = "medusa"
    num_heads: int | None = None
    num_layers: int | None = None
    prefix: bool | None = None
    intermediate_size: int | None = None
    unroll_steps: int | None = None
    taps: tuple[int, ...] | None = None
    fc_norm: bool | None = None
    feature_weight: float | None = None
    lm_head: Literal["target", "own"] = "target"
    draft_vocab_size: int | None = None
    loss: Literal["ce", "kl", "mixed"] = "ce"
    kl_weight: float = 0.5
    kl_top_k: int = 8
    head_decay: float = 0.8
    lr: float = 1e-3
    warmup_ratio: float = 0.04
    min_lr_ratio: float = 0.0
    weight_decay: float = 0.0
    grad_clip: float | None = 1.0
    epochs: int = 1
    max_steps: int | None = None
    batch_tokens: int = 2048
    accumulation: int = 1
    max_length: int = 2048
    held_out: int | None = None
    eval_every: int = 200
    save_every: int = 200
    seed: int = 0
    precision: Literal["float32", "bfloat16"] = "float32"
    dtype: Literal["float32", "bfloat16"] = "float32"
    report_to: Literal["none", "tensorboard", "trackio", "wandb"] = "none"

    def __post_init__(self) -> None:
        """Check every setting."""
        for name, choices in _choices().items():
            self._require(name, getattr(self, name) in choices, f"one of {', '.join(choices)}")
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            self._require(name, value is None or value >= least, f"at least {least}")
        for name in ("kl_weight", "warmup_ratio", "min_lr_ratio"):
            self._require(name, 0 <= getattr(self, name) <= 1, "in [0, 1]")
        self._require("head_decay", 0 < self.head_decay <= 1, "in (0, 1]")
        self._require("lr", self.lr > 0, "above 0")
        clips = self.grad_clip is None or self.grad_clip > 0
        self._require("grad_clip", clips, "above 0; leave it empty for no limit")
        fits = self.max_length <= self.batch_tokens
        self._require("max_length", fits, f"at most batch_tokens, {self.batch_tokens}")
        for name, families in _BELONGS.items():
            if getattr(self, name) is not None and self.family not in families:
                raise ConfigError(
                    f"{name} is for {' and '.join(families)} heads, but family is {self.family}; "
                    f"leave {name} out"
                )

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise ConfigError(f"{name} must be {rule}; got {getattr(self, name)!r}")

    @property
    def depth(self) -> int:
        """How many tokens behind the next one are learned: heads, or unrolled steps."""
        return self.num_heads or self.unroll_steps or _USUAL_DEPTH[self.family]

    @property
    def kl_share(self) -> float:
        """Weight of the divergence in the loss; the rest is cross-entropy's."""
        return {"ce": 0.0, "kl": 1.0, "mixed": self.kl_weight}[self.loss]

    @property
    def feature_share(self) -> float:
        """Weight of the distance between features."""
        if self.family != "eagle":
            return 0.0
        return 1.0 if self.feature_weight is None else self.feature_weight

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "taps": None if self.taps is None else list(self.taps)}

    def contradictions(self, other: "TrainConfig") -> list[str]:
        """Settings of a run to be continued that `other` changes, as parts of a sentence."""
        mine, theirs = self.as_dict(), other.as_dict()
        return [
            f"{name} was {mine[name]!r} and is {theirs[name]!r}"
            for name in mine
            if name not in _FREE and mine[name] != theirs[name]
        ]

    @classmethod
    def from_values(cls, values: Mapping[str, object]) -> "TrainConfig":
        """From values as files and command lines have them.

        Raises:
            ConfigError: for a name that does not exist, and a value of the wrong kind or range.
        """
        hints = get_type_hints(cls)
        for name in values:
            if name not in hints:
                close = get_close_matches(name, hints, n=1)
                advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(hints)}"
                raise ConfigError(f"there is no setting {name}; {advice}")
        typed: dict[str, Any] = {name: _typed(name, value) for name, value in values.items()}
        return cls(**typed)

    @classmethod
    def from_file(cls, path: str | Path, overrides: Mapping[str, object]) -> "TrainConfig":
        """From a YAML, JSON or TOML file of settings, some of them replaced.

        Raises:
            ConfigError: if the file cannot be read, or its settings cannot be used.
        """
        return cls.from_values({**_read(Path(path)), **overrides})


_KINDS: Mapping[str, str] = {
    field.name: str(field.type).replace("typing.", "") for field in fields(TrainConfig)
}


def _choices() -> dict[str, tuple[str, ...]]:
    """Settings that are one of a few words, and the words."""
    hints = get_type_hints(TrainConfig).items()
    return {name: get_args(hint) for name, hint in hints if get_origin(hint) is Literal}


def _typed(name: str, value: object) -> object:
    """A value as the type of its setting; text is read as a number where one is wanted."""
    kind = _KINDS[name]
    if value is None:
        if "None" in kind:
            return None
        raise ConfigError(f"{name} is empty; give a value, or leave it out for the usual one")
    choices = _choices().get(name)
    if choices is not None:
        if value not in choices:
            raise ConfigError(f"{name} must be one of {', '.join(choices)}; got {value!r}")
        return value
    try:
        if "tuple" in kind:
            return _integers(value)
        if "bool" in kind:
            return _boolean(value)
        if "float" in kind and not isinstance(value, bool):
            return float(value)  # type: ignore[arg-type]
        if "int" in kind and not isinstance(value, bool | float):
            return int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        pass
    raise ConfigError(f"{name} cannot be {value!r}; it is {_word(kind)}")


def _word(kind: str) -> str:
    words = {"tuple": "a list of integers", "bool": "true or false", "float": "a number"}
    return next((word for part, word in words.items() if part in kind), "an integer")


def _integers(value: object) -> tuple[int, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or any(isinstance(part, bool | float) for part in parts):
        raise ValueError
    return tuple(int(part) for part in parts)


def _boolean(value: object) -> bool:
    known = {"true": True, "false": False}
    text = str(value).lower()
    if text not in known:
        raise ValueError
    return known[text]


def _read(path: Path) -> Mapping[str, object]:
    """The settings in a file."""
    try:
        text = path.read_text(encoding="utf-8")
        values = _parse(text, path.suffix)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; check the path") from error
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {str(error).splitlines()[0]}") from error
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path} holds a {type(values).__name__}, not settings with names")
    return values


def _parse(text: str, suffix: str) -> object:
    if suffix == ".json":
        return json.loads(text)
    if suffix == ".toml":
        return tomllib.loads(text)
    if suffix in (".yaml", ".yml"):
        import yaml  # type: ignore[import-untyped]  # comes with transformers

        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error
    raise ValueError(f"a file of settings ends in .yaml, .json or .toml, not {suffix!r}")
