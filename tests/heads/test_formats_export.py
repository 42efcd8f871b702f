"""Exports hold exactly what each engine reads, key by key, and come back as the same heads."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.families import VOCAB, build, family
from tests.heads.eagle_cases import config_of, pairs
from tests.heads.foreign import LAYOUTS
from tests.heads.foreign_parts import DRAFT_IDS, LAYERS, D
from tests.heads.reference import every_other, randomise
from treespec.errors import CheckpointError, ConfigError
from treespec.heads import (
    DraftHeads,
    DraftVocabulary,
    EagleHead,
    MedusaConfig,
    MedusaHeads,
    export_heads,
    load_heads,
)

H = 32


@pytest.fixture(scope="module")
def target():
    return build(family("llama"), "sdpa", num_hidden_layers=LAYERS)


def medusa(target, *, vocabulary=None, **sizes) -> MedusaHeads:
    config = MedusaConfig(
        **({"num_heads": 3, "num_layers": 2, "hidden_size": H, "lm_head": "each"} | sizes)
    )
    heads = MedusaHeads(config, target, vocabulary)
    randomise(heads)
    return heads


def eagle(target, variant: str, *, reduced: bool = False, **changes: Any) -> EagleHead:
    """A head of the variant that reads the states 1, 4 and 6, or the final one."""
    changes.setdefault("taps", (LAYERS,) if variant.startswith("1") else (1, 4, 6))
    vocabulary = DraftVocabulary(DRAFT_IDS, VOCAB) if reduced else None
    head = EagleHead(config_of(variant, **changes), target, vocabulary)
    randomise(head)
    return head


def read(folder: Path, file: str = "model.safetensors") -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors of a folder that has nothing else."""
    assert {path.name for path in folder.iterdir()} == {"config.json", file}
    config = json.loads((folder / "config.json").read_text())
    if file.endswith(".pt"):
        return config, torch.load(folder / file, weights_only=True)
    return config, load_file(folder / file)


@torch.no_grad()
def logits_of(heads: DraftHeads) -> Tensor:
    if isinstance(heads, EagleHead):
        features, tokens = pairs(heads, (6,))
        return heads(features[0][None], tokens[0][None]).logits
    return heads(torch.randn(4, H, generator=torch.Generator().manual_seed(4)))


def assert_comes_back(heads: DraftHeads, folder: Path) -> None:
    """The export loads as heads that say the same, bit for bit."""
    loaded = load_heads(folder, heads.borrowed.target)
    assert torch.equal(logits_of(heads), logits_of(loaded))
    assert loaded.taps == heads.taps
    assert loaded.num_columns == heads.num_columns


FIRST = {
    f"{k}.{part}"
    for k in range(3)
    for part in (
        "0.linear.weight",
        "0.linear.bias",
        "1.linear.weight",
        "1.linear.bias",
        "2.weight",
    )
}


@pytest.mark.parametrize(
    ("to", "file"), [("medusa", "medusa_lm_head.pt"), ("tgi", "medusa_lm_head.safetensors")]
)
def test_medusa_in_the_common_layout(target, to, file, tmp_path):
    heads = medusa(target)
    folder = export_heads(heads, to, tmp_path / "out", base_model="org/name")
    config, tensors = read(folder, file)
    assert config == {
        "medusa_num_heads": 3,
        "medusa_num_layers": 2,
        "base_model_name_or_path": "org/name",
    }
    assert set(tensors) == FIRST
    assert_comes_back(heads, folder)


def test_readers_of_the_common_layout_find_a_bias_where_the_heads_have_none(target, tmp_path):
    heads = medusa(target, block_bias=False)
    folder = export_heads(heads, "tgi", tmp_path / "out")
    tensors = read(folder, "medusa_lm_head.safetensors")[1]
    assert set(tensors) == FIRST
    assert not tensors["2.1.linear.bias"].any()
    assert_comes_back(heads, folder)


def test_medusa_with_the_targets_lm_head_is_of_the_second_version(target, tmp_path):
    heads = medusa(target, lm_head="target")
    folder = export_heads(heads, "medusa", tmp_path / "out")
    config, tensors = read(folder, "medusa_lm_head.safetensors")
    assert config["version"] == "2"
    assert set(tensors) == {name for name in FIRST if "linear" in name}
    assert_comes_back(heads, folder)


