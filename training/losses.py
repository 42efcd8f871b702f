"""Losses over a large vocabulary, a few positions at a time.

Logits of all positions would be the largest thing in memory by far: 2,048 positions of four heads
times 50,000 tokens are 1.6 GB in float32, and as much again for their gradient. So a few rows at a
time are turned into logits, into their loss and at once into the gradient of what the logits were
made from; the logits are dropped before the next rows come, in forward and backward alike, and
nothing is computed twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Logits = Callable[[Tensor], Tensor]
"""Turns states `[M, S]` into logits `[M, D]`."""

_LEAST = 2**21  # logits at a time, 8 MB in float32; smaller matrix products get slow
_OF_HEAD = 16


def chunk_of(num_columns: int, width: int) -> int:
    """How many logits should exist at a time.

    With their logarithms and their gradient they hold about half as much as the LM head that makes
    them does in bfloat16; yet many rows go through it together, so that it is seldom read.

    Args:
        num_columns: of the LM head.
        width: of the states that it reads.
    """
    return max(_LEAST, num_columns * width // _OF_HEAD)


@dataclass(frozen=True, slots=True)
class Objective:
    """What a guess is compared with.

    Attributes:
        kl_share: weight of the divergence from the target's distribution; the rest is
            cross-entropy on the tokens of the data.
        kl_top_k: how many of the target's most probable tokens the divergence looks at, their
            probabilities renormalised. Tokens that the heads cannot propose are none of them.
    """

    kl_share: float = 0.0
    kl_top_k: int = 8

    @property
    def needs_teacher(self) -> bool:
        """Whether the target's logits are needed."""
        return self.kl_share > 0

    def losses(
        self,
        logits: Float[Tensor, "M D"],
        columns: Int[Tensor, " M"],
        teacher: Float[Tensor, "M D"] | None,
    ) -> Float[Tensor, " M"]:
        """Loss of every row, in float32.

        Args:
            logits: of the heads.
            columns: the label of every row.
            teacher: the target's logits for the same tokens; None if only labels count.
        """
        guessed = logits.float().log_softmax(dim=-1)
        losses = -guessed.gather(-1, columns[:, None])[:, 0] * (1 - self.kl_share)
        if self.needs_teacher and teacher is not None:
            best = teacher.float().topk(min(self.kl_top_k, teacher.shape[-1]), dim=-1)
            probs = best.values.softmax(dim=-1)
            missed = torch.xlogy(probs, probs) - probs * guessed.gather(-1, best.indices)
            losses = losses + self.kl_share * missed.sum(dim=-1)
        return losses


@dataclass(frozen=True, slots=True)
class Guess:
    """What heads say of one depth, at the positions where it counts.

    Attributes:
        states: what logits are made from.
        to_logits: how.
        parameters: trainable weights that `to_logits` uses.
    """

    states: Float[Tensor, "M S"]
    to_logits: Logits
    parameters: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Lesson:
    """What it is compared with.

    Attributes:
        columns: the label of every row.
        teacher_states: states from which `to_teacher_logits` makes the target's logits of the same
            tokens; None if only labels count.
        to_teacher_logits: how; without gradient.
    """

    columns: Int[Tensor, " M"]
    teacher_states: Float[Tensor, "M H"] | None = None
    to_teacher_logits: Logits | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """How good the guesses were.

    Attributes:
        loss: sum over the rows.
        correct: rows whose most probable token is the label.
    """

    loss: Float[Tensor, ""]
    correct: Bool[Tensor, " M"]


def score(
    guess: Guess,
    lesson: Lesson,
    objective: Objective,
    *,
    num_columns: int,
    chunk: int | None = None,
) -> Scored:
    """Loss and hits of all rows, never more than `chunk` logits at a time.

    With gradients enabled, those of `guess.states` and `guess.parameters` are worked out on the
    way, so `loss` may be scaled but not used in any other way than by one backward.

    Args:
        guess: what the heads say.
        lesson: what they should have said.
        objective: how the two are compared.
        num_columns: D.
        chunk: logits at a time, at least those of one row; None for `chunk_of`.
    """
    chunk = chunk or chunk_of(num_columns, guess.states.shape[-1])
    chunks = _Chunks(guess, lesson, objective, max(1, chunk // num_columns))
    if torch.is_grad_enabled():
        loss: Tensor = _Summed.apply(chunks, guess.states, *guess.parameters)  # type: ignore[no-untyped-call]
    else:
        loss = guess.states.new_zeros((), dtype=torch.float32)
        for part, rows in chunks:
            loss = loss + chunks.loss(part, rows)
    correct = torch.cat(chunks.correct) if chunks.correct else lesson.columns.bool()
    return Scored(loss, correct)


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Rows by the chunk, and the hits found so far."""

    guess: Guess
    lesson: Lesson
    objective: Objective
    rows: int
    correct: list[Tensor] = field(default_factory=list)

    def __iter__(self) -> Any:
        for start in range(0, len(self.guess.states), self.rows):
            rows = slice(start, start + self.rows)
            yield self.guess.states.detach()[rows], rows

    def loss(self, states: Float[Tensor, "R S"], rows: slice) -> Float[Tensor, ""]:
        """Summed loss of some rows, whose hits are noted."""
        columns = self.lesson.columns[rows]
        logits = self.guess.to_logits(states)
        self.correct.append(logits.detach().argmax(dim=-1) == columns)
        return self.objective.losses(logits, columns, self._teacher(rows)).sum()

    @torch.no_grad()
    def _teacher(self, rows: slice) -> Tensor | None:
        states, to_logits = self.lesson.teacher_states, self.lesson.to_teacher_logits
        if states is None or to_logits is None or not self.objective.needs_teacher:
            return None
        return to_logits(states[rows])


class _Summed(torch.autograd.Function):
    """The sum of all chunks' losses; its gradients are known when it is."""

    @staticmethod
    def forward(ctx: Any, chunks: _Chunks, states: Tensor, *parameters: Tensor) -> Tensor:
        total = states.new_zeros((), dtype=torch.float32)
        of_states = torch.zeros_like(states)
        of_parameters = [torch.zeros_like(parameter) for parameter in parameters]
        for part, rows in chunks:
            part.requires_grad_(True)
            with torch.enable_grad():
                loss = chunks.loss(part, rows)
                found = _gradients(loss, (part, *parameters))
            total += loss.detach()
            of_states[rows] = found[0]
            for gradient, more in zip(of_parameters, found[1:], strict=True):
                gradient += more
        ctx.save_for_backward(of_states, *of_parameters)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (scale,) = gradients
        return None, *(found * scale for found in ctx.saved_tensors)


def _gradients(loss: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of the loss; zeros for inputs that it does not depend on."""
    found: tuple[Tensor | None, ...] = torch.autograd.grad(loss, inputs, allow_unused=True)
    return tuple(
        torch.zeros_like(given) if gradient is None else gradient
        for gradient, given in zip(found, inputs, strict=True)
    )
