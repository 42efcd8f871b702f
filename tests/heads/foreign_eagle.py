"""EAGLE-1 and EAGLE-3 as their authors, SpecForge and speculators write them, key by key."""

import torch
from torch import Tensor

from tests.heads.foreign_parts import (
    DIM,
    DRAFT_IDS,
    HEADS,
    KEYS,
    D,
    Draw,
    Foreign,
    H,
    V,
    llama_config,
    llama_layer,
)


def eagle_1() -> Foreign:
    """Vicuna's and Llama-2's EAGLE: a bias behind fc."""
    draw = Draw(9)
    tensors = {
        "embed_tokens.weight": draw(V, H),
        "fc.weight": draw(H, 2 * H),
        "fc.bias": draw(H),
        **llama_layer(draw, "layers.0.", H),
    }
    return Foreign(llama_config(), tensors, "pytorch_model.bin")


def eagle_1_llama_3() -> Foreign:
    """Llama-3's EAGLE: no bias behind fc, another rope_theta."""
    draw = Draw(10)
    tensors = {
        "embed_tokens.weight": draw(V, H),
        "fc.weight": draw(H, 2 * H),
        **llama_layer(draw, "layers.0.", H),
    }
    return Foreign({**llama_config(), "bias": False, "rope_theta": 500000.0}, tensors)


def eagle_1_qwen2() -> Foreign:
    """An EAGLE for Qwen2, with biases of queries, keys and values."""
    draw = Draw(11)
    tensors = {
        "fc.weight": draw(H, 2 * H),
        "fc.bias": draw(H),
        **llama_layer(draw, "layers.0.", H),
        "layers.0.self_attn.q_proj.bias": draw(HEADS * DIM),
        "layers.0.self_attn.k_proj.bias": draw(KEYS * DIM),
        "layers.0.self_attn.v_proj.bias": draw(KEYS * DIM),
    }
    return Foreign({**llama_config(), "model_type": "qwen2"}, tensors)


def eagle_3_tensors(draw: Draw, layer: str) -> dict[str, Tensor]:
    """What every EAGLE-3 has."""
    marks = torch.zeros(V, dtype=torch.bool)
    marks[DRAFT_IDS] = True
    return {
        "fc.weight": draw(H, 3 * H),
        f"{layer}input_layernorm.weight": draw(H),
        f"{layer}hidden_norm.weight": draw(H),
        **llama_layer(draw, layer, 2 * H),
        "norm.weight": draw(H),
        "lm_head.weight": draw(D, H),
        "d2t": DRAFT_IDS - torch.arange(D),
        "t2d": marks,
    }


def eagle_3() -> Foreign:
    """yuhuili/EAGLE3-*: no rope_theta, no layer ids, no embedding."""
    config = {**llama_config(), "draft_vocab_size": D}
    return Foreign(config, eagle_3_tensors(Draw(12), "midlayer."), "pytorch_model.bin")


def eagle_3_specforge() -> Foreign:
    """SpecForge for SGLang: ids of layers whose outputs are meant, and an embedding."""
    draw = Draw(13)
    config = {
        **llama_config(),
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": D,
        "rope_theta": 250000.0,
        "norm_output": True,  # a norm before the LM head
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [0, 3, 6],
            "use_aux_hidden_state": True,
        },
    }
    tensors = eagle_3_tensors(draw, "midlayer.")
    tensors["embed_tokens.weight"] = draw(V, H)
    return Foreign(config, tensors)


def eagle_3_speculators() -> Foreign:
    """RedHatAI/*-speculator.eagle3: a nested config, an embedding, the verifier's parts."""
    draw = Draw(14)
    layer = {**llama_config(), "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    del layer["architectures"]
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": D,
        "norm_before_residual": True,
        "norm_before_fc": True,
        "fc_norm": False,
        "norm_output": True,  # the normed state is fed back
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": [1, 3, 6],
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": 3,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": "org/target", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": layer,
    }
    tensors = {
        **eagle_3_tensors(draw, "layers.0."),
        "input_norm.weight": draw(3 * H),
        "embed_tokens.weight": draw(V, H),
        "verifier_norm.weight": draw(H),
        "verifier_lm_head.weight": draw(D, H),
    }
    return Foreign(config, tensors)
