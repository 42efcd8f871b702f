"""Processors on trees: each node's history is its own path, whatever its cousins are."""

from collections.abc import Callable

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process as hf

from treespec.errors import UnsupportedOptionError
from treespec.processing import PathProcessor, row_processors
from treespec.tree.token_tree import TokenTree

VOCAB = 12
HISTORY = torch.tensor([3, 5, 3, 7])
TREE = TokenTree.from_lists([-1, 0, 0, 1, 2, 4], [7, 5, 3, 3, 5, 3])
PROMPT = HISTORY[None, :3]

PROCESSORS: dict[str, Callable[[], LogitsProcessor]] = {
    "temperature": lambda: hf.TemperatureLogitsWarper(0.7),
    "top_k": lambda: hf.TopKLogitsWarper(4),
    "top_p": lambda: hf.TopPLogitsWarper(0.6),
    "min_p": lambda: hf.MinPLogitsWarper(0.2),
    "typical_p": lambda: hf.TypicalLogitsWarper(0.6),
    "epsilon": lambda: hf.EpsilonLogitsWarper(0.05),
    "eta": lambda: hf.EtaLogitsWarper(0.05),
    "repetition": lambda: hf.RepetitionPenaltyLogitsProcessor(1.5),
    "ngram": lambda: hf.NoRepeatNGramLogitsProcessor(2),
    "bad_words": lambda: hf.NoBadWordsLogitsProcessor([[5, 3], [1]]),
    "sequence_bias": lambda: hf.SequenceBiasLogitsProcessor([[[7, 5], 4.0], [[2], -3.0]]),
    "suppress": lambda: hf.SuppressTokensLogitsProcessor([2, 4]),
    "min_length": lambda: hf.MinLengthLogitsProcessor(6, 1),
    "min_new_tokens": lambda: hf.MinNewTokensLengthLogitsProcessor(3, 3, 1),
    "forced_eos": lambda: hf.ForcedEOSTokenLogitsProcessor(6, 1),
    "encoder_repetition": lambda: hf.EncoderRepetitionPenaltyLogitsProcessor(1.5, PROMPT),
    "encoder_ngram": lambda: hf.EncoderNoRepeatNGramLogitsProcessor(2, PROMPT),
    "allowed": lambda: hf.PrefixConstrainedLogitsProcessor(
        lambda _, text: [int(text[-1]), int(text[-2]), len(text)], 1
    ),
    "decay": lambda: hf.ExponentialDecayLengthPenalty((1, 1.3), 1, 3),
}


def node_by_node(processors: list[LogitsProcessor], logits: torch.Tensor) -> torch.Tensor:
    """What plain decoding would do to each node, one at a time."""
    rows = []
    for node in range(len(TREE)):
        path = torch.tensor(TREE.path_tokens(node)[1:], dtype=torch.int64)
        text = torch.cat([HISTORY, path])[None]
        rows.append(LogitsProcessorList(processors)(text, logits[node : node + 1].clone()))
    return torch.cat(rows)


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_processor_sees_each_nodes_own_path(name):
    logits = torch.randn(len(TREE), VOCAB, generator=torch.Generator().manual_seed(1))
    processors = row_processors(LogitsProcessorList([PROCESSORS[name]()]), 0, 1)

    whole = PathProcessor(processors)(HISTORY, TREE, logits).dense()

    assert torch.equal(whole, node_by_node([PROCESSORS[name]()], logits))


def test_processors_apply_in_their_order():
    logits = torch.randn(len(TREE), VOCAB, generator=torch.Generator().manual_seed(2))
    names = ["repetition", "temperature", "ngram", "top_k", "top_p"]
    processors = row_processors(LogitsProcessorList([PROCESSORS[name]() for name in names]), 0, 1)

    whole = PathProcessor(processors)(HISTORY, TREE, logits).dense()

    assert torch.equal(whole, node_by_node([PROCESSORS[name]() for name in names], logits))


def test_a_users_processor_is_called_with_whole_histories():
    seen = []

    class Recorder(LogitsProcessor):
        def __call__(self, input_ids, scores):
            seen.extend(input_ids.tolist())
            return scores

    PathProcessor([Recorder()])(HISTORY, TREE, torch.zeros(len(TREE), VOCAB))

    expected = [[*HISTORY.tolist(), *TREE.path_tokens(node)[1:]] for node in range(len(TREE))]
    assert sorted(seen) == sorted(expected)


def test_logits_are_not_changed_in_place():
    logits = torch.randn(len(TREE), VOCAB)
    before = logits.clone()

    PathProcessor([hf.TemperatureLogitsWarper(0.5), hf.TopKLogitsWarper(2)])(HISTORY, TREE, logits)

    assert torch.equal(logits, before)


def test_scores_are_float32_whatever_the_logits_are():
    logits = torch.randn(len(TREE), VOCAB).bfloat16()

    scores = PathProcessor([hf.TemperatureLogitsWarper(0.5)])(HISTORY, TREE, logits).dense()

    assert scores.dtype == torch.float32


def test_each_row_of_a_batch_gets_its_own_prompt_and_place():
    prompts = torch.tensor([[1, 2], [3, 4]])
    places = []

    def allowed(row: int, _text: torch.Tensor) -> list[int]:
        places.append(row)
        return [0]

    processors = LogitsProcessorList(
        [
            hf.EncoderRepetitionPenaltyLogitsProcessor(2.0, prompts),
            hf.PrefixConstrainedLogitsProcessor(allowed, 1),
        ]
    )
    own = row_processors(processors, 3, 4)
    own[1](torch.zeros(5, 3, dtype=torch.int64), torch.zeros(5, VOCAB))

    assert own[0].encoder_input_ids.tolist() == [[3, 4]]
    assert places == [3] * 5


def test_a_processor_that_remembers_calls_is_refused_by_name():
    class WatermarkLogitsProcessor(LogitsProcessor):
        pass

    with pytest.raises(UnsupportedOptionError, match="WatermarkLogitsProcessor remembers"):
        PathProcessor([WatermarkLogitsProcessor()])