@pytest.mark.parametrize("bias", [True, False])
def test_medusa_for_vllm(target, bias, tmp_path):
    heads = medusa(target, block_bias=bias)
    folder = export_heads(heads, "vllm", tmp_path / "out")
    config, tensors = read(folder)
    assert config == {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": H,
        "vocab_size": VOCAB,
        "num_heads": 3,
        "num_hidden_layers": 2,
        "truncated_vocab_size": VOCAB,
        "medusa_fc_bias": bias,
        "original_lm_head": False,
    }
    # Its config class renames everything that speaks of a number of heads or layers.
    assert [key for key in config if "num" in key and "heads" in key] == ["num_heads"]
    assert [key for key in config if "num" in key and "layers" in key] == ["num_hidden_layers"]
    parts = ("weight", "bias") if bias else ("weight",)
    blocks = {f"blocks.{k}.layers.{n}.{p}" for k in range(3) for n in range(2) for p in parts}
    assert set(tensors) == blocks | {f"lm_heads.{k}.weight" for k in range(3)}
    assert torch.equal(tensors["blocks.1.layers.1.weight"], heads.state_dict()["1.1.linear.weight"])
    assert_comes_back(heads, folder)


def test_medusa_with_a_map_goes_to_vllm_with_the_targets_lm_head_only(target, tmp_path):
    heads = medusa(target, lm_head="target", vocabulary=every_other(VOCAB))
    folder = export_heads(heads, "vllm", tmp_path / "out")
    config, tensors = read(folder)
    assert config["original_lm_head"]
    assert (config["vocab_size"], config["truncated_vocab_size"]) == (VOCAB, 49)
    assert torch.equal(tensors["token_map"], every_other(VOCAB).ids)
    rows = target.lm_head.weight.detach()[every_other(VOCAB).ids]
    assert torch.equal(tensors["lm_head.weight"], rows)
    assert_comes_back(heads, folder)
    own = medusa(target, vocabulary=every_other(VOCAB))
    with pytest.raises(CheckpointError, match="vLLM cannot load Medusa heads that have LM heads"):
        export_heads(own, "vllm", tmp_path / "own")


def eagle_3_names(layer: str) -> set[str]:
    """Tensors that both engines look for."""
    attention = {f"{layer}self_attn.{part}_proj.weight" for part in "qkvo"}
    mlp = {f"{layer}mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    outer = {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
    return attention | mlp | {f"{layer}{norm}.weight" for norm in norms} | outer


@pytest.mark.parametrize(
    ("to", "layer", "architecture"),
    [
        ("vllm", "layers.0.", "Eagle3LlamaForCausalLM"),
        ("sglang", "midlayer.", "LlamaForCausalLMEagle3"),
    ],
)
@pytest.mark.parametrize("reduced", [True, False])
def test_eagle_3_for_engines(target, to, layer, architecture, reduced, tmp_path):
    head = eagle(target, "3", reduced=reduced)
    folder = export_heads(head, to, tmp_path / "out")
    config, tensors = read(folder)
    assert config["architectures"] == [architecture]
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 4, 6]  # layers below the state
    inner = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    assert inner == [0, 3, 5]  # the layer whose output it is
    assert config["draft_vocab_size"] == (D if reduced else VOCAB)
    assert (config["vocab_size"], config["target_hidden_size"]) == (VOCAB, H)
    assert config["num_hidden_layers"] == 1
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10000.0
    assert config["rope_scaling"] is None
    assert config["norm_before_residual"] is False
    assert set(tensors) == eagle_3_names(layer)
    ids = DRAFT_IDS if reduced else torch.arange(VOCAB)
    assert torch.equal(tensors["d2t"] + torch.arange(len(ids)), ids)
    assert tensors["t2d"].nonzero().flatten().tolist() == ids.tolist()
    assert_comes_back(head, folder)


VARIANTS = {
    "3_normed_residual": {"norm_before_residual": True},
    "3_fc_norm": {"fc_norm": True},
    "3_norm_before_fc": {"norm_before_fc": True},
    "3_post_norm": {"norm_output": True},
}


