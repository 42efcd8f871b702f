"""Whole runs: learning by heart, exact continuation, what a run leaves and refuses."""

import json
import signal
from functools import partial

import pytest
import torch

from tests.training.training_cases import (
    FAMILIES,
    PROMPT,
    folder_of,
    ragged_examples,
    settings,
    tiny_target,
    written_by_target,
)
from treespec import Chain, TreeDecoder
from treespec.errors import CheckpointError, ConfigError, DataError
from treespec.heads import HeadDrafter, load_heads
from treespec.training import labels
from treespec.training.checkpoints import read_checkpoint
from treespec.training.trainer import train_heads

DEPTH = 3
NEW = 1 + 2 * (DEPTH + 1)  # the target's first token, and two full steps
BY_HEART = {
    "medusa": {"num_heads": DEPTH, "num_layers": 2, "lm_head": "own"},
    "hydra": {"num_heads": DEPTH},
    "eagle3": {"unroll_steps": DEPTH},
    "eagle": {"unroll_steps": DEPTH, "feature_weight": 0.1},
}

run = partial(train_heads, tiny_target(), None)


def learn_by_heart(family, out, *, steps=250, **changes):
    texts = written_by_target(10, NEW)
    config = settings(
        family, batch_tokens=256, max_steps=steps, lr=1e-2, **BY_HEART[family], **changes
    )
    reports = []
    result = run(folder_of(texts), config, out, on_step=reports.append)
    return texts, result, reports


def decoded(heads, texts):
    prompts = torch.stack([one.tokens[:PROMPT] for one in texts])
    drafter = HeadDrafter(heads, least_gain=0.0)
    decoder = TreeDecoder(tiny_target(), drafter, tree=Chain(DEPTH))
    return decoder.generate(
        prompts, max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_ten_texts_are_learned_by_heart_and_drafted_whole(family, tmp_path):
    texts, result, reports = learn_by_heart(family, tmp_path)

    assert min(reports[-1].train.top1) >= 0.99
    assert reports[-1].train.acceptance_length >= DEPTH + 0.97
    for heads in (result.heads, load_heads(tmp_path, tiny_target())):
        output = decoded(heads, texts)
        assert [stats.acceptance_length for stats in output.stats] == [DEPTH + 1] * 10
        for row, one in zip(output.sequences, texts, strict=True):
            assert torch.equal(row, one.tokens)


def test_a_wrong_shift_of_the_labels_shows_when_decoding(tmp_path, monkeypatch):
    monkeypatch.setattr(labels, "FIRST", 3)
    texts, result, reports = learn_by_heart("medusa", tmp_path)

    assert min(reports[-1].train.top1) >= 0.99  # so training alone would not have noticed
    assert max(stats.acceptance_length for stats in decoded(result.heads, texts).stats) < 2


def test_a_reduced_vocabulary_covers_what_it_says_and_is_saved(tmp_path):
    texts, result, _ = learn_by_heart("hydra", tmp_path, steps=2, draft_vocab_size=20)
    ids = result.heads.vocabulary.ids
    answers = torch.cat([one.tokens[one.supervised] for one in texts])

    assert len(ids) == 20
    assert result.coverage == pytest.approx(float(torch.isin(answers, ids).float().mean()))
    assert torch.equal(load_heads(tmp_path, tiny_target()).vocabulary.ids, ids)


def weights(result):
    return dict(result.heads.named_parameters())


class StopAfter:
    """Asks a run to stop as Ctrl-C does."""

    def __init__(self, step, number=signal.SIGINT):
        self.step, self.number = step, number

    def __call__(self, report):
        if report.step == self.step:
            signal.raise_signal(self.number)


@pytest.mark.parametrize(
    ("family", "stops"), [("medusa", (7,)), ("hydra", (1, 4)), ("eagle3", (5,)), ("eagle", (10,))]
)
def test_a_run_goes_on_exactly_where_a_signal_stopped_it(family, stops, tmp_path):
    data = folder_of(ragged_examples())
    config = settings(
        family, max_steps=11, held_out=4, eval_every=3, draft_vocab_size=40, loss="mixed"
    )
    whole = run(data, config, tmp_path / "whole")
    for step in stops:
        part = run(data, config, tmp_path / "parts", resume=True, on_step=StopAfter(step))
        assert (part.step, part.is_finished) == (step, False)
        assert not (tmp_path / "parts/config.json").exists()
        torch.manual_seed(step)  # what happens in between does not matter
    resumed = run(data, config, tmp_path / "parts", resume=True)

    assert resumed.is_finished
    assert weights(resumed).keys() == weights(whole).keys()
    assert all(torch.equal(one, weights(whole)[name]) for name, one in weights(resumed).items())
    ends = [
        read_checkpoint(tmp_path / one / "training/last.safetensors") for one in ("whole", "parts")
    ]
    assert ends[0].progress == ends[1].progress
    assert ends[0].tensors.keys() == ends[1].tensors.keys()
    assert all(torch.equal(one, ends[1].tensors[name]) for name, one in ends[0].tensors.items())
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "parts")


