"""A target answers prompts, and its answers become training data."""

import hashlib
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from treespec.errors import ConfigError, DataError
from treespec.heads.formats.fingerprint import Fingerprint
from treespec.heads.formats.saving import name_of
from treespec.training.answering import DistillOptions, TargetAnswers
from treespec.training.asking import ServerAnswers
from treespec.training.conversations import Conversation, Piece, existing_answers
from treespec.training.data import DataFolder, check_labels, open_data
from treespec.training.examples import DataMeta
from treespec.training.masks import hash_of_template
from treespec.training.passages import end_ids_of
from treespec.training.prompts import Prompt
from treespec.training.server import ChatServer, RequestRefusedError
from treespec.training.writing import DataWriter

Notify = Callable[[int, int, int], None]

_JUDGED_AFTER = 32  # examples; whether masks are empty, or a server refuses everything, shows early


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillReport:
    """What came of it.

    Attributes:
        data: the folder, opened.
        num_added: conversations that this run added.
        num_skipped: prompts without room for an answer, and those that a server refused.
    """

    data: DataFolder
    num_added: int
    num_skipped: int


def distill(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    out: str | Path,
    options: DistillOptions | None = None,
    *,
    notify: Notify | None = None,
) -> DistillReport:
    """Let the target answer prompts, and write what `open_data` reads.

    A run that was killed is taken up again by the same call; more prompts may have been added. What
    is sampled depends on the seed and the prompt's id, not on the batch or on interruptions.

    Args:
        target: the model that heads are to be trained for.
        tokenizer: its tokenizer.
        prompts: see `read_prompts`.
        out: folder to write to.
        options: how; `DistillOptions()` if left out.
        notify: is told conversations done, all conversations, and the tokens that this run added.

    Raises:
        DataError: if the folder has other data, or prompts cannot be answered or masked.
        ConfigError: for taps that the target does not have.
        UnsupportedTargetError: if the target cannot run trees.
    """
    options = options or DistillOptions()
    answers = TargetAnswers(target, tokenizer, options)
    meta = DataMeta(
        target=name_of(target) or type(target).__name__,
        fingerprint=Fingerprint.of(target, tokenizer),
        vocab_size=answers.decoder.target.vocab_size,
        chat_template_sha256=hash_of_template(tokenizer),
        taps=answers.taps or None,
        hidden_dtype=answers.hidden_dtype,
        options=options.recorded(),
    )
    with DataWriter(out, meta) as writer:
        counter = _Counter(prompts, writer, notify)
        if options.keep_answers:
            _keep(answers, counter.waiting, tokenizer, end_ids_of(target), options, counter)
        else:
            _answer(answers, counter.waiting, tokenizer, options, counter)
    return counter.report(out)


def distill_from_server(
    server: ChatServer,
    tokenizer: PreTrainedTokenizerBase,
    fingerprint: Fingerprint,
    prompts: Sequence[Prompt],
    out: str | Path,
    options: DistillOptions | None = None,
    *,
    end_ids: Collection[int] = (),
    notify: Notify | None = None,
) -> DistillReport:
    """Let a server that runs the target answer; `batch_size` requests are under way at a time.

    Answers come as text, and are tokenized anew.

    Args:
        server: where the target runs.
        tokenizer: its tokenizer.
        fingerprint: the target's, see `Fingerprint.of_config`.
        prompts: see `read_prompts`.
        out: folder to write to.
        options: how; `DistillOptions()` if left out.
        end_ids: tokens that end an answer, besides the tokenizer's special ones.
        notify: as for `distill`.

    Raises:
        DataError: as `distill`.
        ConfigError: for options that a server cannot honour.
        ServerError: if the server fails, also when asked again.
    """
    options = options or DistillOptions()
    if options.taps or options.keep_answers:
        name = "taps" if options.taps else "keep_answers"
        raise ConfigError(
            f"{name} cannot be combined with a server, which gives neither hidden states nor "
            "answers that exist already; leave it out, or run the target here"
        )
    meta = DataMeta(
        target=server.model,
        fingerprint=fingerprint,
        vocab_size=fingerprint.vocab_size,
        chat_template_sha256=hash_of_template(tokenizer),
        taps=None,
        hidden_dtype=None,
        options={**options.recorded(), "answers": "server"},
    )
    asker = ServerAnswers(server, tokenizer, options, end_ids)
    with DataWriter(out, meta) as writer:
        counter = _Counter(prompts, writer, notify)
        pool = ThreadPoolExecutor(max_workers=options.batch_size)
        try:
            jobs = [pool.submit(asker.ask, prompt) for prompt in counter.waiting]
            for job in as_completed(jobs):
                conversation = job.result()
                counter.add(conversation.prompt, conversation.pieces)
                counter.step()
                if asker.refusal is not None and counter.num_skipped >= _JUDGED_AFTER:
                    counter.require_some(asker.refusal)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        if asker.refusal is not None:
            counter.require_some(asker.refusal)
    return counter.report(out)


