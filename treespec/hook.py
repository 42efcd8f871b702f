"""The engine behind transformers' own front door: a callable for `custom_generate`.

`model.generate` resolves the generation config, the processors and the stopping criteria; what
arrives here is what its own sampling loop would get, so that every option means the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from treespec import options
from treespec.cache import TreeCache, assemble
from treespec.errors import ConfigError, TreespecError
from treespec.processing import row_processors
from treespec.rows import Kept, Row
from treespec.sampling import RowNoise, row_seeds
from treespec.stats import DecodeStats
from treespec.streaming import RowStreamer
from treespec.target import Target

_SPARE_SLOTS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOutput:
    """What `TreeDecoder.generate` returns.

    Attributes:
        sequences: the prompts as given and the new tokens after them, padded as `generate` pads,
            shape `[B, T]`.
        stats: one per row.
        seeds: the seed of each row; None when greedy.
        scores: with `output_scores`, one tensor `[B, V]` per new position, processed, float32;
            zeros where a row has ended.
        logits: with `output_logits`, the same before processing.
        cache: with `return_dict_in_generate`, keys and values of all tokens but the last of each
            row, in the columns of `sequences`; give it to the next call as `cache=` (before
            transformers 5.24 `past_key_values=`) with the longer prompt.
    """

    sequences: Int[Tensor, "B T"]
    stats: list[DecodeStats]
    seeds: list[int] | None
    scores: tuple[Float[Tensor, "B V"], ...] | None = None
    logits: tuple[Float[Tensor, "B V"], ...] | None = None
    cache: DynamicCache | None = None


@runtime_checkable
class Engine(Protocol):
    """What decodes prepared rows; `TreeDecoder` does."""

    @property
    def target(self) -> Target:
        """The model that decides."""
        ...

    def run(
        self, rows: Sequence[Row], cache: TreeCache, stream: RowStreamer, *, temperature: float
    ) -> None:
        """Decode the rows to their ends."""
        ...


class TreeGenerate:
    """One way into the engine: pass it to `model.generate(custom_generate=...)`.

    Args:
        decoder: the decoder that runs.
        streamer: receives the prompt and then every new token; `generate` does not hand its own on.
        seed: as in `TreeDecoder.generate`.

    Attributes:
        last_output: what the last call produced; None before the first.
        rows: its rows.
        temperature: its temperature; 0 when greedy.
    """

    def __init__(
        self,
        decoder: Engine,
        *,
        streamer: BaseStreamer | None = None,
        seed: int | Sequence[int] | None = None,
    ) -> None:
        self._decoder = decoder
        self._streamer = streamer
        self._seed = seed
        self.last_output: TreeOutput | None = None
        self.rows: list[Row] = []
        self.temperature = 0.0

    def call(self, input_ids: Int[Tensor, "B W"], **arguments: Any) -> TreeOutput:
        """Go through the target's own `generate` and return everything that was found."""
        model: Any = self._decoder.target.model
        model.generate(input_ids, custom_generate=self, **arguments)
        if self.last_output is None:
            raise TreespecError(
                f"{type(model).__name__}.generate did not call the function given as "
                "custom_generate; its generate() is not the one of transformers"
            )
        return self.last_output

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Int[Tensor, "B W"],
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        seed: int | Sequence[int] | None = None,
        **model_arguments: Any,
    ) -> Int[Tensor, "B T"] | GenerateDecoderOnlyOutput:
        """Decode; called by `model.generate` with what it has prepared.

        Raises:
            UnsupportedOptionError: for an option that cannot be honoured, naming it.
            ConfigError: if the model is not the decoder's target, or a prompt is empty.
        """
        if model is not self._decoder.target.model:
            raise ConfigError(
                f"this hook decodes for another {self._decoder.target.support.model_class}; build "
                "a TreeDecoder for the model whose generate() you call"
            )
        options.check_config(generation_config)
        options.check_model_arguments(model_arguments)
        block, attention_mask = input_ids.cpu(), model_arguments.get("attention_mask")
        real = (
            torch.ones_like(block, dtype=torch.bool)
            if attention_mask is None
            else attention_mask.cpu().bool()
        )
        seeds = (
            row_seeds(self._seed if seed is None else seed, len(block))
            if generation_config.do_sample
            else None
        )
        rows = self._rows(
            block, real, seeds, logits_processor, stopping_criteria, generation_config
        )
        cache = self._cache(rows, real, generation_config, model_arguments)
        stream = RowStreamer(self._streamer, len(rows), options.pad_id(generation_config))
        stream.put_prompt(block)
        self.rows, self.temperature = rows, _temperature(generation_config)
        self._decoder.run(rows, cache, stream, temperature=self.temperature)
        stream.end()
        output = _output(input_ids, real, rows, seeds, generation_config)
        self.last_output = output
        return (
            _as_generate_returns(output)
            if generation_config.return_dict_in_generate
            else output.sequences
        )

    def _rows(
        self,
        block: Int[Tensor, "B W"],
        real: Bool[Tensor, "B W"],
        seeds: Sequence[int] | None,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
    ) -> list[Row]:
        """Each row's text, noise, processors and stop rules."""
        empty = [row for row, mask in enumerate(real) if not mask.any()]
        if empty or block.shape[1] == 0:
            raise ConfigError(
                f"row {empty[0] if empty else 0} of the prompt has no token; give at least one "
                "per row"
            )
        max_new_tokens = config.max_length - block.shape[1]
        if max_new_tokens < 1:
            raise ConfigError(
                f"max_length={config.max_length} leaves no room after a prompt of "
                f"{block.shape[1]} tokens; raise it, or give max_new_tokens of at least 1"
            )
        max_positions = self._decoder.target.max_positions
        if max_positions is not None and int(real.sum(dim=1).max()) > max_positions:
            raise ConfigError(
                f"the longest prompt has {int(real.sum(dim=1).max())} tokens, but the target has "
                f"{max_positions} positions; shorten the prompt"
            )
        support = self._decoder.target.support
        switch = support.rope_switch
        if switch is not None and len(block) > 1 and block.shape[1] + max_new_tokens > switch:
            raise options.refuse_batch_across(switch, support.model_class)
        return [
            Row(
                block[row],
                real[row],
                noise=RowNoise(None if seeds is None else seeds[row]),
                processors=row_processors(processors, row, len(block)),
                eos_ids=options.eos_ids(config),
                criteria=options.other_criteria(criteria),
                max_new_tokens=max_new_tokens,
                max_positions=max_positions,
                rope_switch=switch,
                rope_moves_on=support.rope_moves_on,
                kept=Kept(
                    wants_logits=bool(config.output_logits),
                    wants_scores=bool(config.output_scores),
                    wants_cache=bool(config.return_dict_in_generate),
                ),
            )
            for row in range(len(block))
        ]

    def _cache(
        self,
        rows: Sequence[Row],
        real: Bool[Tensor, "B W"],
        config: GenerationConfig,
        arguments: dict[str, Any],
    ) -> TreeCache:
        """Our own cache; what the caller's holds of the prompts is copied into it."""
        room = min(int(config.max_length), real.shape[1] + 1024) + _SPARE_SLOTS
        cache = self._decoder.target.new_cache(len(rows), capacity=room)
        given = arguments.get("cache", arguments.get("past_key_values"))
        if given is not None and given.get_seq_length() > 0:
            columns = [mask.nonzero().flatten() for mask in real]
            cache.load(given, [kept[:-1] for kept in columns])
        return cache


