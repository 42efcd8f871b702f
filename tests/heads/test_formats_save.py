"""What `save_heads` writes comes back bit for bit, for its own target and for no other."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.cli.conftest import byte_tokenizer, save_model
from tests.families import VOCAB, build, family, tiny_model
from tests.heads.eagle_cases import VARIANTS, head_of, pairs
from tests.heads.reference import every_other, randomise, tiny_layer
from treespec.errors import CheckpointError, DownloadError
from treespec.heads import (
    CheckpointWarning,
    DraftHeads,
    EagleHead,
    HydraConfig,
    HydraHeads,
    MedusaConfig,
    MedusaHeads,
    inspect_heads,
    load_heads,
    save_heads,
)
from treespec.heads.formats import hub, saving
from treespec.heads.formats.own_layout import own_shapes, settings_of


def medusa(target, *, vocabulary=None, **sizes) -> MedusaHeads:
    config = MedusaConfig(**({"num_heads": 3, "hidden_size": 32, "lm_head": "each"} | sizes))
    heads = MedusaHeads(config, target, vocabulary)
    randomise(heads)
    return heads


def hydra(target, *, vocabulary=None, **sizes) -> HydraHeads:
    defaults = {"num_heads": 3, "num_layers": 3, "hidden_size": 32, "prefix": tiny_layer()}
    config = HydraConfig(**({**defaults, "lm_head": "each", "lm_head_bias": True} | sizes))
    heads = HydraHeads(config, target, vocabulary)
    randomise(heads)
    return heads


@pytest.fixture(scope="module")
def target():
    return tiny_model(family("llama"), "sdpa")


MADE = {
    "medusa": lambda target: medusa(target),
    "medusa_layers": lambda target: medusa(target, num_layers=2, block_bias=False),
    "medusa_target_head": lambda target: medusa(target, lm_head="target"),
    "medusa_map": lambda target: medusa(target, vocabulary=every_other(VOCAB)),
    "hydra": lambda target: hydra(target),
    "hydra_map": lambda target: hydra(target, vocabulary=every_other(VOCAB), num_layers=1),
    "hydra_bare": lambda target: hydra(
        target, prefix=None, lm_head="target", lm_head_bias=False, num_layers=2
    ),
}


@torch.no_grad()
def logits_of(heads: DraftHeads) -> Tensor:
    """What heads say of random features."""
    generator = torch.Generator().manual_seed(4)
    if isinstance(heads, EagleHead):
        features, tokens = pairs(heads, (5,))
        return heads(features[0][None], tokens[0][None]).logits
    hidden = torch.randn(1, 5, 32, generator=generator)
    tokens = torch.randint(VOCAB, (1, 5), generator=generator)
    return heads(hidden, tokens) if isinstance(heads, HydraHeads) else heads(hidden)


def assert_same(one: DraftHeads, other: DraftHeads) -> None:
    assert type(one) is type(other)
    assert one.config == other.config
    assert one.taps == other.taps
    assert torch.equal(logits_of(one), logits_of(other))
    if one.vocabulary is not None:
        assert torch.equal(one.vocabulary.ids, other.vocabulary.ids)


@pytest.mark.parametrize("name", MADE)
def test_saved_heads_come_back(name, target, tmp_path):
    heads = MADE[name](target)
    folder = heads.save_pretrained(tmp_path / "heads")
    assert_same(heads, load_heads(folder, target))
    assert_same(heads, type(heads).from_pretrained(folder, target))
    assert inspect_heads(folder).family == heads.family


@pytest.mark.parametrize("variant", VARIANTS)
def test_saved_eagle_heads_come_back(variant, tmp_path):
    head = head_of(variant)
    assert_same(head, load_heads(save_heads(head, tmp_path / "heads"), head.borrowed.target))


@pytest.mark.parametrize("variant", VARIANTS)
def test_shapes_are_those_of_the_modules(variant):
    head = head_of(variant)
    shapes = own_shapes(
        head.family, settings_of(head.config), columns=head.num_columns, vocab_size=VOCAB
    )
    assert shapes == {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}


def test_type_is_kept(target, tmp_path):
    heads = medusa(target).to(torch.bfloat16)
    loaded = load_heads(heads.save_pretrained(tmp_path / "heads"), target)
    assert loaded.dtype == torch.bfloat16
    mine, theirs = heads.state_dict(), loaded.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_parameters_can_be_trained_on(target, tmp_path):
    loaded = load_heads(medusa(target).save_pretrained(tmp_path / "heads"), target)
    assert all(parameter.requires_grad for parameter in loaded.parameters())


def test_medusas_file_has_the_common_names(target, tmp_path):
    folder = medusa(target).save_pretrained(tmp_path / "heads", base_model="org/name")
    config = json.loads((folder / "config.json").read_text())
    assert (config["medusa_num_heads"], config["medusa_num_layers"]) == (3, 1)
    assert config["base_model_name_or_path"] == "org/name"
    names = set(load_file(folder / "model.safetensors"))
    assert names == {
        f"{k}.{part}" for k in range(3) for part in ("0.linear.weight", "0.linear.bias", "1.weight")
    }


def test_card_names_base_model_sizes_and_acceptance(target, tmp_path):
    folder = medusa(target).save_pretrained(
        tmp_path / "heads", base_model="org/name", acceptance={"code": 2.345}
    )
    card = (folder / "README.md").read_text()
    for text in ('base_model: "org/name"', "| heads | 3 |", "| code | 2.35 |", "load_heads("):
        assert text in card


def test_path_of_the_target_is_not_given_away(tmp_path):
    target = AutoModelForCausalLM.from_pretrained(save_model(tmp_path / "secret" / "target"))
    folder = medusa(target).save_pretrained(tmp_path / "heads")
    assert inspect_heads(folder).base_model == "target"
    for path in folder.iterdir():
        assert b"secret" not in path.read_bytes()


def test_saving_again_replaces_the_files_and_keeps_others(target, tmp_path):
    medusa(target).save_pretrained(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    heads = medusa(target, num_layers=2)
    heads.save_pretrained(tmp_path)
    assert_same(heads, load_heads(tmp_path, target))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"README.md", "config.json", "model.safetensors", "notes.txt"}


def test_a_save_that_fails_leaves_what_was_there(target, tmp_path, monkeypatch):
    heads = medusa(target)
    heads.save_pretrained(tmp_path / "heads")

    def full(*args, **options):
        raise OSError("no space left")

    monkeypatch.setattr(saving, "save_file", full)
    with pytest.raises(OSError, match="no space"):
        medusa(target, num_layers=2).save_pretrained(tmp_path / "heads")
    assert [path.name for path in tmp_path.iterdir()] == ["heads"]
    assert_same(heads, load_heads(tmp_path / "heads", target))


def test_weights_that_are_not_finite_are_not_saved(target, tmp_path):
    heads = medusa(target)
    heads.get_parameter("1.1.weight").data[0] = float("nan")
    with pytest.raises(CheckpointError, match=r"1\.1\.weight has values that are not finite"):
        heads.save_pretrained(tmp_path / "heads")
    assert not (tmp_path / "heads").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 3}, "number of layers 3 instead of 2"),
        ({"vocab_size": 98}, "number of logits 98 instead of 97"),
        ({"hidden_size": 48, "num_attention_heads": 6}, "hidden size 48 instead of 32"),
    ],
)
def test_target_of_other_sizes_is_refused(target, changes, message, tmp_path):
    folder = medusa(target).save_pretrained(tmp_path / "heads")
    with pytest.raises(CheckpointError, match=message):
        load_heads(folder, build(family("llama"), "sdpa", **changes))


def test_target_of_another_architecture_is_refused(target, tmp_path):
    folder = medusa(target).save_pretrained(tmp_path / "heads")
    with pytest.raises(CheckpointError, match="architecture qwen2 instead of llama"):
        load_heads(folder, tiny_model(family("qwen2"), "sdpa"))


def test_target_with_another_tokenizer_is_refused(target, tmp_path):
    folder = medusa(target).save_pretrained(tmp_path / "heads", tokenizer=byte_tokenizer())
    other = byte_tokenizer()
    other.add_tokens(["<new>"])
    load_heads(folder, target, tokenizer=byte_tokenizer())
    with pytest.raises(CheckpointError, match="another tokenizer"):
        load_heads(folder, target, tokenizer=other)


def test_tokenizer_is_found_in_the_targets_folder(tmp_path):
    target = AutoModelForCausalLM.from_pretrained(save_model(tmp_path / "target"))
    folder = medusa(target).save_pretrained(tmp_path / "heads")
    assert "the tokenizer that they were saved with" in inspect_heads(folder).needs
    other = byte_tokenizer()
    other.add_tokens(["<new>"])
    other.save_pretrained(tmp_path / "target")
    with pytest.raises(CheckpointError, match="another tokenizer"):
        load_heads(folder, target)


def test_other_weights_of_the_architecture_are_warned_about_once(target, tmp_path):
    folder = medusa(target).save_pretrained(tmp_path / "heads")
    other = build(family("llama"), "sdpa")
    other.model.layers[1].mlp.up_proj.weight.data.mul_(1.5)
    with pytest.warns(CheckpointWarning, match="other weights of this architecture") as caught:
        load_heads(folder, other)
    assert len(caught) == 1


def test_the_same_target_in_bfloat16_is_the_same(target, tmp_path):
    folder = medusa(target).save_pretrained(tmp_path / "heads")
    load_heads(folder, build(family("llama"), "sdpa").to(torch.bfloat16))


CONTRADICTIONS = {
    "family": (lambda entry: entry.update(family="hydra"), "says that these are hydra heads"),
    "heads": (lambda entry: entry["config"].update(num_heads=4), "3 tensors are missing: 3.0"),
    "no_heads": (lambda entry: entry["config"].update(num_heads=0), "num_heads must be"),
    "width": (lambda entry: entry["config"].update(hidden_size=31), "of the wrong shape"),
    "words": (lambda entry: entry["config"].update(num_heads="3"), "num_heads is '3', not int"),
    "unknown": (lambda entry: entry["config"].update(depth=1), "not MedusaConfig's"),
    "newer": (lambda entry: entry.update(format=2), "a newer treespec"),
    "no_fingerprint": (lambda entry: entry.pop("target"), "the fingerprint of the target"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_config_that_contradicts_the_tensors_is_refused(name, target, tmp_path):
    change, message = CONTRADICTIONS[name]
    path = medusa(target).save_pretrained(tmp_path / "heads") / "config.json"
    config = json.loads(path.read_text())
    change(config["treespec_heads"])
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        load_heads(path.parent, target)


def test_class_of_another_family_is_refused(target, tmp_path):
    folder = medusa(target).save_pretrained(tmp_path / "heads")
    with pytest.raises(CheckpointError, match="holds medusa heads, not HydraHeads"):
        HydraHeads.from_pretrained(folder, target)


class Api:
    """A Hub that takes notes."""

    calls: tuple[object, ...] = ()

    def __init__(self, token=None) -> None:
        self.token = token

    def create_repo(self, repo_id, *, private, exist_ok) -> None:
        Api.calls = (repo_id, private, exist_ok)

    def upload_folder(self, *, repo_id, folder_path, commit_message) -> str:
        if repo_id == "org/forbidden":
            raise OSError("403")
        Api.calls += tuple(sorted(path.name for path in folder_path.iterdir()))
        return f"https://hub/{repo_id}"


def test_heads_are_pushed_as_they_are_saved(target, monkeypatch):
    monkeypatch.setattr(hub, "HfApi", Api)
    assert medusa(target).push_to_hub("org/heads", private=True) == "https://hub/org/heads"
    assert Api.calls == ("org/heads", True, True, "README.md", "config.json", "model.safetensors")
    with pytest.raises(DownloadError, match=re.escape("could not be uploaded to org/forbidden")):
        medusa(target).push_to_hub("org/forbidden")