class _Counter:
    """Hands finished conversations on, and counts them."""

    def __init__(
        self, prompts: Sequence[Prompt], writer: DataWriter, notify: Notify | None
    ) -> None:
        self.waiting = [one for one in prompts if one.id not in writer.done]
        self.num_added = self.num_skipped = 0
        self._writer = writer
        self._notify = notify
        self._total = len(prompts)
        self._tokens: list[int] = []

    def add(self, prompt: Prompt, pieces: Sequence[Piece]) -> None:
        """Take one conversation; without pieces it was skipped."""
        if not pieces:
            self.num_skipped += 1
            return
        self._writer.add(prompt.id, prompt.category, pieces)
        self.num_added += 1
        self._tokens += [sum(end - start for start, end in one.text.spans) for one in pieces]

    def step(self) -> None:
        """Write what is there, and tell how far it is."""
        if len(self._tokens) >= _JUDGED_AFTER:
            check_labels(self._tokens)
        self._writer.step()
        if self._notify is not None:
            done = self._total - len(self.waiting) + self.num_added + self.num_skipped
            self._notify(done, self._total, sum(self._tokens))

    def require_some(self, refusal: RequestRefusedError) -> None:
        """Raise the refusal if nothing but refusals came."""
        if not self.num_added and len(self.waiting) == self._total:
            raise refusal

    def report(self, out: str | Path) -> DistillReport:
        """What came of it."""
        if self.num_skipped == self._total:
            raise DataError(
                f"none of {self._total} prompts leaves the target room for an answer; give some "
                "that are shorter"
            )
        return DistillReport(
            data=open_data(out), num_added=self.num_added, num_skipped=self.num_skipped
        )


def _answer(
    answers: TargetAnswers,
    prompts: Sequence[Prompt],
    tokenizer: PreTrainedTokenizerBase,
    options: DistillOptions,
    counter: _Counter,
) -> None:
    """Answer all prompts in batches of like length."""
    lengths = {one.id: len(Conversation(one, tokenizer).request) for one in prompts}
    for batch in in_batches(prompts, lengths, options.batch_size):
        conversations = [Conversation(one, tokenizer) for one in batch]
        answers.answer(conversations)
        for one in conversations:
            counter.add(one.prompt, one.pieces)
        counter.step()


def _keep(
    answers: TargetAnswers,
    prompts: Sequence[Prompt],
    tokenizer: PreTrainedTokenizerBase,
    end_ids: Collection[int],
    options: DistillOptions,
    counter: _Counter,
) -> None:
    """Take over the answers that there are."""
    texts = {one.id: existing_answers(one, tokenizer, end_ids) for one in prompts}
    lengths = {name: len(parts[-1].tokens) for name, parts in texts.items()}
    for batch in in_batches(prompts, lengths, options.batch_size):
        for prompt in batch:
            fitting = [text for text in texts[prompt.id] if answers.fits(len(text.tokens))]
            states = answers.states([text.tokens for text in fitting])
            counter.add(prompt, [Piece(*both) for both in zip(fitting, states, strict=True)])
        counter.step()


def in_batches(prompts: Sequence[Prompt], lengths: dict[str, int], size: int) -> list[list[Prompt]]:
    """Prompts of like length together; batches in an order that lengths do not decide.

    So what a run has done at any moment looks like the whole, and the time left can be told.
    """
    ranked = sorted(prompts, key=lambda one: (lengths[one.id], one.id))
    batches = [ranked[start : start + size] for start in range(0, len(ranked), size)]
    return sorted(batches, key=lambda batch: hashlib.sha256(batch[0].id.encode()).digest())
