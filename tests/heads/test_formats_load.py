"""Every known format is loaded as what it is, whatever files are called and configs claim."""

import shutil
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.families import build, family
from tests.heads.foreign import LAYOUTS
from tests.heads.foreign_medusa import medusa_vllm_map
from tests.heads.foreign_parts import DRAFT_IDS, LAYERS, D, Foreign, H, V
from treespec.errors import CheckpointError, ConfigError, DownloadError
from treespec.heads import (
    CheckpointWarning,
    DraftHeads,
    EagleHead,
    HydraHeads,
    MedusaHeads,
    inspect_heads,
    load_heads,
)

# Those whose target was trained with them, or is not the one they have a copy of.
WARNED = {"medusa_2": "trained together with its heads", "medusa_vllm_map": "copy of the target's"}


@pytest.fixture(scope="module")
def target():
    return build(family("llama"), "sdpa", num_hidden_layers=LAYERS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, tuple[Foreign, Path]]:
    root = tmp_path_factory.mktemp("foreign")
    made = {name: make() for name, make in LAYOUTS.items()}
    return {name: (one, one.write(root / name)) for name, one in made.items()}


def load(path: Path, target, name: str, **options) -> DraftHeads:
    """Heads, with the warning that this layout comes with and no other."""
    if name in WARNED:
        with pytest.warns(CheckpointWarning, match=WARNED[name]) as caught:
            heads = load_heads(path, target, **options)
        assert len(caught) == 1
        return heads
    return load_heads(path, target, **options)


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight


def attend_to_itself(x: Tensor, t: dict[str, Tensor], layer: str) -> Tensor:
    """Attention of a first position: it sees its own value, whatever queries and keys are."""
    bias = t.get(f"{layer}self_attn.v_proj.bias", 0)
    value = t[f"{layer}self_attn.v_proj.weight"] @ x + bias
    groups = value.reshape(2, 8).repeat_interleave(2, dim=0).flatten()
    return t[f"{layer}self_attn.o_proj.weight"] @ groups


def mlp(x: Tensor, t: dict[str, Tensor], layer: str) -> Tensor:
    gate, up = t[f"{layer}mlp.gate_proj.weight"] @ x, t[f"{layer}mlp.up_proj.weight"] @ x
    return t[f"{layer}mlp.down_proj.weight"] @ (silu(gate) * up)


STATE = torch.randn(3 * H, generator=torch.Generator().manual_seed(20))


@pytest.mark.parametrize(
    ("name", "prefix", "heads", "layers"),
    [("medusa_v01", "", 5, 1), ("medusa_tgi", "", 3, 2), ("medusa_2", "medusa_head.", 4, 1)],
)
def test_medusa_says_what_its_tensors_say(folders, target, name, prefix, heads, layers):
    one, folder = folders[name]
    t = {key: value for part in (one.tensors, *one.extra.values()) for key, value in part.items()}
    loaded = load(folder, target, name)
    assert isinstance(loaded, MedusaHeads)
    assert loaded.config.num_heads == heads
    for k in range(heads):
        u = STATE[:H]
        for layer in range(layers):
            key = f"{prefix}{k}.{layer}.linear"
            u = u + silu(t[f"{key}.weight"] @ u + t[f"{key}.bias"])
        expected = t[f"{prefix}{k}.{layers}.weight"] @ u
        torch.testing.assert_close(loaded.head_logits(k, STATE[None, :H])[0], expected)


def test_medusa_without_lm_heads_uses_the_targets(folders, target):
    t = folders["medusa_head_only"][0].tensors
    loaded = load_heads(folders["medusa_head_only"][1], target)
    u = STATE[:H] + silu(t["2.0.linear.weight"] @ STATE[:H] + t["2.0.linear.bias"])
    torch.testing.assert_close(
        loaded.head_logits(2, STATE[None, :H])[0], target.lm_head.weight.detach() @ u
    )


def test_vllms_medusa_has_no_bias_where_it_stores_none(folders, target):
    t = folders["medusa_vllm"][0].tensors
    loaded = load_heads(folders["medusa_vllm"][1], target)
    u = STATE[:H]
    for layer in range(2):
        u = u + silu(t[f"blocks.1.layers.{layer}.weight"] @ u)
    torch.testing.assert_close(
        loaded.head_logits(1, STATE[None, :H])[0], t["lm_heads.1.weight"] @ u
    )


def test_vllms_map_chooses_rows_of_the_targets_lm_head(target, tmp_path):
    """No warning either: the copy in the file is the target's."""
    one = medusa_vllm_map(target.lm_head.weight.detach())
    loaded = load_heads(one.write(tmp_path), target)
    key = "medusa_heads.blocks.0.layers.0"
    u = STATE[:H] + silu(one.tensors[f"{key}.weight"] @ STATE[:H] + one.tensors[f"{key}.bias"])
    assert loaded.num_columns == D
    torch.testing.assert_close(
        loaded.head_logits(0, STATE[None, :H])[0], target.lm_head.weight.detach()[DRAFT_IDS] @ u
    )


