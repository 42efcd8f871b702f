"""Medusa heads: the k-th guesses the token k + 2 places ahead from one hidden state alone.

With u_0 = f_t, the target's hidden state of position t after its final norm,

    u_(l+1) = u_l + SiLU(W_l u_l + b_l),    logits = L u_n,

and head k's logits speak of x_(t+2+k) (Cai et al. 2024, arXiv 2401.10774). What a head says does
not depend on the tokens between, so that all nodes of one depth have the same candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import ConfigError, DrafterError
from treespec.heads.base import DraftHeads, last_tap
from treespec.heads.vocabulary import DraftVocabulary
from treespec.tree.growth import GrowingTree


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaConfig:
    """Sizes of Medusa heads.

    Attributes:
        num_heads: K, tokens that they look ahead behind the next one.
        num_layers: residual blocks of a head.
        hidden_size: H, of the target.
        lm_head: "each" head has an LM head of its own, or all use the "target"'s.
        block_bias: whether the blocks have a bias.
    """

    num_heads: int
    num_layers: int = 1
    hidden_size: int
    lm_head: Literal["target", "each"]
    block_bias: bool = True

    def __post_init__(self) -> None:
        require_sizes(
            num_heads=self.num_heads, num_layers=self.num_layers, hidden_size=self.hidden_size
        )
        require_lm_head(self.lm_head)


class MedusaHeads(DraftHeads):
    """K heads of residual blocks and an LM head.

    A fresh head says what the target's LM head says of a state that its blocks hardly change.

    Args:
        config: their sizes.
        target: the model that they look ahead for.
        vocabulary: the tokens that they can propose; None for all.

    Raises:
        DrafterError: if the hidden size is not the target's.
    """

    family = "medusa"
    costs_a_level: ClassVar[bool] = False

    def __init__(
        self,
        config: MedusaConfig,
        target: PreTrainedModel,
        vocabulary: DraftVocabulary | None = None,
    ) -> None:
        super().__init__(target, vocabulary)
        require_hidden_size(config.hidden_size, self)
        self.config = config
        self.taps = (last_tap(target),)
        self.max_depth = config.num_heads
        for head in range(config.num_heads):
            parts: list[nn.Module] = [
                ResidualBlock(config.hidden_size, bias=config.block_bias)
                for _ in range(config.num_layers)
            ]
            if config.lm_head == "each":
                parts.append(own_lm_head(self, bias=False))
            self.add_module(str(head), nn.Sequential(*parts))

    def forward(self, hidden: Float[Tensor, "*B H"]) -> Float[Tensor, "*B K D"]:
        """Logits of every head for post-norm hidden states."""
        outputs = [self.get_submodule(str(k))(hidden) for k in range(self.config.num_heads)]
        stacked = torch.stack(outputs, dim=-2)
        # One product for all heads: it costs what reading the LM head's weights costs.
        return stacked if self.config.lm_head == "each" else self.borrowed.logits(stacked)

    def head_logits(self, head: int, hidden: Float[Tensor, "*B H"]) -> Float[Tensor, "*B D"]:
        """Logits of one head."""
        states: Tensor = self.get_submodule(str(head))(hidden)
        return states if self.config.lm_head == "each" else self.borrowed.logits(states)

    def begin(self, batch: int) -> "MedusaSession":
        """See `DraftHeads.begin`."""
        return MedusaSession(self, batch)


class MedusaSession:
    """Each row's last hidden state, and what the heads make of it."""

    def __init__(self, heads: MedusaHeads, batch: int) -> None:
        self._heads = heads
        self._last = torch.zeros(
            batch, heads.config.hidden_size, dtype=heads.dtype, device=heads.device
        )
        self._logits: dict[int, Tensor] = {}  # by depth, [B, D]

    def read(
        self,
        features: Sequence[Float[Tensor, "_L F"]],
        tokens: Sequence[Int[Tensor, " _L"]],  # noqa: ARG002 (Medusa looks at states only)
    ) -> list[Float[Tensor, "_M D"]]:
        """See `HeadSession.read`."""
        self._last = torch.stack(
            [new[-1] if len(new) else last for new, last in zip(features, self._last, strict=True)]
        )
        self._logits = {}
        logits = self._at_depth(0)
        return [logits[row : row + (len(new) > 0)] for row, new in enumerate(features)]

    def extend(
        self, trees: Sequence[GrowingTree], frontiers: Sequence[Sequence[int]]
    ) -> list[Float[Tensor, "_F D"]]:
        """See `HeadSession.extend`; nodes of one depth share one row of logits."""
        found = []
        for row, (tree, frontier) in enumerate(zip(trees, frontiers, strict=True)):
            depths = [tree.depths[node] for node in frontier]
            if len(set(depths)) == 1:
                found.append(self._at_depth(depths[0])[row].expand(len(depths), -1))
            elif depths:
                found.append(torch.stack([self._at_depth(depth)[row] for depth in depths]))
            else:
                found.append(self._last.new_empty(0, self._heads.num_columns))
        return found

    def keep(self, rows: Sequence[int]) -> None:
        """See `HeadSession.keep`."""
        index = torch.tensor(rows, dtype=torch.int64, device=self._last.device)
        self._last = self._last[index]
        self._logits = {
            depth: logits[index.to(logits.device)] for depth, logits in self._logits.items()
        }

    def _at_depth(self, depth: int) -> Float[Tensor, "B D"]:
        """Logits of the children of all nodes of this depth, computed once a step."""
        if depth not in self._logits and self._heads.config.lm_head == "each":
            self._logits[depth] = self._heads.head_logits(depth, self._last)
        elif depth not in self._logits:
            self._logits = dict(enumerate(self._heads(self._last).unbind(dim=1)))
        return self._logits[depth]


class ResidualBlock(nn.Module):
    """u + SiLU(W u + b); W begins at zero, b as that of any `nn.Linear`."""

    def __init__(self, size: int, *, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size, bias=bias)
        nn.init.zeros_(self.linear.weight)

    def forward(self, states: Float[Tensor, "*B H"]) -> Float[Tensor, "*B H"]:
        """The states after the block."""
        return states + nn.functional.silu(self.linear(states))


def own_lm_head(heads: DraftHeads, *, bias: bool) -> nn.Linear:
    """An LM head for the tokens that the heads can propose: a copy of the target's."""
    head: nn.Linear = nn.utils.skip_init(
        nn.Linear,
        heads.borrowed.hidden_size,
        heads.num_columns,
        bias=bias,
        device=torch.get_default_device(),
    )
    heads.borrowed.copy_rows(head)
    return head


def require_sizes(**sizes: object) -> None:
    """Refuse sizes that are not integers of at least 1.

    Raises:
        ConfigError: naming the size.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigError(f"{name} must be an integer of at least 1, got {size!r}")


def require_lm_head(kind: str) -> None:
    """Refuse an LM head that is neither the target's nor the heads' own.

    Raises:
        ConfigError: naming what there is.
    """
    if kind not in ("target", "each"):
        raise ConfigError(f'lm_head must be "target" or "each", got {kind!r}')


def require_hidden_size(size: int, heads: DraftHeads) -> None:
    """Refuse heads of another width than the target's.

    Raises:
        DrafterError: with both widths.
    """
    borrowed = heads.borrowed
    if size != borrowed.hidden_size:
        raise DrafterError(
            f"the heads' hidden_size is {size}, but the LM head of "
            f"{type(borrowed.target).__name__} reads states of {borrowed.hidden_size}; heads fit "
            "only the target that they were made for"
        )
