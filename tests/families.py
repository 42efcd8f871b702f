"""Tiny random models of many `transformers` families, built from their configs alone.

Weights are drawn anew so that greedy text wanders: freshly initialised models tend to repeat one
token, and text that repeats hides wrong positions and wrong caches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

VOCAB = 97
_GAIN = 1.6

_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
_GPT2_SIZES = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
_STATE_SIZES = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2}
_TOKENS = {
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
}
_EXPERTS = {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}
_ROUTED = {
    "moe_intermediate_size": 24,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Family:
    """One architecture and the settings of its tiny model.

    Attributes:
        name: short name, used in test ids and in the documentation.
        config: name of the config class in `transformers`.
        settings: what the config is given.
        window: positions that a local layer sees (a sliding window or a chunk), or None.
        sdpa: whether the family runs on torch's fused attention.
        seed: of the weights, chosen for text with many distinct tokens.
    """

    name: str
    config: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    window: int | None = None
    sdpa: bool = True
    seed: int = 0

    def __str__(self) -> str:
        return self.name

    @property
    def attentions(self) -> tuple[str, ...]:
        """Attention implementations that need no compiler."""
        return ("eager", "sdpa") if self.sdpa else ("eager",)

    def make_config(self, **overrides: Any) -> PreTrainedConfig:
        """The tiny model's config."""
        config_class = getattr(transformers, self.config)
        return config_class(
            **{**_TOKENS, "tie_word_embeddings": False, **self.settings, **overrides}
        )


def _family(name: str, config: str, seed: int = 0, **settings: Any) -> Family:
    """A family that takes the usual names of sizes; keywords of `Family` are taken out."""
    marks = {key: settings.pop(key) for key in ("window", "sdpa") if key in settings}
    return Family(name=name, config=config, seed=seed, settings={**_SIZES, **settings}, **marks)


