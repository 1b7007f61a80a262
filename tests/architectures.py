"""The families of models that are known to run on the paged cache, and those that are refused, each as a tiny config.

``scripts/architectures.py`` measures them and writes ``docs/architectures.md``; a test holds both to this list.
"""

from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedModel

from spec_harness.models.load import LoadedModel, build_random, prepare
from tests.helpers import CPU, SMALL

MAX_LEN = 128  # tokens; below every family's maximum
WINDOW = 8  # tokens; shorter than the sequences compared


@dataclass(frozen=True)
class Family:
    """``name`` is the model type, with a remark where only a variant is meant."""

    name: str
    features: str
    options: dict[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()  # keys of ``SMALL`` that its config does not take

    @property
    def model_type(self) -> str:
        return self.name.split(" ")[0]

    def config(self, **changes: Any) -> dict[str, Any]:
        small = {key: value for key, value in SMALL.items() if key not in self.without}
        return {"model_type": self.model_type, **small, **self.options, **changes}

    def build(self, *, dtype: str = "float32", **changes: Any) -> PreTrainedModel:
        """Random weights, the same each time. Raises ``UserError`` where transformers has no such causal model."""
        return build_random(self.config(**changes), where="target", device=CPU, dtype=dtype, seed=0)

    def load(self, **changes: Any) -> LoadedModel:
        """Raises ``UserError`` where it is refused."""
        return prepare(self.build(**changes), where="target", max_model_len=MAX_LEN)


@dataclass(frozen=True)
class RefusedFamily(Family):
    reason: str = "transformers cannot set its attention function"  # part of the message


SLIDING = {"sliding_window": WINDOW}
ALTERNATING = {**SLIDING, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED_EXPERTS = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
GPTJ = {"n_embd": 64, "n_head": 4, "n_layer": 2, "rotary_dim": 8, "n_positions": 256}
SHARED_KV = {
    **SLIDING,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 128,
}

RUNNING = [
    Family(
        "afmoe",
        "alternating local and global layers, no rotary in the global ones, mixture of experts, gated output, QK-norm",
        {**ALTERNATING, **EXPERTS},
    ),
    Family("apertus", "grouped-query, QK-norm"),
    Family("arcee", "grouped-query"),
    Family("biogpt", "dense multi-head, learned positions, tied embeddings"),
    Family("bitnet", "grouped-query, norm before the output projection"),
    Family("codegen", "dense multi-head, partial rotary, parallel residual", {**GPTJ, "n_ctx": 256}),
    Family("cohere", "grouped-query, parallel residual, tied embeddings, scaled logits", {"logit_scale": 1.0}),
    Family(
        "cohere2",
        "alternating local and global layers, no rotary in the global ones, parallel residual",
        {**ALTERNATING, "logit_scale": 1.0},
    ),
    Family("ctrl", "dense multi-head, sinusoidal positions", {"n_embd": 64, "n_head": 4, "n_layer": 2, "dff": 128}),
    Family("cwm", "alternating local and global layers", ALTERNATING),
    Family(
        "dbrx",
        "mixture of experts, clipped queries, keys and values",
        {
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 256,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
            "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
        },
    ),
    Family(
        "deepseek_v2",
        "multi-head latent attention (keys 24 wide, values 12), mixture of experts",
        {**LATENT, **ROUTED_EXPERTS, "head_dim": 8},
    ),
    Family(
        "deepseek_v3",
        "multi-head latent attention (keys 24 wide, values 12), mixture of experts",
        {**LATENT, **ROUTED_EXPERTS, "head_dim": 8},
    ),
    Family(
        "dots1",
        "alternating local and global layers, mixture of experts, QK-norm",
        {**ALTERNATING, **ROUTED_EXPERTS},
    ),
    Family("ernie4_5", "grouped-query, interleaved rotary"),
    Family(
        "ernie4_5_moe",
        "mixture of experts, interleaved rotary",
        {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32},
    ),
    Family(
        "exaone4", "alternating local and global layers, no rotary in the global ones, QK-norm, post-norm", ALTERNATING
    ),
    Family("flex_olmo", "mixture of experts, QK-norm, post-norm"),
    Family("gemma", "multi-query, tied embeddings, scaled embeddings", {"num_key_value_heads": 1}),
    Family(
        "gemma2",
        "soft-capped scores and logits, alternating local and global layers, tied embeddings",
        {
            **ALTERNATING,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 10.0,
            "query_pre_attn_scalar": 16,
        },
    ),
    Family("gemma3_text", "alternating local and global layers with a rotary base each, QK-norm", ALTERNATING),
    Family(
        "gemma3n_text",
        "keys and values shared across layers, alternating local and global layers, per-layer embeddings",
        {**SHARED_KV, "laurel_rank": 8, "activation_sparsity_pattern": None},
    ),
    Family(
        "gemma4_text",
        "keys and values shared across layers, wider heads in the global layers, per-layer embeddings",
        {**SHARED_KV, "global_head_dim": 32},
    ),
    Family("glm", "grouped-query, partial rotary"),
    Family("glm4", "grouped-query, partial rotary, norms before and after"),
    Family("glm4_moe", "mixture of experts, partial rotary", ROUTED_EXPERTS),
    Family(
        "glm4_moe_lite",
        "multi-head latent attention (keys 24 wide, values 12), mixture of experts",
        {**LATENT, **ROUTED_EXPERTS},
        without=("head_dim",),
    ),
    Family("gpt2", "dense multi-head, learned positions, tied embeddings"),
    Family("gpt_bigcode", "multi-query, learned positions"),
    Family("gpt_neox", "dense multi-head, partial rotary, parallel residual"),
    Family(
        "gpt_oss",
        "attention sinks, alternating local and global layers, mixture of experts",
        {
            **ALTERNATING,
            **LOCAL_EXPERTS,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    Family("gptj", "dense multi-head, partial interleaved rotary, parallel residual", GPTJ),
    Family("granite", "grouped-query, scaled embeddings, scores, residuals and logits"),
    Family("granitemoe", "mixture of experts, scaled as granite"),
    Family("helium", "grouped-query, interleaved rotary"),
    Family("hunyuan_v1_dense", "grouped-query, QK-norm after the rotary"),
    Family("hunyuan_v1_moe", "mixture of experts, QK-norm after the rotary", {"num_experts": 4, "moe_topk": 2}),
    Family("internlm3", "grouped-query"),
    Family("jais2", "grouped-query, layer norm with bias"),
    Family("jetmoe", "mixture of experts also in the attention", LOCAL_EXPERTS),
    Family("llama", "grouped-query"),
    Family(
        "longcat_flash",
        "multi-head latent attention (keys 24 wide, values 12), two attentions per layer, mixture of experts",
        {
            **LATENT,
            "num_layers": 2,
            "ffn_hidden_size": 64,
            "moe_topk": 2,
            "n_routed_experts": 4,
            "zero_expert_num": 2,
            "expert_ffn_hidden_size": 32,
            "head_dim": 8,
        },
        without=("num_hidden_layers",),
    ),
    Family(
        "mimo_v2_flash",
        "attention sinks and more key heads in the local layers, keys 16 wide and values 12, mixture of experts",
        {**ALTERNATING, **ROUTED_EXPERTS, "v_head_dim": 12},
    ),
    Family("minicpm3", "multi-head latent attention (keys 24 wide, values 12), scaled residuals", LATENT),
    Family("minimax_m2", "mixture of experts, partial rotary, QK-norm", {**LOCAL_EXPERTS, "rotary_dim": 8}),
    Family("ministral", "alternating local and global layers", ALTERNATING),
    Family(
        "ministral3",
        "queries scaled by position, YaRN",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 16,
                "llama_4_scaling_beta": 0.5,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            }
        },
    ),
    Family("mistral", "sliding window, given by keyword and by mask", SLIDING),
    Family("mixtral", "mixture of experts, sliding window", {**LOCAL_EXPERTS, **SLIDING}),
    Family(
        "modernbert-decoder",
        "alternating local and global layers, fused projections",
        {**ALTERNATING, "local_attention": WINDOW},
    ),
    Family("nanochat", "QK-norm after the rotary, soft-capped logits"),
    Family("nemotron", "grouped-query, partial rotary, squared-ReLU"),
    Family("olmo", "grouped-query, clipped queries, keys and values", {"clip_qkv": 4.0}),
    Family("olmo2", "grouped-query, QK-norm over all heads, post-norm"),
    Family("olmo3", "alternating local and global layers, QK-norm over all heads", ALTERNATING),
    Family("olmoe", "mixture of experts, QK-norm over all heads", EXPERTS),
    Family("opt", "dense multi-head, learned positions", {"ffn_dim": 128, "word_embed_proj_dim": 64, "init_std": 0.3}),
    Family("persimmon", "dense multi-head, partial rotary, QK-norm"),
    Family("phi", "grouped-query, partial rotary, parallel residual"),
    Family("phi3", "sliding window, fused projections", SLIDING),
    Family("phimoe", "sliding window given only by the mask, mixture of experts", {**SLIDING, **LOCAL_EXPERTS}),
    Family(
        "qwen2",
        "sliding window in the upper layers, biases of queries, keys and values",
        {**SLIDING, "use_sliding_window": True, "max_window_layers": 1},
    ),
    Family("qwen2_moe", "mixture of experts and a shared one", {**EXPERTS, "shared_expert_intermediate_size": 64}),
    Family("qwen3", "grouped-query, QK-norm"),
    Family("qwen3_moe", "mixture of experts, QK-norm", EXPERTS),
    Family("seed_oss", "grouped-query, biases of queries, keys and values"),
    Family("smollm3", "no rotary in every second layer", {"no_rope_layers": [1, 0]}),
    Family("stablelm", "grouped-query, partial rotary"),
    Family(
        "stablelm (parallel)",
        "parallel residual, QK-norm, partial rotary",
        {"use_parallel_residual": True, "qk_layernorm": True},
    ),
    Family("starcoder2", "sliding window, layer norm with bias", SLIDING),
    Family(
        "vaultgemma",
        "soft-capped scores, alternating local and global layers",
        {**ALTERNATING, "attn_logit_softcapping": 5.0},
    ),
    Family("youtu", "multi-head latent attention (keys 24 wide, values 12)", LATENT, without=("head_dim",)),
]

_LINEAR = "it has layers of type linear_attention"
_AHEAD = "it attends to later tokens"
_TWICE = "its 2 layers attend 4 times in one forward"

REFUSED = [
    RefusedFamily("bamba", "state-space layers", reason=_LINEAR),
    RefusedFamily(
        "bart",
        "the decoder of an encoder-decoder pair; counts positions itself",
        {
            "d_model": 64,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "decoder_attention_heads": 4,
            "decoder_ffn_dim": 128,
        },
        reason="so it keeps information elsewhere than in keys, values and position ids",
    ),
    RefusedFamily("bert", "an encoder: attention in both directions", reason=_AHEAD),
    RefusedFamily("bloom", "ALiBi biases", {"n_layer": 2, "n_head": 4}),
    RefusedFamily(
        "deepseek_v32",
        "sparse attention to the tokens that an indexer chooses",
        {**LATENT, **ROUTED_EXPERTS},
        reason="it has layers of type indexed_attention",
    ),
    RefusedFamily("diffllama", "the difference of two attentions in every layer", reason=_TWICE),
    RefusedFamily("doge", "a mask computed from the values", reason="its layers mask their attention themselves"),
    RefusedFamily("falcon", "rotary positions; attention of its own", {"alibi": False}, without=("head_dim",)),
    RefusedFamily(
        "falcon (ALiBi)",
        "ALiBi biases",
        {"alibi": True, "new_decoder_architecture": False},
        without=("head_dim",),
    ),
    RefusedFamily(
        "falcon_h1",
        "attention and state space side by side",
        {
            "mamba_d_ssm": 64,
            "mamba_n_heads": 4,
            "mamba_d_head": 16,
            "mamba_d_state": 8,
            "mamba_n_groups": 1,
        },
        reason="it has layers of type hybrid",
    ),
    RefusedFamily("falcon_mamba", "state-space layers", {"state_size": 4}, reason=_LINEAR),
    RefusedFamily(
        "gemma3_text (bidirectional)",
        "attention in both directions, for embeddings",
        {"use_bidirectional_attention": True},
        reason=_AHEAD,
    ),
    RefusedFamily("gpt_neo", "attention of its own", {"attention_types": [[["global", "local"], 1]], "num_layers": 2}),
    RefusedFamily("gpt_neox_japanese", "attention of its own"),
    RefusedFamily("granitemoehybrid", "state-space layers", reason=_LINEAR),
    RefusedFamily(
        "jamba",
        "state-space layers",
        {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4, "mamba_d_state": 4},
        reason=_LINEAR,
    ),
    RefusedFamily("kimi_linear", "linear attention", {**LATENT, "num_local_experts": 4}, reason=_LINEAR),
    RefusedFamily(
        "lfm2 (convolutions)",
        "short convolutions",
        {"layer_types": ["conv", "full_attention"]},
        reason="it has layers of type conv",
    ),
    RefusedFamily(
        "llama (dynamic RoPE)",
        "rotary scale by the longest sequence of a batch, beyond the original maximum",
        {
            "rope_parameters": {
                "rope_type": "dynamic",
                "rope_theta": 10000.0,
                "factor": 2.0,
                "original_max_position_embeddings": 64,
            }
        },
        reason="its dynamic rotary scale depends on the longest sequence of a batch beyond 64 tokens",
    ),
    RefusedFamily(
        "llama4_text",
        "attention within chunks",
        {"intermediate_size_mlp": 128, "num_local_experts": 2, "attention_chunk_size": 8},
        reason="it has layers of type chunked_attention",
    ),
    RefusedFamily("mamba", "state-space layers", {"state_size": 4}, reason=_LINEAR),
    RefusedFamily("mamba2", "state-space layers", {"state_size": 8, "num_heads": 8, "n_groups": 1}, reason=_LINEAR),
    RefusedFamily("minimax", "linear attention", reason=_LINEAR),
    RefusedFamily(
        "minimax_m3_vl_text (sparse)",
        "sparse attention to the blocks that an indexer chooses",
        {**LOCAL_EXPERTS, "layer_types": ["full_attention", "minimax_m3_sparse"]},
        reason="it has layers of type minimax_m3_sparse",
    ),
    RefusedFamily("mpt", "ALiBi biases", {"d_model": 64, "n_heads": 4, "n_layers": 2}),
    RefusedFamily("nemotron_h", "state-space layers", reason=_LINEAR),
    RefusedFamily("olmo_hybrid", "linear attention", reason=_LINEAR),
    RefusedFamily("openai-gpt", "attention of its own"),
    RefusedFamily(
        "phi3 (longrope)",
        "rotary scale by the longest sequence of a batch, beyond the original maximum",
        {
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
            },
        },
        reason="its longrope rotary scale depends on the longest sequence of a batch beyond 64 tokens",
    ),
    RefusedFamily("qwen3_5_text", "linear attention in most layers", reason=_LINEAR),
    RefusedFamily(
        "qwen3_next",
        "linear attention in most layers",
        {
            **EXPERTS,
            "shared_expert_intermediate_size": 32,
            "layer_types": ["linear_attention", "full_attention"],
        },
        reason=_LINEAR,
    ),
    RefusedFamily("recurrent_gemma", "recurrent layers", reason=_LINEAR),
    RefusedFamily("rwkv", "recurrent layers"),
    RefusedFamily("t5", "an encoder-decoder pair", reason="T5 is no causal language model in transformers"),
    RefusedFamily(
        "xglm", "attention of its own", {"d_model": 64, "num_layers": 2, "attention_heads": 4, "ffn_dim": 128}
    ),
    RefusedFamily("xlstm", "recurrent layers", reason="0 of its 2 layers use the attention interface, all must"),
    RefusedFamily(
        "zamba2",
        "state-space layers and shared attention",
        {"layer_types": ["linear_attention", "hybrid"]},
        reason="it has layers of type hybrid, linear_attention",
    ),
]

BY_NAME = {family.name: family for family in RUNNING}
