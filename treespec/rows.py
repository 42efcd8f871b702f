"""One row of a generation: its text so far, where it stops, and its counts."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria
from transformers.generation.stopping_criteria import MaxTimeCriteria

from treespec.errors import UnsupportedOptionError
from treespec.processing import PathProcessor
from treespec.sampling import RowNoise
from treespec.scores import NodeScores
from treespec.stats import DecodeStats
from treespec.tree.token_tree import TokenTree
from treespec.verify.acceptance import Acceptance


class Kept:
    """What a caller wants to see of a row besides its tokens.

    Args:
        wants_logits: keep the target's logits at every emitted token.
        wants_scores: keep the processed ones.
        wants_cache: keep keys and values when the row ends.

    Attributes:
        logits: one vector `[V]` per emitted token, float32.
        scores: the same after processing.
        cache: keys and values of every layer, each `[heads, P, D]`.
    """

    def __init__(
        self,
        *,
        wants_logits: bool = False,
        wants_scores: bool = False,
        wants_cache: bool = False,
    ) -> None:
        self.wants_cache = wants_cache
        self.logits: list[Float[Tensor, " _V"]] = []
        self.scores: list[Float[Tensor, " _V"]] = []
        self.cache: list[tuple[Tensor, Tensor]] = []
        self._wants_logits = wants_logits
        self._wants_scores = wants_scores

    def add(self, logits: Float[Tensor, "N V"], scores: NodeScores, nodes: Sequence[int]) -> None:
        """Keep the rows of the nodes after which a token was emitted."""
        if self._wants_logits:
            self.logits += [logits[node].float() for node in nodes]
        if self._wants_scores:
            self.scores += [scores.row(node).float() for node in nodes]


class Row:
    """Text, stop rules and counts of one row.

    Args:
        block: the prompt as given, padding included, shape `[W]`, on the CPU.
        real: which of its columns hold tokens.
        noise: the row's noise.
        processors: logits processors, made for this row.
        eos_ids: ids that end the text.
        criteria: further stopping criteria, asked after every token with the text so far.
        max_new_tokens: most tokens to emit, at least 1.
        max_positions: positions that the target can embed, or None.
        rope_switch: position at which the target's rotary frequencies change for a whole forward.
        rope_moves_on: whether they go on changing behind it.
        kept: what to keep for the caller besides the tokens; nothing if left out.

    Attributes:
        new_tokens: what has been emitted.
        finish_reason: why the row ended; None while it goes on.
    """

    def __init__(
        self,
        block: Int[Tensor, " W"],
        real: Bool[Tensor, " W"],
        *,
        noise: RowNoise,
        processors: Sequence[LogitsProcessor],
        eos_ids: frozenset[int],
        criteria: Sequence[StoppingCriteria],
        max_new_tokens: int,
        max_positions: int | None,
        rope_switch: int | None = None,
        rope_moves_on: bool = False,
        kept: "Kept | None" = None,
    ) -> None:
        self.prompt = block[real]
        self.kept = kept or Kept()
        self.noise = noise
        self.process = PathProcessor(processors)
        self.new_tokens: list[int] = []
        self.finish_reason: str | None = None
        self._text = torch.cat([block, torch.zeros(max_new_tokens, dtype=torch.int64)])
        self._width = block.shape[0]
        self._eos_ids = eos_ids
        self._criteria = criteria
        self._max_new_tokens = max_new_tokens
        self._max_positions = max_positions
        self._rope_switch = rope_switch
        self._rope_moves_on = rope_moves_on
        self._steps = self._drafted = self._accepted = self._empty_drafts = 0
        self._accepted_by_depth: list[int] = []

    @property
    def history(self) -> Int[Tensor, " L"]:
        """The prompt as given and what was emitted, as `generate` shows it to processors."""
        return self._text[: self._width + len(self.new_tokens)]

    @property
    def committed(self) -> Int[Tensor, " L"]:
        """The prompt without padding and what was emitted."""
        return torch.cat([self.prompt, torch.tensor(self.new_tokens, dtype=torch.int64)])

    @property
    def root_position(self) -> int:
        """Absolute position of the last token; position 0 is the first real token."""
        return self.prompt.shape[0] + len(self.new_tokens) - 1

    @property
    def depth_left(self) -> int:
        """Levels that a tree may have: no token beyond the last allowed one is ever scored."""
        left = self._max_new_tokens - len(self.new_tokens) - 1
        if self._max_positions is not None:
            left = min(left, self._max_positions - 1 - self.root_position)
        if self._rope_switch is not None:
            if self.root_position < self._rope_switch:
                left = min(left, self._rope_switch - 1 - self.root_position)
            elif self._rope_moves_on:
                left = 0
        return left

    def record_step(self, tree: TokenTree, acceptance: Acceptance, *, asked: bool) -> list[int]:
        """Emit the accepted tokens and the next one, up to where the row stops.

        Args:
            tree: what was scored.
            acceptance: what was accepted of it.
            asked: whether the drafter was allowed to propose anything.

        Returns:
            The tokens emitted.
        """
        offered = [tree.token_list[node] for node in acceptance.path[1:]]
        emitted = self.emit([*offered, acceptance.next_token])
        accepted = min(len(emitted), len(offered))
        self._steps += 1
        self._drafted += len(tree) - 1
        self._accepted += accepted
        self._empty_drafts += asked and len(tree) == 1
        self._accepted_by_depth += [0] * (accepted - len(self._accepted_by_depth))
        for depth in range(accepted):
            self._accepted_by_depth[depth] += 1
        return emitted

    def emit(self, tokens: Sequence[int]) -> list[int]:
        """Append tokens one by one until one of them ends the row; return those appended."""
        emitted = []
        for token in tokens:
            self._text[self._width + len(self.new_tokens)] = token
            self.new_tokens.append(token)
            emitted.append(token)
            self.finish_reason = self._reason_to_stop(token)
            if self.finish_reason is not None:
                break
        return emitted

    def _reason_to_stop(self, token: int) -> str | None:
        if token in self._eos_ids:
            return "eos"
        for criterion in self._criteria:
            if _says_stop(criterion, self.history):
                return "time" if isinstance(criterion, MaxTimeCriteria) else "stop"
        if len(self.new_tokens) == self._max_new_tokens:
            return "length"
        if self._max_positions is not None and self.root_position >= self._max_positions:
            return "context"
        return None

    def stats(self) -> DecodeStats:
        """Counts of the finished row."""
        return DecodeStats(
            steps=self._steps,
            emitted=len(self.new_tokens),
            drafted=self._drafted,
            accepted=self._accepted,
            accepted_by_depth=tuple(self._accepted_by_depth),
            finish_reason=self.finish_reason or "length",
            empty_drafts=self._empty_drafts,
        )


def _says_stop(criterion: StoppingCriteria, history: Int[Tensor, " L"]) -> bool:
    answer = criterion(history[None], None)
    if isinstance(answer, Tensor):
        if answer.numel() != 1:
            raise UnsupportedOptionError(
                f"{type(criterion).__name__} answered with {answer.numel()} values for one row; "
                f"stopping "
                "criteria are asked row by row and must answer for the rows they are given"
            )
        return bool(answer.item())
    return bool(answer)