def _sliding(name: str, config: str, seed: int = 0, *, window: int = 6, **settings: Any) -> Family:
    """A family whose layers alternate between a sliding window and full attention."""
    alternating = {
        "num_hidden_layers": 4,
        "sliding_window": window,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
    return _family(name, config, seed, window=window, **{**alternating, **settings})


def _gpt2_like(name: str, config: str, seed: int = 0, **settings: Any) -> Family:
    """A family that names its sizes as GPT-2 does."""
    marks = {key: settings.pop(key) for key in ("sdpa",) if key in settings}
    return Family(
        name=name, config=config, seed=seed, settings={**_GPT2_SIZES, **settings}, **marks
    )


FAMILIES: tuple[Family, ...] = (
    _family("llama", "LlamaConfig"),
    _family("llama_mqa", "LlamaConfig", num_key_value_heads=1, head_dim=16),
    _family("llama_rope_llama3", "LlamaConfig", rope_parameters=_LLAMA3),
    _family("llama_rope_yarn", "LlamaConfig", rope_parameters=_YARN),
    _family("llama_tied", "LlamaConfig", tie_word_embeddings=True),
    _family("qwen2", "Qwen2Config"),
    _family("qwen2_moe", "Qwen2MoeConfig", 2, shared_expert_intermediate_size=24, **_EXPERTS),
    _family("qwen3", "Qwen3Config", head_dim=16),
    _family("qwen3_moe", "Qwen3MoeConfig", head_dim=16, **_EXPERTS),
    _family("mistral", "MistralConfig", sliding_window=8, window=8),
    _family("ministral", "MinistralConfig", sliding_window=8, window=8, head_dim=8),
    _family("mixtral", "MixtralConfig", **_LOCAL),
    _family("gemma", "GemmaConfig", head_dim=16),
    _sliding("gemma2", "Gemma2Config", 1, head_dim=16, sdpa=False),
    _sliding("gemma3", "Gemma3TextConfig", 7, head_dim=16),
    _sliding(
        "gemma3n",
        "Gemma3nTextConfig",
        head_dim=16,
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=8,
    ),
    _sliding(
        "gemma4",
        "Gemma4TextConfig",
        head_dim=16,
        global_head_dim=16,
        vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=8,
    ),
    _sliding("vaultgemma", "VaultGemmaConfig", 1, head_dim=16, sdpa=False),
    _family("phi", "PhiConfig", 1),
    _family("phi3", "Phi3Config"),
    _family("phimoe", "PhimoeConfig", num_local_experts=4),
    _gpt2_like("gpt2", "GPT2Config", 3),
    _gpt2_like("gptj", "GPTJConfig", 2, rotary_dim=4),
    _gpt2_like("gpt_bigcode", "GPTBigCodeConfig", 8, multi_query=True),
    _gpt2_like("codegen", "CodeGenConfig", rotary_dim=4),
    _gpt2_like("ctrl", "CTRLConfig", 1, dff=48),
    _family("gpt_neox", "GPTNeoXConfig", 1),
    _sliding("gpt_oss", "GptOssConfig", window=8, head_dim=16, sdpa=False, **_LOCAL),
    _family("opt", "OPTConfig", 1, ffn_dim=48, word_embed_proj_dim=32),
    _family("biogpt", "BioGptConfig"),
    Family(
        name="xglm",
        config="XGLMConfig",
        settings={
            "vocab_size": VOCAB,
            "d_model": 32,
            "ffn_dim": 48,
            "num_layers": 2,
            "attention_heads": 4,
            "max_position_embeddings": 256,
        },
        sdpa=False,
    ),
    _family(
        "falcon",
        "FalconConfig",
        1,
        alibi=False,
        new_decoder_architecture=True,
        num_kv_heads=2,
        ffn_hidden_size=48,
    ),
    _family("starcoder2", "Starcoder2Config", sliding_window=8, window=8),
    _family("cohere", "CohereConfig", 1, logit_scale=1.0),
    _sliding("cohere2", "Cohere2Config", logit_scale=1.0),
    _family("olmo", "OlmoConfig"),
    _family("olmo2", "Olmo2Config", 1),
    _sliding("olmo3", "Olmo3Config"),
    _family("olmoe", "OlmoeConfig", num_experts=4, num_experts_per_tok=2),
    _family("flex_olmo", "FlexOlmoConfig", 1, num_experts=4, num_experts_per_tok=2),
    _family("stablelm", "StableLmConfig"),
    _family("deepseek_v2", "DeepseekV2Config", 1, **{**_LATENT, **_ROUTED}),
    _family("deepseek_v3", "DeepseekV3Config", **{**_LATENT, **_ROUTED, "n_group": 2}),
    _family("minicpm3", "MiniCPM3Config", 2, **_LATENT),
    _family("granite", "GraniteConfig"),
    _family("granitemoe", "GraniteMoeConfig", num_local_experts=4),
    _family("smollm3", "SmolLM3Config", num_hidden_layers=4),
    _family(
        "llama4",
        "Llama4TextConfig",
        3,
        num_hidden_layers=4,
        head_dim=8,
        attention_chunk_size=8,
        intermediate_size_mlp=48,
        num_local_experts=4,
        interleave_moe_layer_step=2,
        window=8,
    ),
    _family("glm", "GlmConfig", head_dim=8),
    _family("glm4", "Glm4Config", head_dim=8),
    _family("glm4_moe", "Glm4MoeConfig", head_dim=8, **_ROUTED),
    _family("seed_oss", "SeedOssConfig", head_dim=8),
    _sliding("exaone4", "Exaone4Config"),
    _family("nemotron", "NemotronConfig", 1, head_dim=8),
    _family("helium", "HeliumConfig", head_dim=8),
    _family("ernie4_5", "Ernie4_5Config", head_dim=8),
    _family("hunyuan_v1_dense", "HunYuanDenseV1Config", 1, head_dim=8),
    _family("arcee", "ArceeConfig"),
    _family("apertus", "ApertusConfig", 10),
    _family("persimmon", "PersimmonConfig"),
    _family("jetmoe", "JetMoeConfig", num_local_experts=4, kv_channels=16),
    _family("bitnet", "BitNetConfig"),
    _family("diffllama", "DiffLlamaConfig"),
    _family("nanochat", "NanoChatConfig", 7),
    _family("minimax_m2", "MiniMaxM2Config", **_LOCAL),
)

REFUSED: tuple[Family, ...] = (
    Family(name="mamba", config="MambaConfig", settings=_STATE_SIZES),
    Family(
        name="mamba2",
        config="Mamba2Config",
        settings={**_STATE_SIZES, "num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1},
    ),
    Family(
        name="rwkv", config="RwkvConfig", settings={**_STATE_SIZES, "attention_hidden_size": 32}
    ),
    _family("qwen3_next", "Qwen3NextConfig", num_hidden_layers=4, head_dim=8, **_EXPERTS),
    _family("lfm2", "Lfm2Config", layer_types=["conv", "full_attention"]),
    _family("recurrent_gemma", "RecurrentGemmaConfig", num_hidden_layers=3, lru_width=32),
    _family("falcon_h1", "FalconH1Config", mamba_d_ssm=32, mamba_n_heads=4, mamba_d_state=8),
    _family("jamba", "JambaConfig", **_LOCAL),
    _family("minimax", "MiniMaxConfig", **_LOCAL),
    _gpt2_like("bloom", "BloomConfig", hidden_size=32),
    Family(
        name="mpt",
        config="MptConfig",
        settings={"vocab_size": VOCAB, "d_model": 32, "n_heads": 4, "n_layers": 2},
    ),
    _family("falcon_alibi", "FalconConfig", alibi=True, new_decoder_architecture=False),
    Family(
        name="gpt_neo",
        config="GPTNeoConfig",
        settings={
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
        },
    ),
    _gpt2_like("openai_gpt", "OpenAIGPTConfig"),
    Family(
        name="xlnet",
        config="XLNetConfig",
        settings={"vocab_size": VOCAB, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
    ),
)


def redraw(model: PreTrainedModel, seed: int) -> None:
    """Give every parameter fresh values of a size that makes greedy text wander."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = model.get_input_embeddings().weight
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() < 2:
                parameter.add_(0.1 * noise)
            elif parameter is embeddings:
                parameter.copy_(noise)
            else:
                parameter.copy_(noise * (_GAIN * parameter.shape[-1] ** -0.5))


def build(family: Family, attention: str, **overrides: Any) -> PreTrainedModel:
    """A tiny float32 model of the family, ready to generate; the same weights at every call.

    Args:
        family: which one.
        attention: attention implementation.
        overrides: settings of the config to change.
    """
    config = family.make_config(**overrides)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation=attention, dtype=torch.float32
    )
    redraw(model, family.seed)
    return model.eval()


@lru_cache(maxsize=8)
def tiny_model(family: Family, attention: str) -> PreTrainedModel:
    """`build`, remembered; shared between tests, so do not change it."""
    return build(family, attention)


def family(name: str) -> Family:
    """The supported family of this name."""
    return next(each for each in FAMILIES if each.name == name)
