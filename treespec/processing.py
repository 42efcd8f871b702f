"""Logits processors applied at every node of a tree, with that node's own path as history."""

import copy
from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process as hf

from treespec.errors import UnsupportedOptionError
from treespec.scores import NodeScores
from treespec.tree.token_tree import TokenTree
from treespec.truncation import split_truncation

# Functions of the scores alone: one call serves all nodes, whatever their histories.
STATELESS = (
    hf.TemperatureLogitsWarper,
    hf.TopKLogitsWarper,
    hf.TopPLogitsWarper,
    hf.MinPLogitsWarper,
    hf.TypicalLogitsWarper,
    hf.EpsilonLogitsWarper,
    hf.EtaLogitsWarper,
    hf.SuppressTokensLogitsProcessor,
    hf.InfNanRemoveLogitsProcessor,
    hf.LogitNormalization,
)

# Processors that remember earlier calls, or know rows by their place in the batch.
_REFUSED = (
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "ClassifierFreeGuidanceLogitsProcessor",
    "WatermarkLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor",
    "DiaClassifierFreeGuidanceLogitsProcessor",
)


class PathProcessor:
    """The processors of one row, applied to the logits of a whole tree.

    Args:
        processors: as `generate` prepares them, in order.

    Raises:
        UnsupportedOptionError: for a processor that keeps state between calls.
    """

    def __init__(self, processors: Sequence[LogitsProcessor]) -> None:
        for processor in processors:
            if type(processor).__name__ in _REFUSED:
                raise UnsupportedOptionError(
                    f"{type(processor).__name__} remembers earlier calls, so it cannot be applied "
                    f"to the "
                    "nodes of a tree; leave the option that adds it out (guidance_scale, "
                    "watermarking_config)"
                )
        self.processors = list(processors)
        self._before, self._truncation = split_truncation(processors)

    def __call__(
        self, history: Int[Tensor, " L"], tree: TokenTree, logits: Float[Tensor, "N V"]
    ) -> NodeScores:
        """Processed scores of every node.

        Args:
            history: the row's prompt block as given and its new tokens, the root last; node i's
                own history is this and the tokens of its path below the root.
            tree: the scored tree.
            logits: the target's logits of its nodes.
        """
        scores = logits
        for processor in self._before:
            scores = self._apply(processor, history, tree, scores.float())
        if self._truncation is None:
            return NodeScores.of_all(scores)
        return self._truncation(scores)

    def _apply(
        self,
        processor: LogitsProcessor,
        history: Int[Tensor, " L"],
        tree: TokenTree,
        scores: Float[Tensor, "N V"],
    ) -> Float[Tensor, "N V"]:
        if type(processor) is hf.RepetitionPenaltyLogitsProcessor and not isinstance(
            processor.prompt_ignore_length, Tensor
        ):
            return _penalised(processor, history, tree, scores)
        history = history.to(scores.device)
        if isinstance(processor, STATELESS):
            return processor(cast(torch.LongTensor, history.expand(len(tree), -1)), scores)
        return self._by_depth(processor, history, tree, scores)

    def _by_depth(
        self,
        processor: LogitsProcessor,
        history: Int[Tensor, " L"],
        tree: TokenTree,
        scores: Float[Tensor, "N V"],
    ) -> Float[Tensor, "N V"]:
        """One call per depth: nodes at one depth have histories of one length."""
        processed = torch.empty_like(scores)
        for depth in range(tree.topology.max_depth + 1):
            nodes = [node for node, d in enumerate(tree.topology.depth_list) if d == depth]
            paths = torch.tensor(
                [tree.path_tokens(node)[1:] for node in nodes],
                dtype=torch.int64,
                device=scores.device,
            ).reshape(len(nodes), depth)
            histories = torch.cat([history.expand(len(nodes), -1), paths], dim=1)
            processed[nodes] = processor(cast(torch.LongTensor, histories), scores[nodes])
        return processed


def _penalised(
    processor: hf.RepetitionPenaltyLogitsProcessor,
    history: Int[Tensor, " L"],
    tree: TokenTree,
    scores: Float[Tensor, "N V"],
) -> Float[Tensor, "N V"]:
    """What the repetition penalty makes of every node, touching the repeated tokens only.

    Many models ask for it in their generation config, and transformers' own copies the vocabulary
    several times over; here the nodes share the penalties of the text, and each adds its path's.
    """
    vocab_size, device = scores.shape[1], scores.device
    common = set(history[processor.prompt_ignore_length or 0 :].tolist())
    own = {
        (node, token)
        for node in range(1, len(tree))
        for token in tree.path_tokens(node)[1:]
        if token not in common and token < vocab_size
    }
    shared = torch.tensor([token for token in common if token < vocab_size], device=device).long()
    nodes, tokens = torch.tensor(list(own), device=device).long().reshape(-1, 2).T
    result = scores.clone()
    for place in ((slice(None), shared), (nodes, tokens)):
        before = scores[place]
        penalised = torch.where(before < 0, before * processor.penalty, before / processor.penalty)
        result[place] = penalised
    return result


def row_processors(processors: LogitsProcessorList, row: int, rows: int) -> list[LogitsProcessor]:
    """The processors as row `row` of `rows` needs them.

    Some of transformers' own look their row up in the batch by its place; each is copied for the
    one row, so that the nodes of a tree can stand where the rows of a batch would.
    """
    return [_for_row(processor, row, rows) for processor in processors]


def _for_row(processor: LogitsProcessor, row: int, rows: int) -> LogitsProcessor:
    if isinstance(processor, hf.PrefixConstrainedLogitsProcessor):
        allowed = processor._prefix_allowed_tokens_fn
        return hf.PrefixConstrainedLogitsProcessor(lambda _, sequence: allowed(row, sequence), 1)
    if isinstance(processor, hf.EncoderRepetitionPenaltyLogitsProcessor):
        penalised = copy.copy(processor)
        prompts = processor.encoder_input_ids
        place = row * prompts.shape[0] // rows
        penalised.encoder_input_ids = cast(torch.LongTensor, prompts[place : place + 1])
        return penalised
    if isinstance(processor, hf.RepetitionPenaltyLogitsProcessor):
        ignored = processor.prompt_ignore_length
        if isinstance(ignored, Tensor):
            penalising = copy.copy(processor)
            penalising.prompt_ignore_length = int(ignored[row * ignored.shape[0] // rows])
            return penalising
    if isinstance(processor, hf.EncoderNoRepeatNGramLogitsProcessor):
        banning = copy.copy(processor)
        place = row * processor.batch_size // rows
        banning.generated_ngrams = [processor.generated_ngrams[place]]
        banning.batch_size = 1
        return banning
    return processor
