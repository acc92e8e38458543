"""Tiny configurations of every model that mlx_lm has a file for: the same few sizes under the names that each family gives them."""

import dataclasses
import importlib
import inspect
import pkgutil

LAYERS = 4
VOCABULARY = 128

# By the field's name, whatever the family.
FIELDS = {
    # widths
    "hidden_size": 128, "hidden_dim": 128, "d_model": 128, "n_embd": 128, "model_dim": 128, "dim": 128, "dim_model_base": 128,
    "intermediate_size": 256, "ffn_hidden_size": 256, "moe_intermediate_size": 64, "expert_ffn_hidden_size": 64, "n_inner": 256,
    "shared_intermediate_size": 128, "intermediate_size_mlp": 256, "moe_shared_expert_intermediate_size": 64, "mlp_hidden_size": 256,
    "shared_expert_intermediate_size": 64, "moe_intermediate_dim": 64, "block_dim": 128, "block_ff_dim": 256,
    "hidden_size_per_layer_input": 16, "intermediate_dim": 256, "moe_latent_size": None,
    # heads
    "num_attention_heads": 4, "num_heads": 4, "n_heads": 4, "n_head": 4, "num_key_value_heads": 2, "num_kv_heads": 2, "n_kv_heads": 2,
    "head_dim": 32, "attention_head_dim": 32, "global_head_dim": 32, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2,
    "swa_head_dim": 32, "swa_v_head_dim": 32, "num_attention_groups": 2, "num_global_key_value_heads": 2, "num_local_heads": 4,
    "num_global_heads": 4, "num_query_heads": 4,
    # layers
    "num_hidden_layers": LAYERS, "num_layers": LAYERS, "n_layers": LAYERS, "n_layer": LAYERS, "num_kv_reuse_layers": 1,
    "num_kv_shared_layers": 0, "first_k_dense_replace": 1, "num_dense_layers": 1, "num_nextn_predict_layers": 0, "n_dense_layers": 1,
    # vocabulary and positions
    "vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY, "embedding_size": VOCABULARY, "text_vocab_size": VOCABULARY,
    "max_position_embeddings": 4096, "n_positions": 512, "n_ctx": 512, "block_size": 512, "model_max_length": 4096, "max_seq_len": 512,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "ngram_vocab_size_ratio": 2,
    # norms, rope and scales
    "rms_norm_eps": 1e-5, "norm_eps": 1e-5, "layer_norm_eps": 1e-5, "layer_norm_epsilon": 1e-5, "layernorm_epsilon": 1e-5,
    "norm_epsilon": 1e-5, "rope_theta": 10000.0, "swa_rope_theta": 10000.0, "rotary_emb_base": 10000, "rotary_pct": 1.0,
    "partial_rotary_factor": 0.5, "rotary_dim": 16, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "rope_scaling":
    None, "scale_depth": 1.4, "scale_emb": 1.0, "logits_scaling": 1.0, "attention_multiplier": 0.18, "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0, "routed_scaling_factor": 1.0, "sliding_window": 16, "sliding_window_size": 16, "sliding_window_pattern":
    2, "attention_window_size": 16, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "use_bias": False, "use_qkv_bias":
    False, "add_bias_linear": False, "conv_bias": False, "post_norm": True, "qk_norm": True, "use_qk_norm": False,
    "tie_word_embeddings": True, "multiple_of": 32,
    # experts
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2, "moe_topk": 2,
    "moe_k": 2, "n_shared_experts": 1, "num_shared_experts": 1, "num_shared_expert": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob":
    True, "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "use_mixed_mlp_moe": True, "use_cla": False, "cla_share_factor": 2, "zero_expert_num": 2, "zero_expert_type": "identity",
    "num_expert_group": 1, "expert_layer_offset": 1, "expert_layer_period": 2, "use_expert_bias": True, "moe_num_shared_experts": 1,
    "top_k_experts": 2, "moe_top_k": 2,
    # latent attention
    "kv_lora_rank": 64, "q_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32, "attention_method": "MLA",
    "mla_scale_q_lora": True, "mla_scale_kv_lora": True, "index_head_dim": 32, "index_n_heads": 2, "index_topk": 16,
    # recurrences and convolutions
    "state_size": 16, "ssm_state_size": 16, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_num_heads": 4,
    "mamba_head_dim": 32, "mamba_d_ssm": 128, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_proj_bias": False,
    "mamba_conv_bias": True, "mamba_step": 1, "n_groups": 1, "conv_kernel": 4, "conv_L_cache": 3, "conv_window": 2, "time_step_rank": 8,
    "time_step_limit": (0.0, float("inf")), "use_conv_bias": True, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4, "full_attention_interval": 2,
    "attn_layer_offset": 1, "attn_layer_period": 2, "layer_group_size": 2, "group_norm_size": 2, "chunk_size": 16, "num_v_heads": 4,
    "lru_width": 128, "conv1d_width": 4, "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False,
    "attention_chunk_size": 64,
}  # fmt: skip

