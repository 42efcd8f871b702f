"""Prompt lookup as transformers does it, as a drafter: the linear baseline of replays."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from treespec.drafters.base import DraftContext, Round
from treespec.tree.shapes import TreeLimits
from treespec.tree.token_tree import TokenTree


class PromptLookupChain:
    """Chains from `PromptLookupCandidateGenerator`; one row at a time.

    Args:
        length: most tokens of a chain, `prompt_lookup_num_tokens` of `generate`.
    """

    taps: tuple[int, ...] = ()
    draws: tuple[str, ...] = ("shared", "topk")

    def __init__(self, length: int) -> None:
        self.length = length

    def begin(self, prompts: Sequence[Tensor], context: DraftContext) -> "PromptLookupSession":
        """See `Drafter.begin`."""
        return PromptLookupSession(prompts, self.length, context)


class PromptLookupSession:
    """The text of each row."""

    def __init__(self, prompts: Sequence[Tensor], length: int, context: DraftContext) -> None:
        self._texts = [prompt.tolist() for prompt in prompts]
        self._draw = context.draw
        self._generator = PromptLookupCandidateGenerator(
            num_output_tokens=length, max_length=1 << 40, max_matching_ngram_size=2
        )

    def propose(self, limits: Sequence[TreeLimits]) -> list[TokenTree]:
        """See `DraftSession.propose`."""
        return [self._chain(*each) for each in zip(self._texts, limits, strict=True)]

    def observe(self, rounds: Sequence[Round]) -> None:
        """See `DraftSession.observe`."""
        for text, one in zip(self._texts, rounds, strict=True):
            if one.tree is not None:
                text += [one.tree.token_list[node] for node in one.acceptance.path[1:]]
            text.append(one.acceptance.next_token)

    def keep(self, rows: Sequence[int]) -> None:
        """See `DraftSession.keep`."""
        self._texts = [self._texts[row] for row in rows]

    def _chain(self, text: list[int], limits: TreeLimits) -> TokenTree:
        ids = torch.LongTensor([text])
        drafted = self._generator.get_candidates(ids)[0][0, len(text) :].tolist()
        tokens = [text[-1], *drafted[: min(limits.budget, limits.depth)]]
        return TokenTree.from_lists(list(range(-1, len(tokens) - 1)), tokens, draw=self._draw)
