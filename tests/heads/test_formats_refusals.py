"""An engine that would run heads wrongly, or not at all, does not get them."""

import pytest

from tests.families import VOCAB, build, family, tiny_model
from tests.heads.eagle_cases import config_of, head_of
from tests.heads.foreign import LAYOUTS
from tests.heads.foreign_parts import LAYERS
from tests.heads.reference import every_other
from treespec.errors import CheckpointError, ConfigError
from treespec.heads import EagleHead, MedusaConfig, MedusaHeads, export_heads

REFUSED = {
    "hydra": ("vllm", "vLLM cannot run hydra heads; only treespec can"),
    "medusa_v01": ("sglang", "SGLang cannot run medusa heads; medusa, tgi, vllm can"),
    "eagle_1_llama_3": ("speculators", "speculators format cannot run eagle heads; vllm, sglang"),
    "eagle_1": ("vllm", "no bias behind fc and drops it in silence"),
    "eagle_1_qwen2": ("vllm", "a bias or none, but this head has them for queries, keys and"),
    "eagle_3": ("tgi", "TGI cannot run eagle3 heads"),
    "medusa_head_only": ("tgi", "TGI wants an LM head for each Medusa head"),
    "medusa_vllm_map": ("medusa", "no place for a map of tokens, but these heads propose 24"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_heads_that_an_engine_cannot_run_are_refused(name, tmp_path):
    to, message = REFUSED[name]
    folder = LAYOUTS[name]().write(tmp_path / "in")
    with pytest.raises(CheckpointError, match=message):
        export_heads(folder, to, tmp_path / "out")
    assert not (tmp_path / "out").exists()


VARIANTS = {
    "1_embedding_norm": ("sglang", "norms its embeddings, which SGLang ignores"),
    "1_own": ("vllm", "has an LM head of its own, which vLLM ignores"),
    "1_bias": ("sglang", "without biases"),
    "3_qwen3": ("sglang", "without norms of queries and keys"),
    "3": ("vllm", r"final hidden state \(2\), which other engines give before the final norm"),
    "3_narrow": ("vllm", "a bias or none, but this head has them for the output only"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_that_an_engine_would_run_wrongly_are_refused(variant, tmp_path):
    to, message = VARIANTS[variant]
    head = head_of(variant)
    if variant == "3_narrow":
        target = build(family("llama"), "sdpa", num_hidden_layers=LAYERS)
        head = EagleHead(config_of(variant), target)
    with pytest.raises(CheckpointError, match=message):
        export_heads(head, to, tmp_path / "out")


def test_sglang_fuses_three_states(tmp_path):
    target = build(family("llama"), "sdpa", num_hidden_layers=LAYERS)
    head = EagleHead(config_of("3", taps=(1, 2, 3, 4)), target)
    with pytest.raises(CheckpointError, match="three hidden states, but this head reads 4"):
        export_heads(head, "sglang", tmp_path / "out")


def test_targets_whose_lm_head_is_more_than_a_matrix_give_no_copy(tmp_path):
    target = tiny_model(family("gemma2"), "eager")  # caps its logits
    config = MedusaConfig(num_heads=2, hidden_size=32, lm_head="target")
    with pytest.raises(CheckpointError, match="a bias, a scale or a cap"):
        export_heads(MedusaHeads(config, target), "vllm", tmp_path / "out")


def test_maps_have_no_place_in_tgi(tmp_path):
    target = tiny_model(family("llama"), "sdpa")
    config = MedusaConfig(num_heads=2, hidden_size=32, lm_head="each")
    heads = MedusaHeads(config, target, every_other(VOCAB))
    with pytest.raises(CheckpointError, match="TGI has no place for a map"):
        export_heads(heads, "tgi", tmp_path / "out")


def test_unknown_engine_is_named_with_those_that_are_known(tmp_path):
    with pytest.raises(ConfigError, match="to medusa, tgi, vllm, sglang, speculators, not to 'x'"):
        export_heads(tmp_path, "x", tmp_path / "out")


def test_a_file_is_no_folder_to_write_to(tmp_path):
    folder = LAYOUTS["medusa_v01"]().write(tmp_path / "in")
    (tmp_path / "out").write_text("")
    with pytest.raises(CheckpointError, match="out is a file; give a folder"):
        export_heads(folder, "tgi", tmp_path / "out")
