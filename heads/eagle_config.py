"""Version, sizes and variant of an EAGLE head."""

from dataclasses import dataclass
from typing import Literal

from treespec.errors import ConfigError
from treespec.heads.layer import LayerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleConfig:
    """What distinguishes one EAGLE head from another.

    Attributes:
        version: 1 for EAGLE-1 and EAGLE-2, 3 for EAGLE-3.
        layer: sizes of the decoder layer; its `rope_theta` is the head's own, not the target's.
        target_hidden_size: size of one tapped hidden state of the target.
        taps: indices of the target's `hidden_states`, in the order in which they stand side by
            side; an index may stand twice. In version 1 the final one alone.
        fc_bias: whether the fusing projection has a bias.
        own_embedding: whether tokens are embedded by the head itself rather than by the target.
        lm_head: whose LM head makes logits.
        norm_before_residual: version 3: the residual stream begins with the normed hidden state.
        fc_norm: version 3: every tapped state is normed before they are fused.
        norm_before_fc: version 3: the tapped states side by side are normed as one vector, before
            `fc_norm`.
        feedback: version 3: whether a node's children are fed the layer's output before or after
            the norm in front of the LM head.
        embedding_norm: version 1: token embeddings are normed.

    Raises:
        ConfigError: if the parts contradict each other.
    """

    version: Literal[1, 3]
    layer: LayerConfig
    target_hidden_size: int
    taps: tuple[int, ...]
    fc_bias: bool
    own_embedding: bool
    lm_head: Literal["target", "own"]
    norm_before_residual: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    feedback: Literal["pre_norm", "post_norm"] = "pre_norm"
    embedding_norm: bool = False

    def __post_init__(self) -> None:
        """Check every part."""
        self._require_known("version", (1, 3))
        self._require_known("lm_head", ("target", "own"))
        self._require_known("feedback", ("pre_norm", "post_norm"))
        if not self.taps:
            raise ConfigError("taps is empty; name the target's hidden states that are fused")
        if self.version == 1:
            self._check_version_1()
        else:
            self._check_version_3()

    def _require_known(self, name: str, known: tuple[object, ...]) -> None:
        value = getattr(self, name)
        if value not in known:
            raise ConfigError(f"{name} is {value!r}; it must be {known[0]!r} or {known[1]!r}")

    def _check_version_1(self) -> None:
        if len(self.taps) != 1:
            raise ConfigError(f"EAGLE version 1 has one tap, the final state; got {self.taps}")
        if self.layer.hidden_size != self.target_hidden_size:
            raise ConfigError(
                f"EAGLE version 1 predicts features of the target, so its layer must have their "
                f"size {self.target_hidden_size}, not {self.layer.hidden_size}"
            )
        later = [
            name
            for name in ("norm_before_residual", "fc_norm", "norm_before_fc")
            if getattr(self, name)
        ]
        if self.feedback == "post_norm":
            later.append("feedback='post_norm'")
        if later:
            raise ConfigError(f"{', '.join(later)} needs EAGLE version 3; version is 1")

    def _check_version_3(self) -> None:
        if self.embedding_norm:
            raise ConfigError(
                "embedding_norm belongs to EAGLE version 1; version 3 always norms embeddings"
            )
        if self.layer.hidden_size != self.target_hidden_size and (
            not self.own_embedding or self.lm_head == "target"
        ):
            raise ConfigError(
                f"a layer of size {self.layer.hidden_size} cannot use the embedding or the LM head "
                f"of a target of size {self.target_hidden_size}; set own_embedding=True and "
                "lm_head='own'"
            )