SLIDING_AND_FULL = ["sliding_attention", "full_attention"] * (LAYERS // 2)

ROPE_BY_TYPE = {kind: {"rope_theta": 10000.0, "rope_type": "default"} for kind in ("sliding_attention", "full_attention")}
YARN = {
    "type": "yarn",
    "factor": 2.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
}
LINEAR_ATTENTION = {"kda_layers": [1, 3], "full_attn_layers": [2, 4], "num_heads": 4, "head_dim": 32, "short_conv_kernel_size": 4}


class Text:
    """The configuration of the language model inside another one: a family's arguments as a dictionary."""

    def __init__(self, family, arguments="ModelArgs", **overrides):
        self.family, self.arguments, self.overrides = family, arguments, overrides

    def make(self):
        module = import_family(self.family)
        overrides = {**OVERRIDES.get(self.family, {}), **self.overrides}
        return dataclasses.asdict(tiny(getattr(module, self.arguments), overrides))


# Where a family needs something else.
OVERRIDES = {
    "baichuan_m1": {"sliding_window_layers": [0, 2], "tie_word_embeddings": False},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 128, "moe_num_experts": 4, "moe_top_k": 2, "moe_jitter_eps": 0},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    "deepseek_v2": {"rope_scaling": YARN},
    "minicpm3": {
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 16, "long_factor": [1.0] * 16, "original_max_position_embeddings": 64}
    },
    "exaone4": {"sliding_window_pattern": "LG"},
    "exaone_moe": {"is_moe_layer": [False, True, True, True]},
    "gemma3": {"text_config": Text("gemma3_text"), "vocab_size": VOCABULARY},
    "gemma3n": {
        "text_config": Text(
            "gemma3n",
            "TextConfig",
            num_kv_shared_layers=2,
            rope_local_base_freq=10000.0,
            final_logit_softcapping=30.0,
            activation_sparsity_pattern=[0.0] * LAYERS,
            altup_num_inputs=2,
            altup_coef_clip=120.0,
            altup_correct_scale=True,
            altup_active_idx=0,
            laurel_rank=8,
        )
    },
    "gemma4": {"text_config": Text("gemma4_text", num_kv_shared_layers=2), "vocab_size": VOCABULARY},
    "gemma4_text": {"num_kv_shared_layers": 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2, "mamba_n_heads": 8, "mamba_d_head": 32},
    "hunyuan": {"rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1.0}},
    "kimi_linear": {"linear_attn_config": LINEAR_ATTENTION},
    "kimi_k3": {
        "text_config": Text(
            "kimi_k3", "TextArgs", num_experts_per_token=2, hidden_act="situ", activation_situ_beta=1.0, linear_attn_config=LINEAR_ATTENTION
        )
    },
    "llama4": {"text_config": Text("llama4", "TextArgs", interleave_moe_layer_step=2, num_experts_per_tok=1)},
    "minimax_m3_vl": {
        "text_config": Text(
            "minimax_m3_vl",
            "TextArgs",
            moe_layer_freq=None,
            mlp_layer_types=None,
            layer_types=None,
            index_n_heads=None,
            rope_parameters=None,
        )
    },
    "muse_spark": {
        "text_config": Text(
            "muse_spark",
            "TextArgs",
            post_norm_eps=1e-5,
            layer_rope_theta=[10000.0, 0, 10000.0, 0],
            final_logit_softcapping=30.0,
            output_multiplier=1.0,
            moe_hidden_size=128,
            num_shared_experts=0,
        )
    },
    "kimi_k25": {"text_config": Text("deepseek_v3")},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2-vl": {"text_config": Text("lfm2")},
    "llama4_text": {"no_rope_layers": [1, 1, 1, 0]},
    "mellum": {"rope_parameters": ROPE_BY_TYPE},
    "spark2_5": {"rope_parameters": ROPE_BY_TYPE, "hidden_act": "gelu"},
    "ministral3": {
        "rope_parameters": {
            "rope_theta": 10000.0,
            "rope_type": "default",
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 64,
        }
    },
    "mistral4": {
        "rope_parameters": {
            "rope_theta": 10000.0,
            "rope_type": "default",
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 64,
        }
    },
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [0, 1, 0, 1],
        "moe_layer_freq": [0, 1, 1, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
    },
    "mistral3": {"text_config": Text("llama")},
    "pixtral": {"text_config": Text("llama")},
    "qwen2_vl": {"text_config": Text("qwen2")},
    "qwen3_vl": {"text_config": Text("qwen3")},
    "qwen3_vl_moe": {"text_config": Text("qwen3_moe")},
    "qwen3_5": {"text_config": Text("qwen3_5", "TextModelArgs")},
    "qwen3_5_moe": {"text_config": Text("qwen3_5", "TextModelArgs")},
    "prism_hadamard_qwen35": {"text_config": Text("qwen3_5", "TextModelArgs")},
    "nemotron_h": {"hybrid_override_pattern": ["M", "*", "-", "E"], "layer_types": None, "num_hidden_layers": 4, "intermediate_size": 128},
    "nemotron-nas": {
        "block_configs": [
            {
                "attention": {"no_op": False, "replace_with_linear": False, "n_heads_in_group": 2},
                "ffn": {"no_op": False, "replace_with_linear": False, "ffn_mult": 1.0},
            }
            for _ in range(LAYERS)
        ]
    },
    "olmo_hybrid": {"linear_allow_neg_eigval": True, "layer_types": ["linear_attention", "full_attention"] * 2},
    "openelm": {
        "num_transformer_layers": LAYERS,
        "ffn_dim_divisor": 32,
        "num_query_heads": [4] * LAYERS,
        "num_kv_heads": [2] * LAYERS,
        "ffn_multipliers": [1.0] * LAYERS,
    },
    "phi3small": {
        "dense_attention_every_n_layers": 2,
        "ff_intermediate_size": 256,
        "gegelu_limit": 20.0,
        "vocab_size": 100352,
    },  # it writes at fixed ids
    "plamo": {"n_shared_head": 2},
    "plamo2": {"mamba_step": 2, "hidden_size_per_head": 32, "full_attention_idx": [1, 3], "mamba_d_state": 16},
    "qwen": {"kv_channels": 32},
    "recurrent_gemma": {"logits_soft_cap": 30.0, "block_types": ["recurrent", "attention"], "_block_types": None},
    "rwkv7": {"a_low_rank_dim": 16, "v_low_rank_dim": 16, "gate_low_rank_dim": 16, "decay_low_rank_dim": 16},
}


