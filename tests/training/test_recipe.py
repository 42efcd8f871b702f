"""From prompts to heads in one go, however often it is cut short."""

import os
from pathlib import Path

import pytest
import torch

from tests.training.chats import asks, chat_model, chat_tokenizer
from treespec import TreeDecoder
from treespec.errors import CheckpointError, ConfigError
from treespec.heads import HeadDrafter, load_heads
from treespec.training import recipe as module
from treespec.training.answering import DistillOptions
from treespec.training.calibrate import load_tree
from treespec.training.config import TrainConfig
from treespec.training.corpus import prepare
from treespec.training.data import open_data
from treespec.training.recipe import Recipe, Watchers, make_heads

PROMPTS = [asks(f"p{number}", f"say {number * number}") for number in range(24)]
STAGES = ["distil", "train", "evaluate", "calibrate"]


class KilledError(Exception):
    """Stands for whatever ends a run."""


def small(**changes) -> Recipe:
    """A run of seconds."""
    values = {"family": "medusa", "num_heads": 2, "held_out": 3, "max_steps": 40, "lr": 1e-2}
    train = TrainConfig(**values | {"batch_tokens": 256, "max_length": 64} | changes)
    return Recipe(train=train, distill=DistillOptions(max_new_tokens=16), budget=8)


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_prompts_become_heads_that_are_measured_and_have_a_tree(tmp_path):
    target, stages = chat_model(), []
    watchers = Watchers(on_stage=stages.append)

    made = make_heads(target, chat_tokenizer(), PROMPTS, tmp_path, small(), watchers)

    assert stages == STAGES
    assert (made.step, made.steps, made.is_finished) == (40, 40, True)
    assert made.evaluation.passages == 3
    assert made.tree == load_tree(tmp_path)
    assert 1 <= len(made.tree.paths) <= 8
    assert "tree of 31" in (tmp_path / "README.md").read_text()
    heads = load_heads(tmp_path, target)
    prompt = torch.tensor([chat_tokenizer()("<user>hm\n<bot>")["input_ids"]])
    decoder = TreeDecoder(target, HeadDrafter(heads), tree=made.tree.tree)
    plain = TreeDecoder(target, None)
    texts = [
        one.generate(prompt, max_new_tokens=24, do_sample=False).sequences
        for one in (decoder, plain)
    ]
    assert torch.equal(*texts)


def test_the_heads_are_measured_on_what_they_were_not_trained_on(tmp_path, monkeypatch):
    seen = []
    evaluate = module.evaluate_heads

    def spy(target, heads, examples, *rest, **named):
        seen.extend(one.id for one in examples)
        return evaluate(target, heads, examples, *rest, **named)

    monkeypatch.setattr(module, "evaluate_heads", spy)
    make_heads(chat_model(), chat_tokenizer(), PROMPTS, tmp_path, small())

    corpus = prepare(open_data(tmp_path / "data"), small().train)
    assert len(seen) == 3
    assert not set(seen) & {one.id for one in corpus.train}


@pytest.mark.parametrize("place", STAGES)
def test_a_run_that_is_killed_goes_on_where_it_was(tmp_path, place):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    make_heads(chat_model(), chat_tokenizer(), PROMPTS, whole, small())

    def kill(stage):
        if stage == place:
            raise KilledError

    killer = Watchers(on_stage=kill)
    with pytest.raises(KilledError):
        make_heads(chat_model(), chat_tokenizer(), PROMPTS, cut, small(), killer)
    steps = []
    watchers = Watchers(on_step=lambda report: steps.append(report.step))
    made = make_heads(chat_model(), chat_tokenizer(), PROMPTS, cut, small(), watchers)

    assert made.is_finished
    assert len(steps) == (40 if place in ("distil", "train") else 0)
    assert weights(cut) == weights(whole)
    assert load_tree(cut) == load_tree(whole)


def test_a_finished_run_changes_nothing_when_it_is_repeated(tmp_path):
    make_heads(chat_model(), chat_tokenizer(), PROMPTS, tmp_path, small())
    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    for one in files:
        os.utime(one, (1, 1))

    again = make_heads(chat_model(), chat_tokenizer(), PROMPTS, tmp_path, small())

    assert again.is_finished
    assert {one.name for one in files if one.stat().st_mtime != 1} == set()


def test_other_settings_are_refused_rather_than_mixed(tmp_path):
    make_heads(chat_model(), chat_tokenizer(), PROMPTS, tmp_path, small())
    before = weights(tmp_path)

    with pytest.raises(CheckpointError, match=r"lr was 0.01 and is 0.02"):
        make_heads(chat_model(), chat_tokenizer(), PROMPTS, tmp_path, small(lr=0.02))

    assert weights(tmp_path) == before


@pytest.mark.parametrize(
    ("count", "changes", "message"),
    [
        (24, {"held_out": 0}, "held_out is 0"),
        (12, {"held_out": None}, "there are 12 prompts, too few to hold some out; give at least"),
    ],
)
def test_heads_that_could_not_be_measured_are_refused(tmp_path, count, changes, message):
    out = tmp_path / "heads"
    with pytest.raises(ConfigError, match=message):
        make_heads(chat_model(), chat_tokenizer(), PROMPTS[:count], out, small(**changes))
    assert not out.exists()


def test_a_tree_needs_a_budget():
    with pytest.raises(ConfigError, match="budget must be at least 1"):
        Recipe(budget=0)
