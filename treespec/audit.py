"""Losslessness audit: where tree and plain decoding part, and whether a near-tie explains it.

In float32 the two agree token for token. In low precision a forward over many nodes and one over a
single token round differently, so that where the target's two best scores are within rounding of
each other, either may win; likewise where a processor's cut-off lies between two tokens. The audit
runs both ways, and at the first difference of a row asks the target twice, from fresh caches over
the common text: once with a single token, once with a tree of the same size. What the gap between
the two tokens is in the former, and by how much the latter moves it, tells a near-tie from a fault.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.decoder import TreeDecoder
from treespec.rows import Row
from treespec.target import Target
from treespec.tree.token_tree import TokenTree

# A gap within this is a tie in exact arithmetic for all practical purposes.
FLOAT32_TIE = 1e-3
# Rounding steps of the logits' dtype that count as a near-tie.
TIE_ULPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first place where a row's two texts differ.

    Attributes:
        row: the row.
        index: the place among the new tokens.
        plain_token: what plain decoding emitted there.
        tree_token: what tree decoding emitted there.
        gap: score of the plain token minus that of the tree token in a fresh one-token forward;
            scores are processed logits, with the position's noise when sampling. Infinite where a
            processor rules one of them out.
        difference: by how much a fresh forward over a tree moves that gap; where it is infinite,
            the gap of the logits.
        tolerance: the largest gap that rounding explains here.
        at_cut_off: whether logits moved by no more than the tolerance let a processor, such as
            top-p, keep the token that it rules out, or rule out the better one.
    """

    row: int
    index: int
    plain_token: int
    tree_token: int
    gap: float
    difference: float
    tolerance: float
    at_cut_off: bool = False

    @property
    def is_near_tie(self) -> bool:
        """Whether rounding explains the difference."""
        return abs(self.gap) <= self.tolerance or self.at_cut_off

    @property
    def verdict(self) -> str:
        """What it is: "near-tie", "cut-off" or "VIOLATION"."""
        if abs(self.gap) <= self.tolerance:
            return "near-tie"
        return "cut-off" if self.at_cut_off else "VIOLATION"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What an audit found.

    Attributes:
        rows: rows compared.
        tokens: new tokens compared, up to each row's first difference.
        divergences: the first difference of every row that has one.
    """

    rows: int
    tokens: int
    divergences: tuple[Divergence, ...]

    @property
    def near_ties(self) -> int:
        """Rows that part at a near-tie, one of a processor's cut-off included."""
        return sum(one.is_near_tie for one in self.divergences)

    @property
    def cut_offs(self) -> int:
        """Those of them that part where a processor's cut-off lies, as that of top-p."""
        return sum(one.verdict == "cut-off" for one in self.divergences)

    @property
    def violations(self) -> int:
        """Rows that part for no good reason; 0 unless something is wrong."""
        return len(self.divergences) - self.near_ties


def compare(
    target: Target, plain: Sequence[Row], tree: Sequence[Row], *, nodes: int, temperature: float
) -> Audit:
    """Compare two decodings of the same prompts with the same noise, row by row.

    Args:
        target: the target of both.
        plain: finished rows of `TreeDecoder(target, None)`.
        tree: finished rows of the decoder under audit.
        nodes: nodes of the tree that the second fresh forward runs, the root included.
        temperature: 0 when greedy; it scales what a rounding step of a logit means for a score.
    """
    tokens, divergences = 0, []
    for index, (one, other) in enumerate(zip(plain, tree, strict=True)):
        pairs = zip(one.new_tokens, other.new_tokens, strict=False)
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        tokens += len(one.new_tokens) if place is None else place
        if place is not None:
            divergences.append(_explain(target, index, place, one, other, nodes, temperature))
    return Audit(rows=len(plain), tokens=tokens, divergences=tuple(divergences))


