"""Unpacking a GGUF file, with a tiny one written on the spot."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from treespec.fetch import is_complete, unpack_gguf

VOCABULARY = ["<unk>", "<s>", "</s>", "a", "b", "ab"]


def write_tiny_gguf(path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    hidden, heads, inner = 16, 2, 32
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([1] * len(VOCABULARY))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    generator = np.random.default_rng(0)
    shapes = {
        "token_embd": (len(VOCABULARY), hidden),
        "output_norm": (hidden,),
        "blk.0.attn_norm": (hidden,),
        "blk.0.ffn_norm": (hidden,),
        "blk.0.ffn_gate": (inner, hidden),
        "blk.0.ffn_up": (inner, hidden),
        "blk.0.ffn_down": (hidden, inner),
        **{f"blk.0.attn_{part}": (hidden, hidden) for part in ("q", "k", "v", "output")},
    }
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", generator.standard_normal(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf_file_becomes_a_model_and_tokenizer_that_transformers_loads(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "weights.gguf")

    unpack_gguf(tmp_path / "weights.gguf", tmp_path / "out")

    assert is_complete(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert model.dtype is torch.bfloat16
    assert model(torch.tensor([tokenizer.encode("ab")])).logits.shape[-1] == len(VOCABULARY)