def model_files():
    """Names of all files in mlx_lm.models."""
    import mlx_lm.models

    return sorted(m.name for m in pkgutil.iter_modules(mlx_lm.models.__path__))


def import_family(name):
    return importlib.import_module(f"mlx_lm.models.{name}")


def tiny(args_class, overrides):
    """An instance of a family's ModelArgs in tiny sizes."""
    values = {}
    for field in dataclasses.fields(args_class):
        if field.name in overrides:
            values[field.name] = overrides[field.name].make() if isinstance(overrides[field.name], Text) else overrides[field.name]
        elif field.name in FIELDS:
            values[field.name] = FIELDS[field.name]
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            if field.name == "model_type":
                values[field.name] = args_class.__module__.rsplit(".", 1)[-1]
            elif field.name == "layer_types":
                values[field.name] = SLIDING_AND_FULL
            elif field.name == "text_config":
                module = inspect.getmodule(args_class)
                own = next(name for name in ("TextArgs", "TextConfig", "TextModelArgs") if hasattr(module, name))
                values[field.name] = Text(module.__name__.rsplit(".", 1)[-1], own).make()
            else:
                raise KeyError(f"no tiny value for {field.name}: {field.type}")
    return args_class(**values)


def is_zero(x):
    import mlx.core as mx

    return mx.issubdtype(x.dtype, mx.floating) and x.size > 0 and not bool(mx.any(x != 0))


def build(name):
    """A tiny model of random weights; raises what its own code raises."""
    import mlx.core as mx
    from mlx.utils import tree_map

    module = import_family(name)
    mx.random.seed(7)
    model = module.Model(tiny(module.ModelArgs, OVERRIDES.get(name, {})))
    # Gains and convolutions that begin as zero would switch attention off.
    model.update(tree_map(lambda x: mx.random.normal(x.shape, x.dtype) * 0.3 if is_zero(x) else x, model.parameters()))
    mx.eval(model.parameters())
    return model