@pytest.mark.parametrize("to", ["vllm", "speculators"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_eagle_3_go_to_vllm_with_their_flag_and_not_to_sglang(
    target, variant, to, tmp_path
):
    head = eagle(target, variant)
    folder = export_heads(head, to, tmp_path / "out", base_model="org/name")
    config, tensors = read(folder)
    flags = ("norm_before_residual", "fc_norm", "norm_before_fc", "norm_output")
    assert {flag: config[flag] for flag in flags if config[flag]} == VARIANTS[variant]
    assert ("fc_norm.2.weight" in tensors) == (variant == "3_fc_norm")
    assert ("input_norm.weight" in tensors) == (variant == "3_norm_before_fc")
    assert_comes_back(head, folder)
    with pytest.raises(CheckpointError, match="SGLang does not know this variant of EAGLE-3"):
        export_heads(head, "sglang", tmp_path / "no")


def test_eagle_3_in_speculators_format(target, tmp_path):
    head = eagle(target, "3", reduced=True)
    folder = export_heads(head, "speculators", tmp_path / "out", base_model="org/name")
    config, tensors = read(folder)
    assert config["speculators_model_type"] == "eagle3"
    assert config["speculators_version"] == "0.9.0"
    assert config["speculators_config"] == {
        "algorithm": "eagle3",
        "proposal_methods": [
            {
                "proposal_type": "greedy",
                "speculative_tokens": 5,
                "verifier_accept_k": 1,
                "accept_tolerance": 0.0,
            }
        ],
        "default_proposal_method": "greedy",
        "verifier": {"name_or_path": "org/name", "architectures": ["LlamaForCausalLM"]},
    }
    layer = config["transformer_layer_config"]
    assert (layer["model_type"], layer["num_hidden_layers"]) == ("llama", 1)
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 4, 6]
    assert config["draft_vocab_size"] == D
    assert set(tensors) == eagle_3_names("layers.0.")
    assert_comes_back(head, folder)


def test_speculators_format_needs_the_targets_name(target, tmp_path):
    with pytest.raises(ConfigError, match="give base_model"):
        export_heads(eagle(target, "3"), "speculators", tmp_path / "out")


def test_norms_of_queries_and_keys_make_it_a_qwen3(tmp_path):
    target = build(family("qwen3"), "sdpa", num_hidden_layers=LAYERS)
    head = eagle(target, "3_qwen3", reduced=True, fc_bias=False)
    config, tensors = read(export_heads(head, "vllm", tmp_path / "out"))
    assert config["architectures"] == ["Eagle3Qwen3ForCausalLM"]
    assert config["model_type"] == "qwen3"
    assert "layers.0.self_attn.q_norm.weight" in tensors
    assert_comes_back(head, tmp_path / "out")


def test_eagle_1_for_engines(target, tmp_path):
    head = eagle(target, "1")
    config, tensors = read(export_heads(head, "vllm", tmp_path / "vllm"))
    assert config["architectures"] == ["EagleLlamaForCausalLM"]
    assert "fc.bias" not in tensors
    assert_comes_back(head, tmp_path / "vllm")
    config, tensors = read(export_heads(head, "sglang", tmp_path / "sglang"))
    assert config["architectures"] == ["LlamaForCausalLMEagle"]
    assert not tensors["fc.bias"].any()  # SGLang leaves it at random where there is none
    assert_comes_back(head, tmp_path / "sglang")


def test_sglang_shares_the_targets_lm_head_and_vllm_gets_a_copy(target, tmp_path):
    head = eagle(target, "3_target_head")
    config, tensors = read(export_heads(head, "sglang", tmp_path / "sglang"))
    assert config["draft_vocab_size"] is None
    assert {"lm_head.weight", "d2t", "t2d"}.isdisjoint(tensors)
    assert_comes_back(head, tmp_path / "sglang")
    tensors = read(export_heads(head, "vllm", tmp_path / "vllm"))[1]
    assert torch.equal(tensors["lm_head.weight"], target.lm_head.weight.detach())
    assert_comes_back(head, tmp_path / "vllm")
    with pytest.raises(CheckpointError, match="load them with load_heads and export"):
        export_heads(tmp_path / "sglang", "vllm", tmp_path / "no")


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("medusa_v01", "tgi"),
        ("medusa_v01", "vllm"),
        ("medusa_head_only", "medusa"),
        ("eagle_1", "sglang"),
        ("eagle_1_llama_3", "vllm"),
        ("eagle_3", "vllm"),
        ("eagle_3", "sglang"),
        ("eagle_3_specforge", "vllm"),
        ("eagle_3_speculators", "vllm"),
        ("eagle_3_speculators", "speculators"),
    ],
)
def test_files_are_exported_without_their_target(target, name, to, tmp_path):
    heads = load_heads(LAYOUTS[name]().write(tmp_path / "in"), target)
    assert_comes_back(heads, export_heads(tmp_path / "in", to, tmp_path / "out"))


def test_ids_that_a_file_does_not_name_are_left_to_the_engines(tmp_path):
    LAYOUTS["eagle_3"]().write(tmp_path / "in")
    config, _ = read(export_heads(tmp_path / "in", "vllm", tmp_path / "out"))
    assert "eagle_aux_hidden_state_layer_ids" not in config
    assert config["eagle_config"] == {"use_aux_hidden_state": True}
