"""The decoder: propose a tree, score it in one forward, accept a path, commit, observe, append."""

import time
from collections.abc import Sequence
from types import EllipsisType
from typing import Any

from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from treespec import options
from treespec.cache import TreeCache
from treespec.cost import BudgetControl, costs_of
from treespec.drafters.base import DraftContext, Drafter, DraftSession, Round, check_proposal
from treespec.errors import ConfigError
from treespec.hook import TreeGenerate, TreeOutput
from treespec.rows import Row
from treespec.scores import NodeScores
from treespec.self_check import self_check_once
from treespec.settings import TreeShape, as_drafter, as_shape, common_draw
from treespec.streaming import RowStreamer
from treespec.target import PREFILL_TOP, Target, TargetOutput
from treespec.tree.shapes import AutoTree
from treespec.tree.token_tree import TokenTree
from treespec.verify import Rule, make_verifier
from treespec.verify.acceptance import Acceptance, Verifier


class TreeDecoder:
    """Generates with a target model and a drafter, and says what the target alone would say.

    Args:
        target: any decoder-only `transformers` model whose layers are attention; never modified.
        drafter: any `Drafter`. Left out, continuations are looked up in the text and recycled from
            the target's own earlier guesses; None decodes plainly through the same loop.
        tree: the shape of each step's tree. Left out, its size follows what steps cost here.
        verifier: the acceptance rule, by name or as an object. The default, "gumbel", gives exactly
            the tokens of plain decoding with the same seed, whatever the tree and the drafter.
        self_check: whether to compare one random tree with plain forwards, once per model and
            attention implementation.

    Raises:
        UnsupportedTargetError: if the target cannot run trees, naming its class and the reason.
        SelfCheckError: if its tree forward disagrees with plain forwards.
        DrafterError: if the drafter cannot draw as the verifier needs.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        drafter: Drafter | EllipsisType | None = ...,
        *,
        tree: TreeShape | None = None,
        verifier: str | Verifier = "gumbel",
        self_check: bool = True,
    ) -> None:
        self.target = Target(target)
        self.drafter = as_drafter(drafter)
        self.verifier: Verifier = make_verifier(verifier)
        self.is_plain = drafter is None
        self.draw = common_draw(self.verifier, self.drafter)
        self.tree = as_shape(tree, self.draw)
        if self_check:
            self_check_once(self.target)

    def generate(
        self,
        input_ids: Int[Tensor, "B W"] | None = None,
        *,
        attention_mask: Int[Tensor, "B W"] | None = None,
        streamer: BaseStreamer | None = None,
        seed: int | Sequence[int] | None = None,
        stop_strings: str | list[str] | None = None,
        tokenizer: Any = None,
        **arguments: Any,
    ) -> TreeOutput:
        """Generate as `model.generate` would; arguments mean the same.

        Args:
            input_ids: prompts, padded on either side, shape `[B, W]`.
            attention_mask: 1 for real tokens, 0 for padding.
            streamer: receives the prompt and then every new token.
            seed: an int for the batch (row r uses `row_seed(seed, r)`), one int per output row, or
                None to draw one from torch's global generator. Only sampling uses it.
            stop_strings: texts that end a row; needs `tokenizer`.
            tokenizer: the target's tokenizer.
            **arguments: everything else that `model.generate` takes for greedy and sampled
                decoding.

        Raises:
            UnsupportedOptionError: for an option that cannot be honoured, naming it.
        """
        for name in options.REFUSED_ARGUMENTS:
            if arguments.get(name) is not None:
                raise options.refuse(name, type(arguments[name]).__name__)
        if input_ids is None:
            raise ConfigError(
                "input_ids is missing; give the prompt's token ids, shape [batch, length]"
            )
        criteria = StoppingCriteriaList(arguments.pop("stopping_criteria", None) or [])
        if stop_strings is not None:
            criteria.append(options.stop_string_criteria(stop_strings, tokenizer))
        block, mask = options.left_padded(input_ids, attention_mask)
        hook = self.hook(streamer=streamer, seed=seed)
        output = hook.call(block, attention_mask=mask, stopping_criteria=criteria, **arguments)
        if block is not input_ids:
            repeats = output.sequences.shape[0] // input_ids.shape[0]
            output.sequences[:, : block.shape[1]] = input_ids.repeat_interleave(repeats, dim=0)
        return output

    def hook(
        self, *, streamer: BaseStreamer | None = None, seed: int | Sequence[int] | None = None
    ) -> "TreeGenerate":
        """The same engine for `model.generate(custom_generate=...)`.

        `generate` does not hand its `streamer` to a callable, so it is given here; `seed` may be
        given here or to `generate`.
        """
        return TreeGenerate(self, streamer=streamer, seed=seed)

    def run(
        self,
        rows: Sequence[Row],
        cache: TreeCache,
        stream: RowStreamer,
        *,
        temperature: float,
    ) -> None:
        """Decode prepared rows to their ends; the way in for `TreeGenerate`.

        Args:
            rows: the rows, nothing emitted yet.
            cache: theirs; it may hold a beginning of each prompt.
            stream: receives tokens as they come.
            temperature: the target's; 0 when greedy.

        Raises:
            DrafterError: when sampling, if the rule is not exact for trees of this shape.
        """
        if temperature > 0 and isinstance(self.verifier, Rule) and self.draw != "iid_paths":
            for topology in self.tree.examples():
                self.verifier.check_shape(topology, self.draw)
        context = DraftContext(
            noises=[row.noise for row in rows],
            temperature=temperature,
            vocab_size=self.target.vocab_size,
            device=self.target.device,
            draw=self.draw,
        )
        session = self.drafter.begin([row.prompt for row in rows], context)
        self._prefill(rows, cache, session, stream)
        self._decode(rows, cache, session, stream)

    def _decode(
        self, rows: Sequence[Row], cache: TreeCache, session: DraftSession, stream: RowStreamer
    ) -> None:
        """Run steps until every row has ended; rows that end leave the batch."""
        control = self._control(len(rows))
        live = self._drop_finished(list(range(len(rows))), rows, cache, session)
        while live:
            texts = [rows[row] for row in live]
            rests = control is not None and control.rests()
            limits = [self.tree.limits(depth=0 if rests else text.depth_left) for text in texts]
            started = time.perf_counter()
            trees = session.propose(limits)
            if control is not None:
                trees = control.cut(trees, live, time.perf_counter() - started)
            check_proposal(
                trees, [text.new_tokens[-1] for text in texts], limits, self.target.vocab_size
            )
            self._renew_at_rope_switch(texts, cache)
            started = time.perf_counter()
            outputs = self.target.score(cache, trees, taps=self.drafter.taps)
            scores = self._process(texts, trees, outputs)
            acceptances = self._accept(texts, trees, scores)
            cache.commit([acceptance.path for acceptance in acceptances])
            if control is not None:  # after accepting, which waits for the device
                control.saw(acceptances, live, trees, time.perf_counter() - started)
            session.observe(
                [Round(*parts) for parts in zip(trees, acceptances, outputs, strict=True)]
            )
            for place, row in enumerate(live):
                asked = limits[place].budget > 0 and not self.is_plain
                emitted = rows[row].record_step(trees[place], acceptances[place], asked=asked)
                nodes = acceptances[place].path[: len(emitted)]
                rows[row].kept.add(outputs[place].logits, scores[place], nodes)
                stream.put(row, emitted, finished=rows[row].finish_reason is not None)
            stream.flush()
            live = self._drop_finished(live, rows, cache, session)

    def _control(self, rows: int) -> BudgetControl | None:
        """What cuts the trees, if their size is to follow the cost of steps."""
        if self.is_plain or not isinstance(self.tree, AutoTree):
            return None
        return BudgetControl(costs_of(self.target.model), rows)

    def _renew_at_rope_switch(self, rows: Sequence[Row], cache: TreeCache) -> None:
        """Where `generate` would, run the text anew with the frequencies of long texts.

        They are chosen by the longest position of a forward, so the root has to be in it.
        """
        support = self.target.support
        if support.rope_recomputes and rows[0].root_position == support.rope_switch:
            cache.clear()
            self.target.prefill(cache, [row.committed for row in rows])
            cache.drop_last()

    def _prefill(
        self, rows: Sequence[Row], cache: TreeCache, session: DraftSession, stream: RowStreamer
    ) -> None:
        """Run the prompts and emit each row's first token."""
        top = 0 if self.is_plain else PREFILL_TOP
        if self.drafter.taps or self.target.support.rope_recomputes:
            cache.clear()  # hidden states of cached tokens, or their frequencies, are not known
        texts = [row.prompt[length:] for row, length in zip(rows, cache.lengths, strict=True)]
        outputs = self.target.prefill(cache, texts, taps=self.drafter.taps, top=top)
        roots = [TokenTree.root_only(int(row.prompt[-1])) for row in rows]
        scores = self._process(rows, roots, outputs)
        firsts = [Acceptance((), one.next_token) for one in self._accept(rows, roots, scores)]
        session.observe([Round(None, *parts) for parts in zip(firsts, outputs, strict=True)])
        for index, (row, first) in enumerate(zip(rows, firsts, strict=True)):
            row.emit([first.next_token])
            row.kept.add(outputs[index].logits, scores[index], (0,))
            stream.put(index, [first.next_token], finished=row.finish_reason is not None)
        stream.flush()

    def _process(
        self, rows: Sequence[Row], trees: Sequence[TokenTree], outputs: Sequence[TargetOutput]
    ) -> list[NodeScores]:
        """Scores of every node, processed with its own path as history."""
        return [
            row.process(row.history, tree, output.logits)
            for row, tree, output in zip(rows, trees, outputs, strict=True)
        ]

    def _accept(
        self, rows: Sequence[Row], trees: Sequence[TokenTree], scores: Sequence[NodeScores]
    ) -> list[Acceptance]:
        """Let the rule decide on each row's tree."""
        for row in rows:
            row.noise.forget(before=row.root_position + 1)
        noises = [row.noise for row in rows]
        return self.verifier.accept(trees, scores, noises, [row.root_position for row in rows])

    def _drop_finished(
        self, live: list[int], rows: Sequence[Row], cache: TreeCache, session: DraftSession
    ) -> list[int]:
        """Let rows that have ended leave the batch."""
        places = [place for place, row in enumerate(live) if rows[row].finish_reason is None]
        for place, row in enumerate(live):
            if place not in places and rows[row].kept.wants_cache:
                rows[row].kept.cache = cache.export(place, rows[row].root_position)
        if len(places) < len(live):
            if places:
                cache.keep(places)
                session.keep(places)
            live = [live[place] for place in places]
        return live
