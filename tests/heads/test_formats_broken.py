"""A checkpoint that cannot be what it claims is refused before anything is built."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.families import build, family
from tests.heads.foreign import LAYOUTS
from tests.heads.foreign_parts import DRAFT_IDS, LAYERS, D, Foreign, H, V
from treespec.errors import CheckpointError
from treespec.heads import inspect_heads, load_heads
from treespec.heads.formats import loading


class Exploit:
    """An object whose pickle runs code when it is opened without care."""

    def __reduce__(self):
        return Path.touch, (Path("exploited"),)


@pytest.fixture(scope="module")
def target():
    return build(family("llama"), "sdpa", num_hidden_layers=LAYERS)


@pytest.fixture(autouse=True)
def _nothing_is_built(monkeypatch):
    """Heads that are refused are refused before their modules are made."""

    def build_heads(*args, **options):
        raise AssertionError("the heads were built")

    monkeypatch.setattr(loading, "build_heads", build_heads)


def changed(name: str, change: Callable[[Foreign], object], folder: Path) -> Path:
    one = LAYOUTS[name]()
    change(one)
    return one.write(folder)


def scaled(one: Foreign, key: str, value: float) -> None:
    one.tensors[key][3] = value


# What is done to a good checkpoint, and what has to be said about it.
FAULTS: dict[str, tuple[str, Callable[[Foreign], object], str]] = {
    "missing": (
        "eagle_3",
        lambda one: [
            one.tensors.pop(key) for key in ("norm.weight", "midlayer.mlp.up_proj.weight")
        ],
        r"looks like an EAGLE-3 head, but 2 tensors are missing: .*mlp\.up_proj\.weight, norm",
    ),
    "missing_map": (
        "eagle_3",
        lambda one: one.tensors.pop("d2t"),
        f"LM head has {D} rows and the target {V} tokens, but there is no d2t",
    ),
    "missing_head": (
        "medusa_v01",
        lambda one: [one.tensors.pop(key) for key in list(one.tensors) if key.startswith("2.")],
        r"3 tensors are missing: 2\.0\.linear\.weight, 2\.0\.linear\.bias, 2\.1\.weight",
    ),
    "unexpected": (
        "hydra_mlp",
        lambda one: one.tensors.update({"classifier.weight": torch.zeros(2, 2)}),
        r"looks like Hydra heads, but 1 tensor is unexpected: classifier\.weight",
    ),
    "second_layer": (
        "eagle_1",
        lambda one: one.tensors.update({"layers.1.mlp.up_proj.weight": torch.zeros(2, 2)}),
        r"unexpected: layers\.1\.mlp",
    ),
    "misshaped": (
        "medusa_tgi",
        lambda one: one.tensors.update({"1.1.linear.weight": torch.zeros(H, H + 1)}),
        r"1 tensor is of the wrong shape: 1\.1\.linear\.weight is \[32, 33\], not \[32, 32\]",
    ),
    "heads_that_do_not_fit_the_projections": (
        "eagle_1",
        lambda one: one.config.update(num_attention_heads=2, head_dim=8),
        r"q_proj\.weight is \[32, 32\], not \[16, 32\]",
    ),
    "config_of_another_width": (
        "eagle_3",
        lambda one: one.config.update(hidden_size=64),
        "fc.weight reads 96 numbers, which is no multiple",
    ),
    "config_of_another_draft_vocabulary": (
        "eagle_3",
        lambda one: one.config.update(draft_vocab_size=D + 1),
        f"draft_vocab_size = {D + 1}, but lm_head.weight has {D} rows",
    ),
    "config_of_another_number_of_states": (
        "eagle_3_speculators",
        lambda one: one.config.update(eagle_aux_hidden_state_layer_ids=[1, 3]),
        r"names 2 hidden states of the target, \[1, 3\], but fc.weight reads 3",
    ),
    "config_of_several_layers": (
        "eagle_1",
        lambda one: one.config.update(num_hidden_layers=2),
        "num_hidden_layers = 2; an EAGLE head has one layer",
    ),
    "config_with_words_for_numbers": (
        "eagle_1",
        lambda one: one.config.update(num_attention_heads="four"),
        "num_attention_heads is 'four', not a positive integer",
    ),
    "no_config": (
        "eagle_3",
        lambda one: setattr(one, "config", None),
        "an EAGLE head without config.json cannot be loaded",
    ),
    "nan": (
        "medusa_v01",
        lambda one: scaled(one, "4.1.weight", float("nan")),
        r"not finite, in 4\.1\.weight",
    ),
    "infinity": (
        "eagle_3",
        lambda one: scaled(one, "fc.weight", float("-inf")),
        r"not finite, in fc\.weight",
    ),
    "integers": (
        "medusa_tgi",
        lambda one: one.tensors.update({"0.0.linear.weight": torch.ones(H, H, dtype=torch.int8)}),
        r"1 tensor is not floating point: 0\.0\.linear\.weight is int8",
    ),
    "map_out_of_range": (
        "eagle_3",
        lambda one: one.tensors["d2t"].__setitem__(5, V),
        f"maps column 5 to token {V + 5}, but the target has ids 0 to {V - 1}",
    ),
    "map_below_zero": (
        "medusa_vllm_map",
        lambda one: one.tensors.update(token_map=DRAFT_IDS - 10),
        "maps column 0 to token -7",
    ),
    "map_with_a_token_twice": (
        "eagle_3",
        lambda one: one.tensors["d2t"].__setitem__(5, one.tensors["d2t"][4] - 1),
        "maps two columns to one token",
    ),
    "map_of_ids_for_offsets": (
        "eagle_3_specforge",
        lambda one: one.tensors.update(d2t=DRAFT_IDS // 2),
        "d2t and t2d disagree",
    ),
    "map_of_fractions": (
        "eagle_3",
        lambda one: one.tensors.update(d2t=one.tensors["d2t"].float()),
        "d2t must be a vector of integers, but is float32",
    ),
    "copies_that_differ": (
        "hydra",
        lambda one: one.tensors.update({"hydra_mlp.2.5.linear.bias": torch.zeros(H)}),
        r"hydra_mlp\.2\.3\.linear\.bias and hydra_mlp\.2\.5\.linear\.bias differ",
    ),
    "zero_heads": ("medusa_tgi", lambda one: one.tensors.clear(), "holds no tensors"),
    "ungrounded": (
        "hydra",
        lambda one: one.config.update(grounded_heads=False),
        "grounded_heads = false",
    ),
    "eagle_attn": (
        "hydra",
        lambda one: one.tensors.update({"attn.self_attn.q_proj.weight": torch.zeros(H, H)}),
        "architecture eagle-attn, which cannot be loaded",
    ),
    "parallel_eagle": (
        "eagle_3_speculators",
        lambda one: one.config.update(speculators_model_type="peagle"),
        "speculators_model_type = 'peagle', not eagle3",
    ),
    "no_final_norm": (
        "eagle_3_specforge",
        lambda one: one.config.update(norm_output=False),
        "norm_output = false",
    ),
    "states_that_the_target_has_not": (
        "eagle_3_speculators",
        lambda one: one.config.update(eagle_aux_hidden_state_layer_ids=[1, 3, 30]),
        "do not fit this LlamaForCausalLM: hidden states 0 to 8, but the heads read 30",
    ),
    "another_vocabulary": (
        "medusa_v01",
        lambda one: [one.tensors.update({f"{k}.1.weight": torch.ones(96, H)}) for k in range(5)],
        "which were trained for lmsys/vicuna-7b-v1.3, do not fit .*: number of logits 97 instead "
        "of 96",
    ),
    "whole_model": (
        "medusa_2",
        lambda one: one.extra.clear() or setattr(one, "file", "model.safetensors"),
        "looks like a whole language model",
    ),
    "half_of_the_shards": ("medusa_2", lambda one: one.extra.clear(), "lacks model-00002-of-00002"),
    "adapter": (
        "medusa_tgi",
        lambda one: setattr(one, "tensors", {"q_proj.lora_A.weight": torch.ones(2, 2)}),
        "looks like a LoRA adapter",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_named(fault, target, tmp_path):
    name, change, message = FAULTS[fault]
    folder = changed(name, change, tmp_path / "heads")
    with pytest.raises(CheckpointError, match=message) as caught:
        load_heads(folder, target)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    "fault", [f for f in FAULTS if "target_has" not in f and "another_v" not in f]
)
def test_faults_that_need_no_target_are_seen_by_inspection(fault, tmp_path):
    name, change, message = FAULTS[fault]
    with pytest.raises(CheckpointError, match=message):
        inspect_heads(changed(name, change, tmp_path / "heads"))


def test_target_of_another_width_is_refused(tmp_path):
    folder = LAYOUTS["medusa_v01"]().write(tmp_path)
    wide = build(family("llama"), "sdpa", hidden_size=48, num_attention_heads=6)
    with pytest.raises(CheckpointError, match="hidden size 48 instead of 32"):
        load_heads(folder, wide)


@pytest.mark.parametrize("name", ["eagle_3", "eagle_3_specforge"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.999])
def test_truncated_file_is_refused(name, share, target, tmp_path):
    one = LAYOUTS[name]()
    path = one.write(tmp_path) / one.file
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=f"{path}.*download it again"):
        load_heads(tmp_path, target)


def test_pickle_with_code_is_refused_and_not_run(target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"0.0.linear.weight": Exploit()}, tmp_path / "medusa_lm_head.pt")
    (tmp_path / "plain.bin").write_bytes(pickle.dumps(Exploit()))
    for name in ("medusa_lm_head.pt", "plain.bin"):
        with pytest.raises(CheckpointError, match=f"{name} holds more than tensors: unpickling"):
            load_heads(tmp_path / name, target)
    assert not (tmp_path / "exploited").exists()


def test_pickle_of_other_things_is_refused(target, tmp_path):
    for content, message in (
        ([torch.zeros(2)], "holds a list"),
        ({"epoch": 3, "0.0.linear.weight": torch.zeros(2, 2)}, "its entry 'epoch' is a int"),
    ):
        torch.save(content, tmp_path / "heads.pt")
        with pytest.raises(CheckpointError, match=message):
            load_heads(tmp_path, target)


@pytest.mark.parametrize("file", [None, "README.md", "config.json"])
def test_folder_without_weights_is_refused(file, target, tmp_path):
    if file is not None:
        (tmp_path / file).write_text("{}")
    with pytest.raises(CheckpointError, match=f"has no weights .* it holds {file or 'nothing'}"):
        load_heads(tmp_path, target)


def test_empty_files_and_pointers_are_told_from_weights(target, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="is empty"):
        load_heads(tmp_path, target)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    with pytest.raises(CheckpointError, match="Git LFS pointer"):
        load_heads(tmp_path, target)


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_config_that_is_no_object_is_refused(text, target, tmp_path):
    LAYOUTS["eagle_3"]().write(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json (is not JSON|holds a list)"):
        load_heads(tmp_path, target)


def test_two_heads_in_one_folder_have_to_be_told_apart(target, tmp_path):
    for name in ("one", "two"):
        save_file(LAYOUTS["medusa_tgi"]().tensors, tmp_path / f"{name}.safetensors")
    with pytest.raises(CheckpointError, match=r"several heads, in one\.safetensors, two\.safe"):
        load_heads(tmp_path, target)


def test_a_file_that_holds_no_weights_by_its_ending_is_refused(target, tmp_path):
    (tmp_path / "heads.gguf").write_text(json.dumps({}))
    with pytest.raises(CheckpointError, match="is no file of weights"):
        load_heads(tmp_path / "heads.gguf", target)