def log_of(folder):
    """The log without times."""
    lines = (folder / "training/log.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [{name: value for name, value in one.items() if name != "elapsed_s"} for one in found]


def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint(tmp_path):
    data, config = folder_of(ragged_examples()), settings(max_steps=9, save_every=4)
    whole = run(data, config, tmp_path / "whole")

    def die(report):
        if report.step == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(data, config, tmp_path / "parts", on_step=die)
    resumed = run(data, config, tmp_path / "parts", resume=True)

    assert all(torch.equal(one, weights(whole)[name]) for name, one in weights(resumed).items())
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "parts")


def test_sigterm_stops_a_run_too_and_handlers_are_put_back(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    data, config = folder_of(ragged_examples()), settings(max_steps=5)
    stopped = run(data, config, tmp_path, on_step=StopAfter(2, signal.SIGTERM))

    assert (stopped.step, stopped.steps, stopped.folder) == (2, 5, None)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("family", FAMILIES)
def test_accumulation_equals_one_large_batch(family, tmp_path):
    texts = ragged_examples(8)
    whole = settings(family, batch_tokens=400, max_steps=3)
    parts = settings(family, batch_tokens=100, accumulation=4, max_steps=3)
    losses = []
    for number, config in enumerate((whole, parts)):
        reports = []
        run(folder_of(texts), config, tmp_path / str(number), on_step=reports.append)
        losses.append([report.train.loss for report in reports])

    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_target_is_not_changed_by_a_single_bit(tmp_path):
    target = tiny_target()
    tensors = [*target.named_parameters(), *target.named_buffers()]
    before = {name: tensor.detach().clone() for name, tensor in tensors}
    for family in FAMILIES:
        run(folder_of(ragged_examples()), settings(family, max_steps=2), tmp_path / family)

    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors)
    assert all(parameter.grad is None for parameter in target.parameters())
    assert not target.training


def test_the_best_weights_are_saved_rather_than_the_last(tmp_path):
    config = settings(max_steps=40, lr=0.05, held_out=5, eval_every=5, lm_head="own")
    reports = []
    result = run(folder_of(ragged_examples()), config, tmp_path, on_step=reports.append)
    looks = {report.step: report.held_out for report in reports if report.held_out is not None}

    assert sorted(looks) == list(range(5, 41, 5))
    assert result.best_step == min(looks, key=lambda step: looks[step].loss) < 40
    assert result.held_out == looks[result.best_step]
    best = read_checkpoint(tmp_path / "training/best.safetensors")
    assert all(
        torch.equal(one, best.tensors[f"heads.{name}"]) for name, one in weights(result).items()
    )


def test_heads_are_saved_in_the_format_that_was_asked_for(tmp_path):
    run(folder_of(ragged_examples()), settings(max_steps=1, dtype="bfloat16"), tmp_path)
    assert load_heads(tmp_path, tiny_target()).dtype == torch.bfloat16


def test_an_epoch_ends_with_a_short_step_and_sees_every_text_once(tmp_path):
    texts = ragged_examples(11)
    config = settings(max_steps=None, epochs=2, batch_tokens=32, max_length=31, accumulation=3)
    reports = []
    run(folder_of(texts), config, tmp_path, on_step=reports.append)

    assert reports[-1].steps == len(reports)
    assert reports[-1].tokens == 2 * sum(int(one.supervised[2:].sum()) for one in texts)
    assert reports[0].lr > reports[-1].lr


def test_a_run_is_not_overwritten_and_not_continued_with_other_settings(tmp_path):
    data = folder_of(ragged_examples())
    run(data, settings(max_steps=2), tmp_path)

    with pytest.raises(CheckpointError, match=r"has a training run at step 2; resume it"):
        run(data, settings(max_steps=2), tmp_path)
    with pytest.raises(CheckpointError, match=r"cannot be resumed: lr was 0.001 and is 0.5"):
        run(data, settings(max_steps=2, lr=0.5), tmp_path, resume=True)
    with pytest.raises(CheckpointError, match=r"the data or the number of batches"):
        run(folder_of(ragged_examples(seed=1)), settings(max_steps=2), tmp_path, resume=True)


def test_a_damaged_checkpoint_is_named(tmp_path):
    (tmp_path / "training").mkdir()
    (tmp_path / "training/last.safetensors").write_bytes(b"half a checkpoint")
    with pytest.raises(CheckpointError, match=r"last.safetensors is no checkpoint of a training"):
        run(folder_of(ragged_examples()), settings(), tmp_path, resume=True)


def test_data_with_mostly_empty_masks_are_refused(tmp_path):
    texts = ragged_examples(9)
    for one in texts[:5]:
        one.supervised[:] = False
    with pytest.raises(DataError, match="only 4 of 9 examples in nowhere have a supervised token"):
        run(folder_of(texts), settings(), tmp_path)


def test_a_loss_that_is_no_number_ends_the_run_before_it_is_saved(tmp_path):
    config = settings("medusa", lr=1e30, max_steps=5, lm_head="own", save_every=1)
    with pytest.raises(ConfigError, match="lower lr, which is"):
        run(folder_of(ragged_examples()), config, tmp_path)
    assert not (tmp_path / "config.json").exists()
