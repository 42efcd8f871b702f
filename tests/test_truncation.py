"""Top-k, top-p and min-p from the largest scores are what transformers makes of all of them."""

import pytest
import torch
from transformers import LogitsProcessorList
from transformers.generation import logits_process as hf

from treespec.sampling import RowNoise
from treespec.scores import NodeScores
from treespec.tree.token_tree import TokenTree
from treespec.truncation import Truncation, split_truncation
from treespec.verify.gumbel import Gumbel

NO_HISTORY = torch.empty(1, 0, dtype=torch.int64)
CHAINS = {
    "top_k": [hf.TopKLogitsWarper(20)],
    "top_p": [hf.TopPLogitsWarper(0.7)],
    "min_p": [hf.MinPLogitsWarper(0.1)],
    "hot top_p": [hf.TemperatureLogitsWarper(1.3), hf.TopPLogitsWarper(0.6)],
    "all": [
        hf.TemperatureLogitsWarper(0.7),
        hf.TopKLogitsWarper(30),
        hf.TopPLogitsWarper(0.9),
        hf.MinPLogitsWarper(0.05),
    ],
    "top_p before the temperature": [hf.TopPLogitsWarper(0.8), hf.TemperatureLogitsWarper(0.5)],
    "at least three": [hf.TopPLogitsWarper(1e-6, min_tokens_to_keep=3)],
    "at least three of min_p": [hf.MinPLogitsWarper(1.0, min_tokens_to_keep=3)],
}


def logits(rows: int = 24, size: int = 3000, peak: float = 3.0) -> torch.Tensor:
    """Rows from nearly flat to very peaked."""
    generator = torch.Generator().manual_seed(size)
    sharpness = torch.linspace(0.2, peak, rows)[:, None]
    return torch.randn(rows, size, generator=generator) * sharpness


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("candidates", [8, 64, 4000])
def test_what_is_left_is_what_transformers_leaves(name, candidates):
    scores = logits()

    found = Truncation(CHAINS[name], candidates=candidates)(scores)

    assert torch.equal(found.dense(), LogitsProcessorList(CHAINS[name])(NO_HISTORY, scores))


def test_only_nodes_whose_cut_lies_beyond_the_candidates_are_undecided():
    scores = logits()

    found = Truncation(CHAINS["top_p"], candidates=64)(scores)

    kept = LogitsProcessorList(CHAINS["top_p"])(NO_HISTORY, scores) > -torch.inf
    assert found.undecided.tolist() == (kept.sum(dim=1) >= 64).tolist()
    assert 0 < found.undecided.sum() < len(scores)


def test_equals_of_the_last_candidate_leave_a_node_undecided():
    scores = torch.zeros(1, 100)
    scores[0, :5] = torch.tensor([3.0, 2.0, 1.0, 1.0, 1.0])

    narrow = Truncation([hf.TopPLogitsWarper(0.2)], candidates=4)(scores)
    wide = Truncation([hf.TopKLogitsWarper(3)], candidates=3)(scores)

    assert not narrow.undecided.any()
    assert not wide.undecided.any()
    assert torch.equal(wide.dense() > -torch.inf, scores > 0)
    tied = Truncation([hf.MinPLogitsWarper(0.1)], candidates=4)(scores)
    assert tied.undecided.all()
    assert torch.equal(tied.dense() > -torch.inf, scores > 0)


def test_equal_scores_stand_in_order_of_id():
    scores = torch.zeros(2, 600)
    scores[:, 100:110] = 1.0

    found = Truncation([hf.TopKLogitsWarper(10)])(scores)

    assert found.ids[:, :10].tolist() == [list(range(100, 110))] * 2


def test_tokens_ruled_out_before_stay_ruled_out():
    scores = logits()
    scores[:, 7:] = -torch.inf

    found = Truncation([hf.TopPLogitsWarper(0.999999)])(scores)

    assert not found.undecided.any()
    assert (found.dense()[:, 7:] == -torch.inf).all()


def test_the_choice_is_the_same_whether_few_candidates_are_seen_or_all():
    scores = logits(rows=12)
    tree = TokenTree.from_lists([-1, 0, 0, 1, 1, 2, 3, 3, 4, 5, 6, 7], list(range(12)))
    for seed in range(40):
        few, all_of_them = (
            Gumbel().accept([tree], [found], [RowNoise(seed)], [seed])
            for found in (
                Truncation(CHAINS["hot top_p"], candidates=16)(scores),
                NodeScores.of_all(LogitsProcessorList(CHAINS["hot top_p"])(NO_HISTORY, scores)),
            )
        )
        assert few == all_of_them


def test_an_undecided_node_on_the_path_is_asked_for_exactly_and_no_other():
    scores = logits(rows=4)
    tree = TokenTree.from_lists([-1, 0, 0, 0], [1, 2, 3, 4])
    asked = []
    found = Truncation([hf.MinPLogitsWarper(0.0)], candidates=4)(scores)
    exact = found.exact
    watched = NodeScores(
        found.values,
        found.ids,
        found.vocab_size,
        found.undecided,
        lambda node: (asked.append(node), exact(node))[1],
    )

    (acceptance,) = Gumbel().accept([tree], [watched], [RowNoise(5)], [0])

    assert asked == list(acceptance.path)


def test_only_what_comes_last_is_taken_over():
    penalty = hf.RepetitionPenaltyLogitsProcessor(1.2)
    hot, top_p, typical = CHAINS["hot top_p"][0], hf.TopPLogitsWarper(0.5), hf.TypicalLogitsWarper()

    before, truncation = split_truncation([penalty, hot, typical, hot, top_p])

    assert before == [penalty, hot, typical]
    assert truncation is not None
    assert truncation.processors == [hot, top_p]


@pytest.mark.parametrize(
    "processors",
    [
        [],
        [hf.TemperatureLogitsWarper(0.5)],
        [hf.TopPLogitsWarper(0.5), hf.SuppressTokensLogitsProcessor([1])],
        [hf.TopPLogitsWarper(0.5, filter_value=-1e4)],
        [hf.TopKLogitsWarper(100_000)],
        [type("Mine", (hf.TopPLogitsWarper,), {})(0.5)],
    ],
)
def test_whatever_else_comes_last_is_left_to_the_processors(processors):
    before, truncation = split_truncation(processors)

    assert before == processors
    assert truncation is None
