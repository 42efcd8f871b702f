"""A smaller causal LM as drafter, with its own cache, tree mask and best-first expansion."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from treespec.drafters.base import DraftContext, Round
from treespec.drafters.drawing import Drawn, Place, draw_children
from treespec.drafters.expansion import Expansion, ForwardExpander, new_nodes, with_paths
from treespec.errors import ConfigError, DrafterError
from treespec.target import Target
from treespec.tree.growth import GrowingTree, Grown, grow
from treespec.tree.shapes import TreeLimits
from treespec.tree.token_tree import TokenTree

# Sizes that differ by padding only stay well within this share of each other.
_PADDING_SHARE = 0.05


class ModelDrafter:
    """Drafts with a smaller causal LM that shares the target's tokenizer.

    Trees grow level by level, one forward of the draft model each, best candidates first. When
    sampling, children are ranked by the draft's log-probabilities plus the noise that the target
    will use for that position.

    Args:
        model: the draft model; never modified.
        tokenizer: its tokenizer.
        target_tokenizer: the target's. With both given their vocabularies are compared; without,
            only the numbers of logits are.
        draw: how to draw siblings: "shared", "topk", "swor", "iid" or "iid_paths"; None leaves the
            choice to the verifier.
        least_gain: go one level deeper only while the draft model itself expects at least this
            many more accepted tokens from it, in [0, 1].

    Raises:
        UnsupportedTargetError: if the model cannot run trees.
        DrafterError: if the tokenizers differ.
        ConfigError: for an unknown draw or a gain outside its range.
    """

    taps: tuple[int, ...] = ()

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        tokenizer: Any = None,
        target_tokenizer: Any = None,
        draw: str | None = None,
        least_gain: float = 0.1,
    ) -> None:
        known = ("shared", "topk", "swor", "iid", "iid_paths")
        if draw is not None and draw not in known:
            raise ConfigError(
                f"draw is {draw!r}; ModelDrafter draws siblings by {', '.join(known)}"
            )
        if not 0 <= least_gain <= 1:
            raise ConfigError(f"least_gain must be in [0, 1], got {least_gain}")
        if tokenizer is not None and target_tokenizer is not None:
            _require_same_tokens(tokenizer.get_vocab(), target_tokenizer.get_vocab())
        self.target = Target(model)
        self.draws: tuple[str, ...] = known if draw is None else (draw,)
        self.least_gain = least_gain
        self._tokenizers_compared = tokenizer is not None and target_tokenizer is not None

    def begin(
        self, prompts: Sequence[Int[Tensor, " _L"]], context: DraftContext
    ) -> "ModelDraftSession":
        """See `Drafter.begin`.

        Raises:
            DrafterError: if the vocabulary sizes cannot belong to one tokenizer.
        """
        mine, theirs = self.target.vocab_size, context.vocab_size
        if not self._tokenizers_compared and abs(mine - theirs) > max(
            _PADDING_SHARE * max(mine, theirs), 8
        ):
            raise DrafterError(
                f"the draft model has {mine} logits and the target {theirs}, more than padding "
                "explains; if they share a tokenizer all the same, pass tokenizer= and "
                "target_tokenizer= to ModelDrafter"
            )
        return ModelDraftSession(self, prompts, context)


class ModelDraftSession:
    """Cache and unread tokens of each row.

    The draft model reads what it has not seen (the prompt at first, later the accepted tokens that
    it did not run itself and the new root) at the start of each proposal, as part of its first
    forward; so a step in which nothing is drafted costs it nothing.
    """

    def __init__(
        self, drafter: ModelDrafter, prompts: Sequence[Int[Tensor, " _L"]], context: DraftContext
    ) -> None:
        self._target = drafter.target
        self._least_gain = drafter.least_gain
        self._context = context
        self._noises = list(context.noises)
        self._cache = self._target.new_cache(len(prompts), capacity=512)
        self._unread = [prompt.tolist() for prompt in prompts]
        self._vocab_size = min(self._target.vocab_size, context.vocab_size)
        self._expansions: list[Expansion] = []
        # growing node -> its place among the nodes that ran since the last commit
        self._slots: list[dict[int, int]] = []

    def propose(self, limits: Sequence[TreeLimits]) -> list[TokenTree]:
        """See `DraftSession.propose`."""
        limits = [self._within_context(row, limit) for row, limit in enumerate(limits)]
        asked = [limit.budget > 0 for limit in limits]
        if self._context.draw == "iid_paths":
            limits = [with_paths(limit) for limit in limits]
        roots = [unread[-1] for unread in self._unread]
        expander = ForwardExpander(self, self._read(asked), limits)
        self._slots = [{} for _ in limits]
        grown = grow(expander, roots, limits, draw=self._context.draw)
        self._expansions = [
            Expansion(one, slots) for one, slots in zip(grown, self._slots, strict=True)
        ]
        return [self._with_laws(one, laws) for one, laws in zip(grown, expander.laws, strict=True)]

    def _with_laws(self, grown: Grown, laws: Mapping[int, Float[Tensor, " _V"]]) -> TokenTree:
        """The tree with the laws that its nodes' children were drawn from, if it needs them."""
        if not laws or len(grown.tree) == 1:
            return grown.tree
        device = next(iter(laws.values())).device
        probs = torch.zeros(len(grown.tree), self._context.vocab_size, device=device)
        for node, origin in enumerate(grown.origins):
            if origin in laws:
                probs[node, : self._vocab_size] = laws[origin]
        return replace(grown.tree, draft_probs=probs)

    def observe(self, rounds: Sequence[Round]) -> None:
        """See `DraftSession.observe`; what was run here of the accepted path is kept."""
        paths: list[list[int]] = []
        for row, one in enumerate(rounds):
            accepted = (
                []
                if one.tree is None
                else [one.tree.token_list[node] for node in one.acceptance.path[1:]]
            )
            path = self._expansions[row].follow(accepted) if self._expansions else []
            paths.append(path)
            self._unread[row] += [*accepted[len(path) :], one.acceptance.next_token]
        self._cache.commit(paths)
        self._expansions = []

    def keep(self, rows: Sequence[int]) -> None:
        """See `DraftSession.keep`."""
        self._cache.keep(rows)
        self._unread = [self._unread[row] for row in rows]
        self._noises = [self._noises[row] for row in rows]

    def _within_context(self, row: int, limits: TreeLimits) -> TreeLimits:
        """No draft where the draft model's own positions end; less deep shortly before."""
        most = self._target.max_positions
        if most is None:
            return limits
        return limits.cut(most - self._cache.lengths[row] - len(self._unread[row]))

    def _read(self, asked: Sequence[bool]) -> list[Float[Tensor, "_M _V"]]:
        """Run what rows that are to draft have not read; logits `[1, V]` of their roots."""
        texts = [
            self._readable(unread) if wanted else torch.empty(0, dtype=torch.int64)
            for unread, wanted in zip(self._unread, asked, strict=True)
        ]
        if not any(asked):
            return [torch.empty(0, 0) for _ in texts]
        outputs = self._target.prefill(self._cache, texts)
        for row, wanted in enumerate(asked):
            if wanted:
                self._unread[row] = []
        return [output.logits for output in outputs]

    def _readable(self, tokens: Sequence[int]) -> Int[Tensor, " L"]:
        """Ids that only the target has become 0: a worse draft, and never out of range."""
        text = torch.tensor(tokens, dtype=torch.int64)
        return text.masked_fill_(text >= self._target.vocab_size, 0)

    def children(
        self,
        row: int,
        logits: Float[Tensor, "F V"],
        tree: GrowingTree,
        nodes: Sequence[int],
        width: int,
    ) -> Drawn:
        """Children of nodes with these logits."""
        place = Place(
            noise=self._noises[row],
            root_position=self._cache.lengths[row] - 1,
            nodes=nodes,
            depths=[tree.depths[node] for node in nodes],
        )
        return draw_children(
            logits[:, : self._vocab_size],
            place,
            draw=self._context.draw,
            temperature=self._context.temperature,
            width=width,
        )

    def extend(
        self, trees: Sequence[GrowingTree], frontiers: Sequence[Sequence[int]]
    ) -> list[Float[Tensor, "_F _V"]]:
        """Run the frontier nodes of every row in one forward; their logits."""
        nodes = [
            new_nodes(tree, frontier, ran)
            for tree, frontier, ran in zip(trees, frontiers, self._slots, strict=True)
        ]
        outputs = self._target.extend(self._cache, nodes)
        for ran, frontier in zip(self._slots, frontiers, strict=True):
            ran.update({node: len(ran) + place for place, node in enumerate(frontier)})
        return [output.logits for output in outputs]

    @property
    def least_gain(self) -> float:
        """Expected tokens below which a level is not worth its forward."""
        return self._least_gain


def _require_same_tokens(mine: Mapping[str, int], theirs: Mapping[str, int]) -> None:
    """Refuse tokenizers that give one id to different texts."""
    by_id = {index: text for text, index in theirs.items()}
    for text, index in mine.items():
        if by_id.get(index, text) != text:
            raise DrafterError(
                f"the tokenizers differ: id {index} is {text!r} for the draft model and "
                f"{by_id[index]!r} for "
                "the target; use a draft model of the target's family"
            )