def audit(
    decoder: TreeDecoder,
    input_ids: Int[Tensor, "B W"],
    *,
    seed: int = 0,
    **arguments: Any,
) -> Audit:
    """Decode prompts plainly and with `decoder`, and explain where the texts part.

    Args:
        decoder: the decoder under audit.
        input_ids: the prompts.
        seed: for sampling; both decodings use it.
        **arguments: as for `TreeDecoder.generate`, without stop strings and streamer.
    """
    plain = TreeDecoder(decoder.target.model, None, self_check=False)
    runs = []
    for one in (plain, decoder):
        hook = one.hook(seed=seed)
        hook.call(input_ids, **arguments)
        runs.append(hook)
    return compare(
        decoder.target,
        runs[0].rows,
        runs[1].rows,
        nodes=decoder.tree.limits(depth=2**31).budget + 1,
        temperature=runs[0].temperature,
    )


def _explain(
    target: Target, index: int, place: int, plain: Row, tree: Row, nodes: int, temperature: float
) -> Divergence:
    """Ask the target again at the first difference, from fresh caches."""
    chosen = [plain.new_tokens[place], tree.new_tokens[place]]
    text = torch.cat([plain.prompt, torch.tensor(plain.new_tokens[:place], dtype=torch.int64)])
    history = plain.history[: len(plain.history) - len(plain.new_tokens) + place]
    root = TokenTree.root_only(int(text[-1]))
    spread = TokenTree.from_lists([-1] + [0] * (nodes - 1), [int(text[-1])] * nodes)

    def process(logits: Float[Tensor, " V"]) -> Float[Tensor, " V"]:
        return plain.process(history, root, logits[None]).row(0)

    one, many = (_fresh_logits(target, text, shape)[0] for shape in (root, spread))
    noise = plain.noise.at(len(text), torch.tensor(chosen, device=one.device))
    gaps = [_gap(process(logits)[chosen] + noise) for logits in (one, many)]
    difference = abs(gaps[0] - gaps[1])
    if not math.isfinite(difference):
        difference = abs(_gap(one[chosen]) - _gap(many[chosen])) / (temperature or 1.0)
    tolerance = _tolerance(one[chosen], difference, temperature)
    return Divergence(
        row=index,
        index=place,
        plain_token=chosen[0],
        tree_token=chosen[1],
        gap=gaps[0],
        difference=difference,
        tolerance=tolerance,
        at_cut_off=abs(gaps[0]) > tolerance
        and _at_cut_off(process, one, chosen, gaps[0], tolerance * (temperature or 1.0)),
    )


def _gap(pair: Float[Tensor, " 2"]) -> float:
    """The first of two numbers minus the second."""
    return float(pair[0]) - float(pair[1])


def _at_cut_off(
    process: Callable[[Tensor], Tensor],
    logits: Float[Tensor, " V"],
    chosen: Sequence[int],
    gap: float,
    shift: float,
) -> bool:
    """Whether a shift of the logits against each other moves a token over a cut-off.

    Tokens that are ruled out must come back; if none is, the one with the better score must be able
    to go. What cuts by rank or by mass is moved most if every better token is moved one way by half
    the shift, and the token itself with all others the other way.
    """
    kept = [bool(torch.isfinite(process(logits)[token])) for token in chosen]
    ruled_out = [token for token, is_kept in zip(chosen, kept, strict=True) if not is_kept]
    better = chosen[0] if gap > 0 else chosen[1]
    half = shift / 2 if ruled_out else -shift / 2
    for token in ruled_out or [better]:
        above = logits.float() > float(logits[token])
        moved = logits.float() + torch.where(above, -half, half)
        if bool(torch.isfinite(process(moved)[token])) != bool(ruled_out):
            return False
    return True


def _fresh_logits(target: Target, text: Int[Tensor, " L"], tree: TokenTree) -> Float[Tensor, "N V"]:
    cache = target.new_cache(1, capacity=len(text) + len(tree))
    if len(text) > 1:
        target.prefill(cache, [text[:-1]])
    return target.score(cache, [tree])[0].logits


def _tolerance(logits: Float[Tensor, " 2"], difference: float, temperature: float) -> float:
    """The gap that rounding explains: what it did here, or a few steps of the logits' dtype."""
    if logits.dtype in (torch.float32, torch.float64):
        return FLOAT32_TIE
    largest = max(float(logits.abs().max()), 1.0)
    ulp = torch.finfo(logits.dtype).eps * 2.0 ** torch.tensor(largest).log2().floor().item()
    return max(difference, TIE_ULPS * ulp / (temperature or 1.0))
