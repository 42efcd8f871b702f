"""Chunked losses equal whole ones, and large logits never exist."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from treespec.training.losses import Guess, Lesson, Objective, score

ROWS, WIDTH, COLUMNS = 23, 8, 50
OBJECTIVES = {
    "ce": Objective(),
    "kl": Objective(kl_share=1.0, kl_top_k=5),
    "mixed": Objective(kl_share=0.3, kl_top_k=50),
}


class Case:
    """Random states, an LM head, labels, and a teacher with another LM head."""

    def __init__(self, rows: int = ROWS, columns: int = COLUMNS):
        torch.manual_seed(0)
        self.states = torch.randn(rows, WIDTH, requires_grad=True)
        self.head = nn.Linear(WIDTH, columns)
        self.teacher = nn.Linear(WIDTH, columns)
        self.labels = torch.randint(columns, (rows,))
        self.seen = torch.randn(rows, WIDTH)
        self.columns = columns

    @property
    def guess(self):
        return Guess(self.states, self.head, tuple(self.head.parameters()))

    @property
    def lesson(self):
        return Lesson(self.labels, self.seen, self.teacher)

    def whole(self, objective):
        """Loss of all rows by torch's own functions."""
        logits, law = self.head(self.states), self.teacher(self.seen).detach()
        ce = nn.functional.cross_entropy(logits, self.labels, reduction="sum")
        best = law.topk(objective.kl_top_k).indices
        probs = torch.zeros_like(law).scatter(1, best, law.gather(1, best).softmax(-1))
        kl = nn.functional.kl_div(logits.log_softmax(-1), probs, reduction="sum")
        return (1 - objective.kl_share) * ce + objective.kl_share * kl

    def gradients(self, loss):
        return torch.autograd.grad(3 * loss, [self.states, *self.head.parameters()])


@pytest.mark.parametrize("chunk", [1, 7 * COLUMNS, 1000 * COLUMNS])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_chunks_give_loss_and_gradient_of_the_whole(name, chunk):
    case, objective = Case(), OBJECTIVES[name]
    expected = case.whole(objective)

    found = score(case.guess, case.lesson, objective, num_columns=COLUMNS, chunk=chunk)

    torch.testing.assert_close(found.loss, expected)
    for mine, theirs in zip(case.gradients(found.loss), case.gradients(expected), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert torch.equal(found.correct, case.head(case.states).argmax(-1) == case.labels)


def test_a_loss_without_gradient_is_the_same():
    case = Case()
    learned = score(case.guess, case.lesson, OBJECTIVES["mixed"], num_columns=COLUMNS, chunk=100)
    with torch.no_grad():
        looked = score(case.guess, case.lesson, OBJECTIVES["mixed"], num_columns=COLUMNS, chunk=100)

    assert torch.equal(learned.loss, looked.loss)
    assert torch.equal(learned.correct, looked.correct)


@pytest.mark.parametrize("learning", [True, False])
def test_no_rows_have_no_loss(learning):
    case = Case(rows=0)
    with torch.set_grad_enabled(learning):
        found = score(case.guess, case.lesson, Objective(), num_columns=COLUMNS)

    assert found.loss == 0
    assert found.correct.shape == (0,)
    assert not learning or all(part.eq(0).all() for part in case.gradients(found.loss))


def test_the_divergence_is_zero_where_the_guess_is_the_targets_law():
    case = Case()
    objective = Objective(kl_share=1.0, kl_top_k=COLUMNS)
    guess = Guess(case.seen, case.teacher)
    with torch.no_grad():
        found = score(guess, case.lesson, objective, num_columns=COLUMNS)
    assert abs(found.loss) < 1e-4


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation gives."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else [found]:
            if isinstance(one, torch.Tensor):
                self.numel = max(self.numel, one.numel())
        return found


@pytest.mark.parametrize("name", OBJECTIVES)
def test_no_tensor_is_ever_larger_than_a_chunk(name):
    case = Case(rows=400, columns=300)
    chunk = 9_000
    with Largest() as largest:
        found = score(case.guess, case.lesson, OBJECTIVES[name], num_columns=300, chunk=chunk)
        case.gradients(found.loss)

    assert largest.numel <= chunk
    with Largest() as largest:
        case.gradients(case.whole(OBJECTIVES[name]))
    assert largest.numel == 400 * 300  # what the mode would have seen
