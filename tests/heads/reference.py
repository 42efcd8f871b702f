"""Medusa and Hydra written down once more: one path at a time, without a cache, from the weights.

And a head session that is compared with them while it decodes.
"""

import inspect
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, LlamaModel, PreTrainedModel

from treespec.heads import DraftHeads, DraftVocabulary
from treespec.heads.hydra import HydraHeads, HydraSession
from treespec.heads.layer import LayerConfig
from treespec.heads.medusa import MedusaHeads
from treespec.tree.growth import GrowingTree

# (heads, state f_t or p_t before the last committed token, path from that token on) -> logits
Reference = Callable[[DraftHeads, Float[Tensor, " H"], Sequence[int]], Float[Tensor, " D"]]
Layer = tuple[Float[Tensor, "heads T K"], Float[Tensor, "heads T K"]]


@torch.no_grad()
def target_states(target: PreTrainedModel, text: Sequence[int]) -> Float[Tensor, "T H"]:
    """Hidden states of a text after the final norm."""
    return target(torch.tensor([list(text)]), output_hidden_states=True).hidden_states[-1][0]


def silu(x: Tensor) -> Tensor:
    """The activation of both families."""
    return x / (1 + (-x).exp())


def target_logits(heads: DraftHeads, state: Float[Tensor, " H"]) -> Float[Tensor, " D"]:
    """What the target's own LM head says of a state, about the tokens that can be proposed."""
    logits = heads.borrowed.target.lm_head.weight @ state
    return logits if heads.vocabulary is None else logits[heads.vocabulary.ids]


@torch.no_grad()
def medusa(
    heads: MedusaHeads, state: Float[Tensor, " H"], path: Sequence[int]
) -> Float[Tensor, " D"]:
    """u_(l+1) = u_l + SiLU(W u_l + b), then L u_n."""
    weights, config, head = heads.state_dict(), heads.config, len(path) - 1
    u = state
    for layer in range(config.num_layers):
        x = weights[f"{head}.{layer}.linear.weight"] @ u
        if config.block_bias:
            x = x + weights[f"{head}.{layer}.linear.bias"]
        u = u + silu(x)
    if config.lm_head == "target":
        return target_logits(heads, u)
    return weights[f"{head}.{config.num_layers}.weight"] @ u


@torch.no_grad()
def hydra(
    heads: HydraHeads, state: Float[Tensor, " H"], path: Sequence[int]
) -> Float[Tensor, " D"]:
    """R z + r + SiLU(W z + w), the same block n - 1 times, then L y_n + c."""
    weights, config = heads.state_dict(), heads.config
    prefix = f"heads.{len(path) - 1}"
    embedding = heads.borrowed.target.get_input_embeddings().weight
    z = torch.cat([state, *(embedding[token] for token in path)])
    first = f"{prefix}.first"
    y = weights[f"{first}.residual.weight"] @ z + weights[f"{first}.residual.bias"]
    y = y + silu(weights[f"{first}.linear.weight"] @ z + weights[f"{first}.linear.bias"])
    for _ in range(config.num_layers - 1):
        block = f"{prefix}.block.linear"
        y = y + silu(weights[f"{block}.weight"] @ y + weights[f"{block}.bias"])
    if config.lm_head == "target":
        return target_logits(heads, y)
    logits = weights[f"{prefix}.lm_head.weight"] @ y
    return logits + weights[f"{prefix}.lm_head.bias"] if config.lm_head_bias else logits


@torch.no_grad()
def prefix_states(
    heads: HydraHeads, states: Float[Tensor, "T H"]
) -> tuple[Float[Tensor, "T H"], Layer]:
    """Transformers' own LlamaModel of one layer over the states, and its keys and values."""
    sizes = heads.config.prefix
    assert sizes is not None
    config = LlamaConfig(
        vocab_size=2,
        num_hidden_layers=1,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_attention_heads=sizes.num_attention_heads,
        num_key_value_heads=sizes.num_key_value_heads,
        head_dim=sizes.head_dim,
        rms_norm_eps=sizes.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": sizes.rope_theta},
        attn_implementation="eager",
    )
    model = LlamaModel(config)
    own = {
        name.removeprefix("prefix."): tensor
        for name, tensor in heads.state_dict().items()
        if name.startswith("prefix.")
    }
    renamed = {n if n.startswith("norm.") else f"layers.0.{n}": tensor for n, tensor in own.items()}
    lacking = model.load_state_dict(renamed, strict=False)
    assert lacking == (["embed_tokens.weight"], [])
    cache = DynamicCache()
    parameters = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in parameters else "past_key_values"
    output = model(inputs_embeds=states[None], use_cache=True, **{name: cache})
    return output.last_hidden_state[0], (cache.layers[0].keys[0], cache.layers[0].values[0])


