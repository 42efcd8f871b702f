"""The self-check: passes for sound models, names what is wrong with others."""

import pytest
import torch

from tests.families import build, family
from treespec.errors import SelfCheckError
from treespec.self_check import self_check
from treespec.target import Target


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_sound_model_passes(name, attention):
    assert self_check(build(family(name), attention)).max_deviation < 1e-4


def test_a_bfloat16_model_passes():
    assert self_check(build(family("llama"), "sdpa").to(torch.bfloat16)).mean_deviation < 0.1


def test_a_mask_of_the_wrong_kind_is_found(monkeypatch):
    target = Target(build(family("llama"), "eager"))
    # Eager attention adds a boolean mask as 0 and 1 without complaint.
    monkeypatch.setattr("treespec.attention.encode", lambda visible, *_: visible[:, None].float())

    with pytest.raises(SelfCheckError, match="LlamaForCausalLM with eager attention gives node"):
        self_check(target)


def test_positions_by_node_index_are_found(monkeypatch):
    target = Target(build(family("gpt2"), "sdpa"))
    monkeypatch.setattr(
        "treespec.attention.NewNodes.positions",
        property(lambda nodes: torch.arange(nodes.tokens.shape[0])),
    )

    with pytest.raises(SelfCheckError, match="position_ids"):
        self_check(target)


def test_training_mode_is_named():
    model = build(family("gpt2"), "eager", resid_pdrop=0.5, embd_pdrop=0.5).train()

    with pytest.raises(SelfCheckError, match=r"call model\.eval\(\)"):
        self_check(model)