@pytest.mark.parametrize(
    ("name", "places", "inner"), [("hydra_mlp", (0, 1), ""), ("hydra", (1, 3), ".1")]
)
def test_hydra_says_what_its_tensors_say(folders, target, name, places, inner):
    t = folders[name][0].tensors
    loaded = load_heads(folders[name][1], target)
    assert isinstance(loaded, HydraHeads)
    embedded = target.get_input_embeddings().weight.detach()[torch.tensor([5, 60])]
    state = STATE[:H]
    if name == "hydra":
        prefix, layer = "prefix_embeding_layer.", "prefix_embeding_layer.layers.0."
        eps = target.config.rms_norm_eps
        normed = rms(state, t[f"{layer}input_layernorm.weight"], eps)
        state = state + attend_to_itself(normed, t, layer)
        normed = rms(state, t[f"{layer}post_attention_layernorm.weight"], eps)
        state = rms(state + mlp(normed, t, layer), t[f"{prefix}norm.weight"], eps)
    z = torch.cat([state, embedded.flatten()])
    first = f"hydra_mlp.1.{places[0]}"
    y = t[f"{first}.res_connection.weight"] @ z + t[f"{first}.res_connection.bias"]
    y = y + silu(t[f"{first}.linear.weight"] @ z + t[f"{first}.linear.bias"])
    block = f"hydra_mlp.1.{places[1]}.linear"
    for _ in range(loaded.config.num_layers - 1):
        y = y + silu(t[f"{block}.weight"] @ y + t[f"{block}.bias"])
    head = f"hydra_lm_head.1{inner}"
    tokens = torch.tensor([[5, 60]])
    features = torch.stack([STATE[:H], STATE[H : 2 * H]])[None]
    logits = loaded(features, tokens)[0, 0, 1]
    torch.testing.assert_close(logits, t[f"{head}.weight"] @ y + t[f"{head}.bias"])


@pytest.mark.parametrize("name", ["eagle_1", "eagle_1_llama_3", "eagle_1_qwen2"])
def test_eagle_1_says_what_its_tensors_say(folders, target, name):
    one, folder = folders[name]
    t = one.tensors
    loaded = load_heads(folder, target)
    assert isinstance(loaded, EagleHead)
    theirs = target.get_input_embeddings().weight.detach()
    embedded = t.get("embed_tokens.weight", theirs)[7]
    z = t["fc.weight"] @ torch.cat([embedded, STATE[:H]]) + t.get("fc.bias", 0)
    a = z + attend_to_itself(z, t, "layers.0.")
    normed = rms(a, t["layers.0.post_attention_layernorm.weight"], 1e-5)
    feature = a + mlp(normed, t, "layers.0.")
    logits = loaded(STATE[None, None, :H], torch.tensor([[7]])).logits[0, 0]
    torch.testing.assert_close(logits, target.lm_head.weight.detach() @ feature)
    assert loaded.taps == (LAYERS,)
    assert loaded.config.layer.rope_theta == one.config.get("rope_theta", 10000.0)
    for part in ("q_proj", "k_proj"):
        mine = loaded.state_dict()[f"layer.self_attn.{part}.weight"]
        assert torch.equal(mine, t[f"layers.0.self_attn.{part}.weight"])


@pytest.mark.parametrize(
    ("name", "layer", "taps", "theta", "feedback"),
    [
        ("eagle_3", "midlayer.", (2, 4, 5), 10000.0, "pre_norm"),
        ("eagle_3_specforge", "midlayer.", (1, 4, 7), 250000.0, "pre_norm"),
        ("eagle_3_speculators", "layers.0.", (1, 3, 6), 1e6, "post_norm"),
    ],
)
def test_eagle_3_says_what_its_tensors_say(folders, target, name, layer, taps, theta, feedback):
    t = folders[name][0].tensors
    loaded = load_heads(folders[name][1], target)
    assert isinstance(loaded, EagleHead)
    theirs = target.get_input_embeddings().weight.detach()
    features = STATE
    if "input_norm.weight" in t:
        features = rms(features, t["input_norm.weight"], 1e-5)
    h = t["fc.weight"] @ features
    normed = rms(h, t[f"{layer}hidden_norm.weight"], 1e-5)
    embedded = t.get("embed_tokens.weight", theirs)[7]
    s = torch.cat([rms(embedded, t[f"{layer}input_layernorm.weight"], 1e-5), normed])
    a = (normed if name == "eagle_3_speculators" else h) + attend_to_itself(s, t, layer)
    o = a + mlp(rms(a, t[f"{layer}post_attention_layernorm.weight"], 1e-5), t, layer)
    logits = loaded(STATE[None, None], torch.tensor([[7]])).logits[0, 0]
    torch.testing.assert_close(logits, t["lm_head.weight"] @ rms(o, t["norm.weight"], 1e-5))
    assert loaded.taps == taps
    assert loaded.config.layer.rope_theta == theta
    assert loaded.config.feedback == feedback
    assert torch.equal(loaded.vocabulary.ids, DRAFT_IDS)
    for part in ("q_proj", "k_proj"):
        mine = loaded.state_dict()[f"layer.self_attn.{part}.weight"]
        assert torch.equal(mine, t[f"{layer}self_attn.{part}.weight"])


