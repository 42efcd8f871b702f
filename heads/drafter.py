"""One drafter for every family of draft heads."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.drafters.base import DraftContext, Round
from treespec.drafters.drawing import Drawn, Place, draw_children
from treespec.drafters.expansion import ForwardExpander, with_paths
from treespec.errors import ConfigError, DrafterError
from treespec.heads.base import DraftHeads
from treespec.tree.growth import GrowingTree, Grown, grow
from treespec.tree.shapes import TreeLimits
from treespec.tree.token_tree import TokenTree

_DRAWS = ("shared", "topk", "swor", "iid", "iid_paths")
# A level of EAGLE or Hydra costs a few per cent of a target's forward.
_LEAST_GAIN = 0.03


class HeadDrafter:
    """Drafts with heads on the target's hidden states.

    Heads without a sequence of their own (Medusa) offer the same candidates after every node of a
    depth, so that best-first trees follow the products of their probabilities; the others are asked
    level by level, with the path of every node.

    Args:
        heads: what `load_heads` returned, or heads just trained.
        draw: how to draw siblings: "shared", "topk", "swor", "iid" or "iid_paths"; None leaves the
            choice to the verifier.
        least_gain: go one level deeper only while the heads themselves expect at least this many
            more accepted tokens from it, in [0, 1]; None for what suits the family.

    Raises:
        ConfigError: for an unknown draw or a gain outside its range.
    """

    def __init__(
        self, heads: DraftHeads, *, draw: str | None = None, least_gain: float | None = None
    ) -> None:
        if draw is not None and draw not in _DRAWS:
            raise ConfigError(
                f"draw is {draw!r}; HeadDrafter draws siblings by {', '.join(_DRAWS)}"
            )
        if least_gain is not None and not 0 <= least_gain <= 1:
            raise ConfigError(f"least_gain must be in [0, 1], got {least_gain}")
        self.heads = heads
        self.taps: tuple[int, ...] = heads.taps
        self.draws: tuple[str, ...] = _DRAWS if draw is None else (draw,)
        default_gain = _LEAST_GAIN if heads.costs_a_level else 0.0
        self.least_gain = default_gain if least_gain is None else least_gain

    def begin(
        self, prompts: Sequence[Int[Tensor, " _L"]], context: DraftContext
    ) -> "HeadDraftSession":
        """See `Drafter.begin`.

        Raises:
            DrafterError: if the heads belong to a target with another vocabulary.
        """
        if self.heads.target_vocab_size != context.vocab_size:
            raise DrafterError(
                f"the heads belong to a target with {self.heads.target_vocab_size} logits, but "
                f"this one has {context.vocab_size}; load them with the target that decodes"
            )
        return HeadDraftSession(self, prompts, context)


class HeadDraftSession:
    """What each row has not read yet, and the heads' own session.

    Pairs are read at the start of the next proposal, so a step that drafts nothing costs nothing.
    """

    def __init__(
        self, drafter: HeadDrafter, prompts: Sequence[Int[Tensor, " _L"]], context: DraftContext
    ) -> None:
        self._heads = drafter.heads
        self._least_gain = drafter.least_gain
        self._context = context
        self._noises = list(context.noises)
        self._session = self._heads.begin(len(prompts))
        self._prompts = list(prompts)
        self._roots = [int(prompt[-1]) for prompt in prompts]
        self._root_positions = [len(prompt) - 1 for prompt in prompts]
        self._features: list[list[Tensor]] = [[] for _ in prompts]
        self._tokens: list[list[int]] = [[] for _ in prompts]
        vocabulary = self._heads.vocabulary
        self._ids = None if vocabulary is None else vocabulary.ids.to(self._heads.device)

    @property
    def least_gain(self) -> float:
        """Expected tokens below which a level is not worth its forward."""
        return self._least_gain

    @torch.no_grad()
    def propose(self, limits: Sequence[TreeLimits]) -> list[TokenTree]:
        """See `DraftSession.propose`."""
        if self._heads.max_depth is not None:
            limits = [limit.cut(min(limit.depth, self._heads.max_depth)) for limit in limits]
        if self._context.draw == "iid_paths":
            limits = [with_paths(limit) for limit in limits]
        asked = [limit.budget > 0 for limit in limits]
        if not any(asked):
            return [TokenTree.root_only(root, draw=self._context.draw) for root in self._roots]
        expander = ForwardExpander(self, self._read(asked), limits)
        grown = grow(expander, self._roots, limits, draw=self._context.draw)
        return [self._with_laws(one, laws) for one, laws in zip(grown, expander.laws, strict=True)]

    def observe(self, rounds: Sequence[Round]) -> None:
        """See `DraftSession.observe`; rejected nodes leave no trace."""
        for row, one in enumerate(rounds):
            if one.tree is None:
                nodes: Sequence[int] = range(len(self._prompts[row]))
                tokens = self._prompts[row][1:].tolist()
            else:
                nodes = one.acceptance.path
                tokens = [one.tree.token_list[node] for node in one.acceptance.path[1:]]
                self._root_positions[row] += len(tokens)
            self._features[row].append(one.output.features(self._heads.taps, nodes))
            self._tokens[row] += [*tokens, one.acceptance.next_token]
            self._roots[row] = one.acceptance.next_token
            self._root_positions[row] += 1
        self._prompts = [prompt[:0] for prompt in self._prompts]

    def keep(self, rows: Sequence[int]) -> None:
        """See `DraftSession.keep`."""
        self._session.keep(rows)
        self._noises = [self._noises[row] for row in rows]
        self._prompts = [self._prompts[row] for row in rows]
        self._roots = [self._roots[row] for row in rows]
        self._root_positions = [self._root_positions[row] for row in rows]
        self._features = [self._features[row] for row in rows]
        self._tokens = [self._tokens[row] for row in rows]

    def extend(
        self, trees: Sequence[GrowingTree], frontiers: Sequence[Sequence[int]]
    ) -> list[Float[Tensor, "_F _D"]]:
        """See `HeadSession.extend`."""
        return self._session.extend(trees, frontiers)

    def children(
        self,
        row: int,
        logits: Float[Tensor, "F D"],
        tree: GrowingTree,
        nodes: Sequence[int],
        width: int,
    ) -> Drawn:
        """Children of nodes with these logits."""
        place = Place(
            noise=self._noises[row],
            root_position=self._root_positions[row],
            nodes=nodes,
            depths=[tree.depths[node] for node in nodes],
        )
        return draw_children(
            logits,
            place,
            draw=self._context.draw,
            temperature=self._context.temperature,
            width=width,
            ids=self._ids,
        )

    def _read(self, asked: Sequence[bool]) -> list[Float[Tensor, "_M _D"]]:
        """Let the heads read what rows that are to draft have not read."""
        heads, features, tokens = self._heads, [], []
        width = next((found[0].shape[-1] for found in self._features if found), 0)
        for row, wanted in enumerate(asked):
            unread = self._features[row] if wanted else []
            found = torch.cat(unread) if unread else torch.empty(0, width)
            features.append(found.to(heads.device, heads.dtype))
            tokens.append(torch.tensor(self._tokens[row] if wanted else [], dtype=torch.int64))
            if wanted:
                self._features[row], self._tokens[row] = [], []
        return self._session.read(features, tokens)

    def _with_laws(self, grown: Grown, laws: Mapping[int, Float[Tensor, " _D"]]) -> TokenTree:
        """The tree with the laws that its nodes' children were drawn from, if it needs them."""
        if not laws or len(grown.tree) == 1:
            return grown.tree
        device = next(iter(laws.values())).device
        probs = torch.zeros(len(grown.tree), self._context.vocab_size, device=device)
        columns = slice(self._context.vocab_size) if self._ids is None else self._ids
        for node, origin in enumerate(grown.origins):
            if origin in laws:
                probs[node, columns] = laws[origin]
        return replace(grown.tree, draft_probs=probs)
