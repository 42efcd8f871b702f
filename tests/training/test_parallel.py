"""Several processes learn what one does that accumulates longer."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.meta.project import ROOT
from tests.training.training_cases import folder_of, ragged_examples, settings, tiny_target
from treespec.errors import ConfigError
from treespec.training.parallel import Processes
from treespec.training.trainer import train_heads

PROGRAM = """
import sys
import torch

torch.set_num_threads(1)
from tests.training.training_cases import folder_of, ragged_examples, settings, tiny_target
from treespec.training.trainer import train_heads

config = settings("hydra", max_steps=4, batch_tokens=40, held_out=4, eval_every=2)
train_heads(tiny_target(), None, folder_of(ragged_examples()), config, sys.argv[1])
"""


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def losses_of(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "training/log.jsonl").read_text().splitlines()]
    found = [line["train"]["loss"] for line in lines]
    return found + [line["held_out"]["loss"] for line in lines if line["held_out"]]


def test_two_processes_have_the_losses_of_one_that_accumulates(tmp_path: Path):
    pytest.importorskip("accelerate")
    common = {
        **os.environ,
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "ACCELERATE_USE_CPU": "1",  # also where there is a GPU
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "two")],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in started:
        assert process.communicate(timeout=120)[1] is not None
        assert process.returncode == 0
    config = settings(
        "hydra", max_steps=4, batch_tokens=40, held_out=4, eval_every=2, accumulation=2
    )
    train_heads(tiny_target(), None, folder_of(ragged_examples()), config, tmp_path / "one")

    assert losses_of(tmp_path / "two") == pytest.approx(losses_of(tmp_path / "one"), rel=1e-5)
    assert len(losses_of(tmp_path / "one")) == 6


def test_gradients_are_summed_and_missing_ones_are_zero(monkeypatch: pytest.MonkeyPatch):
    """The other process has the same gradients, as far as this one knows."""
    one, two = (nn.Parameter(torch.ones(shape)) for shape in ((2, 3), (4,)))
    one.grad = torch.full((2, 3), 2.0)
    monkeypatch.setattr(Processes, "sum", lambda self, tensor: 2 * tensor)

    Processes(rank=1, count=2).sum_gradients([one, two])

    assert torch.equal(one.grad, torch.full((2, 3), 4.0))
    assert torch.equal(two.grad, torch.zeros(4))


def test_work_is_shared_out_by_number():
    processes = [Processes(rank=rank, count=3) for rank in range(3)]
    owners = [[process.own(number) for process in processes].index(True) for number in range(7)]
    assert owners == [0, 1, 2, 0, 1, 2, 0]
    assert [process.is_main for process in processes] == [True, False, False]


def test_one_process_needs_no_accelerate(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    alone = Processes.find()

    assert (alone.rank, alone.count, alone.any(True), alone.any(False)) == (0, 1, True, False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="needs accelerate: pip install 'treespec"):
        Processes.find()


def test_processes_that_nothing_connects_are_refused(monkeypatch: pytest.MonkeyPatch):
    accelerate = pytest.importorskip("accelerate")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setattr(accelerate, "PartialState", lambda cpu: SimpleNamespace(num_processes=1))
    with pytest.raises(ConfigError, match="3 processes were started, but accelerate connects 1"):
        Processes.find()