@pytest.mark.parametrize("name", LAYOUTS)
def test_format_does_not_depend_on_the_name_of_the_file(folders, target, name, tmp_path):
    one, folder = folders[name]
    if one.extra:
        pytest.skip("shards have names of their own")
    suffix = Path(one.file).suffix
    shutil.copy(folder / one.file, tmp_path / f"anything{suffix}")
    shutil.copy(folder / "config.json", tmp_path)
    by_file = load(tmp_path / f"anything{suffix}", target, name)
    by_folder = load(tmp_path, target, name)
    assert by_file.state_dict().keys() == by_folder.state_dict().keys()


@pytest.mark.parametrize("name", LAYOUTS)
def test_heads_come_in_evaluation_mode_in_the_type_of_the_file_or_the_one_asked_for(
    folders, target, name, tmp_path
):
    one, folder = folders[name]
    heads = load(folder, target, name)
    assert not heads.training
    assert {parameter.dtype for parameter in heads.parameters()} == {torch.float32}
    asked = load(folder, target, name, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in asked.parameters()} == {torch.bfloat16}
    half = {key: x.bfloat16() if x.is_floating_point() else x for key, x in one.tensors.items()}
    if not one.extra:
        Foreign(one.config, half, one.file).write(tmp_path)
        assert load(tmp_path, target, name).dtype == torch.bfloat16


def test_weights_of_a_pickle_do_not_change_with_its_file(folders, target, tmp_path):
    shutil.copytree(folders["medusa_v01"][1], tmp_path / "copy")
    heads = load_heads(tmp_path / "copy", target)
    with (tmp_path / "copy" / "medusa_lm_head.pt").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)
    assert torch.equal(
        heads.state_dict()["0.0.linear.weight"],
        folders["medusa_v01"][0].tensors["0.0.linear.weight"],
    )


def test_pickles_beside_safetensors_are_taken_for_copies(folders, target, tmp_path):
    one = folders["eagle_3_specforge"][0]
    one.write(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"not even a pickle")
    (tmp_path / "training_args.bin").write_bytes(b"nor this")
    assert load_heads(tmp_path, target).taps == (1, 4, 7)


def test_target_from_the_same_place_as_tuned_heads_is_not_warned_about(
    folders, target, monkeypatch
):
    folder = folders["medusa_2"][1]
    monkeypatch.setattr(target, "name_or_path", str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_heads(folder, target)


def test_ids_for_both_engines_that_contradict_each_other_are_noted(folders, tmp_path):
    one = LAYOUTS["eagle_3_specforge"]()
    one.config["eagle_aux_hidden_state_layer_ids"] = [0, 3, 6]
    report = inspect_heads(one.write(tmp_path))
    assert report.taps == (0, 3, 6)
    assert "for SGLang" in report.notes[0]


def test_report_says_what_the_config_miscounts(folders):
    report = inspect_heads(folders["medusa_v01"][1])
    assert report.notes == ("config.json says medusa_num_heads = 2, but there are 5",)
    assert (report.family, report.sizes["heads"], report.vocab_size) == ("medusa", "5", V)
    assert report.base_model == "lmsys/vicuna-7b-v1.3"
    assert report.num_parameters == 5 * (H * H + H + V * H)


def test_report_of_eagle_3_tells_map_states_and_needs(folders):
    report = inspect_heads(folders["eagle_3_speculators"][1])
    assert (report.draft_vocab_size, report.vocab_size, report.has_map) == (D, V, True)
    assert report.taps == (1, 3, 6)
    assert report.base_model == "org/target"
    assert report.needs == ("a target with hidden size 32", "97 logits", "at least 6 layers")


def test_a_place_that_is_not_there_is_named(target, tmp_path):
    with pytest.raises(CheckpointError, match="there is no file or folder"):
        load_heads(tmp_path / "nowhere", target)
    with pytest.raises(DownloadError, match="there is no folder some/repository here, and the Hub"):
        load_heads("some/repository", target)


def test_integer_types_are_refused(folders, target):
    with pytest.raises(ConfigError, match=r"cannot be torch\.int8"):
        load_heads(folders["hydra"][1], target, dtype=torch.int8)


def test_stray_tensors_are_left_out_of_what_is_loaded(folders, target):
    heads = load_heads(folders["hydra"][1], target)
    assert "input_embed_fn.weight" in folders["hydra"][0].tensors
    assert not any("embed" in name for name in heads.state_dict())