def _temperature(config: GenerationConfig) -> float:
    if not config.do_sample:
        return 0.0
    return 1.0 if config.temperature is None else float(config.temperature)


def _output(
    block: Int[Tensor, "B W"],
    real: Bool[Tensor, "B W"],
    rows: Sequence[Row],
    seeds: list[int] | None,
    config: GenerationConfig,
) -> TreeOutput:
    """What finished rows come to, padded as `generate` pads."""
    longest = max(len(row.new_tokens) for row in rows)
    new = torch.full((len(rows), longest), options.pad_id(config), dtype=block.dtype)
    for line, row in zip(new, rows, strict=True):
        line[: len(row.new_tokens)] = torch.tensor(row.new_tokens, dtype=block.dtype)
    cache = None
    if config.return_dict_in_generate:
        ends = [block.shape[1] + torch.arange(len(row.new_tokens) - 1) for row in rows]
        columns = [
            torch.cat([mask.nonzero().flatten(), end]) for mask, end in zip(real, ends, strict=True)
        ]
        cache = assemble([row.kept.cache for row in rows], columns)
    return TreeOutput(
        sequences=torch.cat([block, new.to(block.device)], dim=1),
        stats=[row.stats() for row in rows],
        seeds=seeds,
        scores=_by_position([row.kept.scores for row in rows]) if config.output_scores else None,
        logits=_by_position([row.kept.logits for row in rows]) if config.output_logits else None,
        cache=cache,
    )


def _by_position(rows: Sequence[Sequence[Float[Tensor, " V"]]]) -> tuple[Tensor, ...]:
    """Vectors of each row's tokens as one tensor per position."""
    empty = torch.zeros_like(rows[0][0])
    longest = max(len(row) for row in rows)
    return tuple(
        torch.stack([row[place] if place < len(row) else empty for row in rows])
        for place in range(longest)
    )


def _as_generate_returns(output: TreeOutput) -> GenerateDecoderOnlyOutput:
    """The same in transformers' own type; the cache goes under the name that it has there."""
    fields = GenerateDecoderOnlyOutput.__dataclass_fields__
    cache_name = "cache" if "cache" in fields else "past_key_values"
    cache: dict[str, Any] = {cache_name: output.cache}
    return GenerateDecoderOnlyOutput(
        sequences=cast(torch.LongTensor, output.sequences),
        scores=cast(Any, output.scores),
        logits=cast(Any, output.logits),
        **cache,
    )
