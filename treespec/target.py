"""The only file that calls a causal LM; it serves targets and draft models.

The model is used as it is: a 4-D mask, `position_ids` and a `TreeCache` are all that it sees.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from treespec.attention import LayerKind, NewNodes, build_masks
from treespec.cache import TreeCache
from treespec.support import Support, inspect_support
from treespec.tree.token_tree import TokenTree

PREFILL_TOP = 8
PREFILL_CHUNK = 512


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """What one forward of the target says about one row; tensors stay on the target's device.

    Attributes:
        logits: row i speaks of node i's children, shape `[N, V]`, in the model's dtype.
        hidden: for each tapped index of `hidden_states` the states of the N nodes, `[N, H]`.
        top_ids: after prefill the target's most probable token ids for every prompt position,
            most probable first, `[P, 8]`; None after a step, where `logits` tells.
    """

    logits: Float[Tensor, "N V"]
    hidden: dict[int, Float[Tensor, "_N H"]] = field(default_factory=dict)
    top_ids: Int[Tensor, "P K"] | None = None

    def features(
        self, taps: Sequence[int], nodes: Sequence[int] | None = None
    ) -> Float[Tensor, "_M F"]:
        """Tapped states side by side in the order of the taps; of these nodes only, if given."""
        states = [self.hidden[tap] for tap in taps]
        if nodes is not None:
            index = torch.tensor(list(nodes), dtype=torch.int64)
            states = [state[index.to(state.device)] for state in states]
        return torch.cat(states, dim=-1)


@dataclass(frozen=True, slots=True)
class _Forward:
    """Padded output of one call of the model."""

    logits: Float[Tensor, "B M V"]
    hidden: dict[int, Float[Tensor, "B N H"]]


class Target:
    """A causal LM that can score token trees.

    Args:
        model: any `AutoModelForCausalLM` whose attention takes a mask; it is never modified.

    Raises:
        UnsupportedTargetError: naming the class and what in it cannot work on a tree.

    Attributes:
        support: what was found out about the model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.support: Support = inspect_support(model)
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._selects_logits = "logits_to_keep" in parameters

    @property
    def device(self) -> torch.device:
        """Where token ids go in."""
        weight = self.model.get_input_embeddings().weight
        return weight.device if isinstance(weight, Tensor) else self.model.device

    @property
    def vocab_size(self) -> int:
        """Number of logits, padding rows of the vocabulary included."""
        return self.support.vocab_size

    @property
    def max_positions(self) -> int | None:
        """Positions that the model can embed; None without a limit."""
        return self.support.max_positions

    def new_cache(self, batch: int, *, capacity: int = 256) -> TreeCache:
        """An empty cache for `batch` rows with room for `capacity` slots at first."""
        return TreeCache(batch, self.support.num_layers, capacity=capacity)

    def prefill(
        self,
        cache: TreeCache,
        prompts: Sequence[Int[Tensor, " _L"]],
        *,
        taps: Sequence[int] = (),
        top: int = 0,
    ) -> list[TargetOutput]:
        """Run texts behind what each row has committed, commit them, and return their last logits.

        Long texts go through in chunks, so that neither masks nor logits grow with their square.

        Args:
            cache: the rows to extend.
            prompts: one text a row, on the CPU; empty for rows with nothing to add.
            taps: indices of `hidden_states` to return for every token.
            top: how many of the most probable ids to return for every token, 0 for none; no more
                than there are.

        Returns:
            Per row logits `[1, V]` of the last token (`[0, V]` for an empty text), hidden states
            and `top_ids` of all.
        """
        longest = max(prompt.shape[0] for prompt in prompts)
        chunk = longest if self.support.rope_switch is not None else PREFILL_CHUNK
        collected = [_Collected() for _ in prompts]
        for start in range(0, longest, max(chunk, 1)):
            nodes = [NewNodes.chain(prompt[start : start + chunk]) for prompt in prompts]
            lasts = [
                prompt.shape[0] - 1 - start if start < prompt.shape[0] <= start + chunk else None
                for prompt in prompts
            ]
            wanted = None if top else sorted({last for last in lasts if last is not None})
            output = self._forward(cache, nodes, taps, wanted)
            cache.commit([range(node.tokens.shape[0]) for node in nodes])
            kept = min(top, output.logits.shape[-1])
            best = output.logits.topk(kept, dim=-1).indices if top else None
            for row, (node, last) in enumerate(zip(nodes, lasts, strict=True)):
                size = node.tokens.shape[0]
                if last is not None:
                    place = (
                        last if wanted is None or not self._selects_logits else wanted.index(last)
                    )
                    collected[row].logits = output.logits[row, place : place + 1].clone()
                for tap, states in output.hidden.items():
                    collected[row].hidden.setdefault(tap, []).append(states[row, :size])
                if best is not None:
                    collected[row].top_ids.append(best[row, :size])
        return [row.output(self) for row in collected]

    def read(
        self, texts: Sequence[Int[Tensor, " _L"]], *, taps: Sequence[int]
    ) -> list[TargetOutput]:
        """`prefill` of texts that nothing follows: their cache is dropped."""
        cache = self.new_cache(len(texts), capacity=max(len(text) for text in texts))
        return self.prefill(cache, texts, taps=taps)

    def score(
        self, cache: TreeCache, trees: Sequence[TokenTree], *, taps: Sequence[int] = ()
    ) -> list[TargetOutput]:
        """Run one tree a row in one forward; `cache.commit` then keeps the accepted nodes."""
        return self.extend(
            cache,
            [
                NewNodes(tree.tokens, tree.topology.depths, tree.topology.ancestor_mask)
                for tree in trees
            ],
            taps=taps,
        )

    def extend(
        self, cache: TreeCache, nodes: Sequence[NewNodes], *, taps: Sequence[int] = ()
    ) -> list[TargetOutput]:
        """Run more nodes of each row's tree; those run since the last commit stay in the cache."""
        output = self._forward(cache, nodes, taps, None)
        return [
            TargetOutput(
                output.logits[row, : node.tokens.shape[0]],
                {tap: states[row, : node.tokens.shape[0]] for tap, states in output.hidden.items()},
            )
            for row, node in enumerate(nodes)
        ]

    @torch.no_grad()
    def _forward(
        self,
        cache: TreeCache,
        nodes: Sequence[NewNodes],
        taps: Sequence[int],
        wanted: Sequence[int] | None,
    ) -> _Forward:
        """Pad the rows, call the model, and note in the cache what was written."""
        counts = [node.tokens.shape[0] for node in nodes]
        longest = max(counts)
        prefix_lengths = list(cache.lengths)
        kv_length = cache.reserve(longest)
        input_ids = torch.zeros(len(nodes), longest, dtype=torch.int64)
        position_ids = torch.zeros(len(nodes), longest, dtype=torch.int64)
        for row, (node, prefix) in enumerate(zip(nodes, prefix_lengths, strict=True)):
            input_ids[row, : counts[row]] = node.tokens
            position_ids[row, : counts[row]] = node.positions + prefix
        device = self.device
        arguments: dict[str, object] = {
            "input_ids": input_ids.to(device),
            "position_ids": position_ids.to(device),
            "attention_mask": self._masks(nodes, prefix_lengths, kv_length, device),
            self._cache_argument: cache.hf,
            "use_cache": True,
            "return_dict": True,
        }
        if taps:
            arguments["output_hidden_states"] = sorted(set(taps))
        if wanted is not None and self._selects_logits:
            arguments["logits_to_keep"] = torch.tensor(wanted, dtype=torch.int64, device=device)
        output = self.model(**arguments)
        cache.wrote(counts)
        return _Forward(output.logits, {tap: output.hidden_states[tap] for tap in taps})

    def _masks(
        self,
        nodes: Sequence[NewNodes],
        prefix_lengths: Sequence[int],
        kv_length: int,
        device: torch.device,
    ) -> object:
        if self._is_plain_step(nodes, kv_length):
            return None
        return build_masks(
            nodes,
            prefix_lengths,
            kv_length,
            kinds=self.support.kinds,
            implementation=self.support.implementation,
            dtype=self.model.dtype,
            device=device,
        )

    def _is_plain_step(self, nodes: Sequence[NewNodes], kv_length: int) -> bool:
        """Whether one token sees every slot, so that no mask is needed and faster kernels apply."""
        return (
            len(nodes) == 1
            and nodes[0].depths.shape[0] == 1
            and all(_sees_all(kind, kv_length) for kind in self.support.kinds)
        )


def _sees_all(kind: LayerKind, kv_length: int) -> bool:
    reach = [limit for limit in (kind.window, kind.chunk) if limit is not None]
    return all(kv_length <= limit for limit in reach)


@dataclass(slots=True)
class _Collected:
    """One row's prefill output while chunks come in."""

    logits: Tensor | None = None
    hidden: dict[int, list[Tensor]] = field(default_factory=dict)
    top_ids: list[Tensor] = field(default_factory=list)

    def output(self, target: Target) -> TargetOutput:
        """The chunks as one output."""
        logits = self.logits
        if logits is None:
            logits = torch.empty(0, target.vocab_size)
        return TargetOutput(
            logits,
            {tap: torch.cat(states) for tap, states in self.hidden.items()},
            torch.cat(self.top_ids) if self.top_ids else None,
        )
