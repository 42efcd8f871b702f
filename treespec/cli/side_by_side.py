"""Plain decoding, chains and trees side by side: runs that take turns, and rates of them."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from treespec import Chain, DecodeStats, TreeDecoder
from treespec.audit import Divergence, compare
from treespec.cli.reporting import progress_bar
from treespec.hook import TreeGenerate

CHAIN_LENGTH = 31
_WARM_UP_TOKENS = 8
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One prompt decoded by one method, several times over.

    Attributes:
        method: what the table calls it.
        new_ids: the tokens it gave.
        stats: their counts.
        times_s: how long each run took, the prompt included.
        is_same: whether the tokens are those of plain decoding.
        divergence: the first difference; None if there is none, or if one text only ends sooner.
    """

    method: str
    new_ids: list[int]
    stats: DecodeStats
    times_s: list[float]
    is_same: bool
    divergence: Divergence | None

    @property
    def is_near_tie(self) -> bool:
        """Whether the text differs, and rounding explains it."""
        return self.divergence is not None and self.divergence.is_near_tie

    @property
    def is_wrong(self) -> bool:
        """Whether the text differs, and rounding does not explain it."""
        return not self.is_same and not self.is_near_tie

    @property
    def elapsed_s(self) -> float:
        """Median time of a run."""
        return statistics.median(self.times_s)


def measure(
    target: PreTrainedModel,
    prompts: Sequence[Int[Tensor, "1 _P"]],
    *,
    max_new_tokens: int,
    rounds: int,
) -> list[list[Run]]:
    """Runs of each method for each prompt, plain decoding first.

    Methods take turns, so that a machine that slows down slows all of them; a first short run of
    each is not counted. No round begins a minute after the first did.
    """
    decoders = {
        "plain": TreeDecoder(target, None),
        "chain": TreeDecoder(target, tree=Chain(CHAIN_LENGTH)),
        "tree": TreeDecoder(target),
    }
    for decoder in decoders.values():
        decoder.generate(prompts[0], max_new_tokens=_WARM_UP_TOKENS, do_sample=False)
    generate: Any = target.generate  # typed as a submodule by torch
    times_s: list[dict[str, list[float]]] = [{name: [] for name in decoders} for _ in prompts]
    hooks: list[dict[str, TreeGenerate]] = [{} for _ in prompts]
    began = time.perf_counter()
    with progress_bar() as bars:
        work = bars.add_task("decoding", total=rounds * len(prompts) * len(decoders), detail="")
        for done in range(rounds):
            if done > 0 and time.perf_counter() - began > _PATIENCE_S:
                break
            for place, ids in enumerate(prompts):
                for name, decoder in decoders.items():
                    bars.update(work, detail=f"prompt {place + 1}, {name}")
                    hook = hooks[place][name] = decoder.hook()
                    started = time.perf_counter()
                    generate(
                        ids, custom_generate=hook, max_new_tokens=max_new_tokens, do_sample=False
                    )
                    times_s[place][name].append(time.perf_counter() - started)
                    bars.advance(work)
    return [
        [
            _as_run(decoder, name, hooks[place][name], hooks[place]["plain"], times_s[place][name])
            for name, decoder in decoders.items()
        ]
        for place in range(len(prompts))
    ]


def _as_run(
    decoder: TreeDecoder,
    method: str,
    hook: TreeGenerate,
    plain: TreeGenerate,
    times_s: list[float],
) -> Run:
    nodes = decoder.tree.limits(depth=len(hook.rows[0].new_tokens)).budget + 1
    audit = compare(decoder.target, plain.rows, hook.rows, nodes=nodes, temperature=0.0)
    return Run(
        method=method,
        new_ids=hook.rows[0].new_tokens,
        stats=hook.rows[0].stats(),
        times_s=times_s,
        is_same=hook.rows[0].new_tokens == plain.rows[0].new_tokens,
        divergence=next(iter(audit.divergences), None),
    )


def rates(runs: Sequence[Run], plain: Sequence[Run]) -> tuple[str, ...]:
    """Tokens, steps, acceptance length, tokens per second and speed-up of several runs together."""
    emitted = sum(run.stats.emitted for run in runs)
    steps = sum(run.stats.steps for run in runs)
    per_second = emitted / sum(run.elapsed_s for run in runs)
    plain_per_second = sum(run.stats.emitted for run in plain) / sum(r.elapsed_s for r in plain)
    length = f"{(emitted - len(runs)) / steps:.2f}" if steps else "-"
    speed_up = f"{per_second / plain_per_second:.2f}x"
    return str(emitted), str(steps), length, f"{per_second:.1f}", speed_up