def last_state(heads: DraftHeads, states: Float[Tensor, "T H"]) -> Float[Tensor, " H"]:
    """What a reference is given: the last state, or what a prefix layer makes of it."""
    if isinstance(heads, HydraHeads) and heads.prefix is not None:
        return prefix_states(heads, states)[0][-1]
    return states[-1]


def randomise(heads: nn.Module, seed: int = 0) -> None:
    """Give every parameter a value that shows in the output."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in heads.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() < 2:
                parameter.add_(0.3 * noise)
            else:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)


def tiny_layer(hidden_size: int = 32) -> LayerConfig:
    """A layer with fewer key heads than query heads, and heads that do not divide its width."""
    return LayerConfig(
        hidden_size=hidden_size,
        intermediate_size=40,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        rope_theta=500.0,
    )


def every_other(vocab: int) -> DraftVocabulary:
    """A reduced vocabulary, not in order."""
    return DraftVocabulary(torch.arange(0, vocab, 2).flip(0), vocab)


class ComparedSession:
    """A head session that fails where it says something else than the reference.

    Args:
        heads: the heads; from here on their sessions are compared.
        reference: what they should say.
        texts: the prompts, without padding.

    Attributes:
        depths: per depth the number of nodes compared.
        cache_checks: how often a prefix layer's cache was compared.
    """

    def __init__(
        self, heads: DraftHeads, reference: Reference, texts: Sequence[Sequence[int]]
    ) -> None:
        self.depths: dict[int, int] = {}
        self.cache_checks = 0
        self._heads, self._reference = heads, reference
        self._texts = [list(text[:1]) for text in texts]  # read() brings the rest
        self._states = [torch.empty(0) for _ in texts]
        self._caches: list[Layer | None] = [None for _ in texts]
        begin = heads.begin

        def begin_compared(batch: int) -> "ComparedSession":
            assert batch == len(texts)
            self._inner = begin(batch)
            return self

        heads.begin = begin_compared

    def read(
        self, features: Sequence[Float[Tensor, "_L F"]], tokens: Sequence[Int[Tensor, " _L"]]
    ) -> list[Tensor]:
        """See `HeadSession.read`."""
        found = self._inner.read(features, tokens)
        target = self._heads.borrowed.target
        for row, new in enumerate(tokens):
            if not len(new):
                assert found[row].shape == (0, self._heads.num_columns)
                continue
            text = self._texts[row]
            text += new.tolist()
            states = target_states(target, text[:-1])
            torch.testing.assert_close(features[row], states[-len(new) :], atol=1e-5, rtol=0)
            if isinstance(self._inner, HydraSession) and self._inner.runner is not None:
                states, self._caches[row] = prefix_states(self._heads, states)
            self._states[row] = states[-1]
            self._compare(row, text[-1:], found[row][0])
            assert len(found[row]) == 1
        self._compare_caches()
        return found

    def extend(
        self, trees: Sequence[GrowingTree], frontiers: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        """See `HeadSession.extend`."""
        found = self._inner.extend(trees, frontiers)
        for row, (tree, frontier) in enumerate(zip(trees, frontiers, strict=True)):
            assert found[row].shape == (len(frontier), self._heads.num_columns)
            for node, logits in zip(frontier, found[row], strict=True):
                path = []
                while node >= 0:
                    path.insert(0, tree.tokens[node])
                    node = tree.parents[node]
                assert path[0] == self._texts[row][-1]
                self._compare(row, path, logits)
        self._compare_caches()
        return found

    def keep(self, rows: Sequence[int]) -> None:
        """See `HeadSession.keep`."""
        self._inner.keep(rows)
        self._texts = [self._texts[row] for row in rows]
        self._states = [self._states[row] for row in rows]
        self._caches = [self._caches[row] for row in rows]

    def _compare(self, row: int, path: Sequence[int], logits: Float[Tensor, " D"]) -> None:
        expected = self._reference(self._heads, self._states[row], path)
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
        self.depths[len(path) - 1] = self.depths.get(len(path) - 1, 0) + 1

    def _compare_caches(self) -> None:
        """Whether a prefix layer's cache holds what a fresh run over the committed pairs leaves."""
        if not isinstance(self._inner, HydraSession) or self._inner.runner is None:
            return
        cache = self._inner.runner.cache
        assert cache.scratch == [0] * len(cache)
        assert cache.lengths == [len(text) - 1 for text in self._texts]
        for row, fresh in enumerate(self._caches):
            if fresh is not None:
                for held, expected in zip(cache.layer(0, row), fresh, strict=True):
                    torch.testing.assert_close(held, expected, atol=1e-5, rtol=0)
                self.cache_checks += 1
