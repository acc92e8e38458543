"""Small random models in the files that mlx_lm writes and reads: config.json, model.safetensors, tokenizer.json."""

import json

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.utils import _get_classes
from tokenizers import Tokenizer, models, pre_tokenizers

VOCAB = 320

BASE = dict(
    hidden_size=128,
    num_hidden_layers=3,
    intermediate_size=192,
    num_attention_heads=4,
    num_key_value_heads=2,
    rms_norm_eps=1e-5,
    vocab_size=VOCAB,
    max_position_embeddings=512,
    rope_theta=10000.0,
)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)

# What each family changes in BASE.
FAMILIES = {
    "llama": dict(model_type="llama"),
    "llama-rope3": dict(model_type="llama", rope_theta=500000.0, rope_scaling=LLAMA3, num_key_value_heads=1),
    "llama-linear": dict(model_type="llama", rope_scaling=dict(rope_type="linear", factor=4.0), num_attention_heads=6, head_dim=32),
    "llama-biases": dict(model_type="llama", attention_bias=True, mlp_bias=True, head_dim=64),
    "mistral": dict(model_type="mistral", head_dim=64, sliding_window=None, rope_theta=1000000.0),
    "qwen2": dict(model_type="qwen2", rope_theta=1000000.0, rms_norm_eps=1e-6),
    "qwen3": dict(model_type="qwen3", rope_theta=1000000.0, rms_norm_eps=1e-6, head_dim=64),
}

# How the matrices are stored. `layers` gives some of them another width, as mixed quantisation recipes do.
QUANTISATIONS = {
    "dense": None,
    "4bit-32": dict(bits=4, group_size=32),
    "4bit-64": dict(bits=4, group_size=64),
    "mxfp4": dict(bits=4, group_size=32, mode="mxfp4"),
    "mxfp8": dict(bits=8, group_size=32, mode="mxfp8"),
    "mixed-mx": dict(
        bits=4,
        group_size=32,
        mode="mxfp4",
        layers={
            "model.embed_tokens": dict(bits=8, group_size=32, mode="mxfp8"),
            "model.layers.0.self_attn.v_proj": dict(bits=8, group_size=64, mode="affine"),
            "model.layers.1.mlp.gate_proj": dict(bits=8, group_size=32, mode="mxfp8"),
            "model.layers.2.mlp.down_proj": False,
        },
    ),
    "mixed": dict(
        bits=4,
        group_size=32,
        layers={
            "model.embed_tokens": dict(bits=8, group_size=32),
            "model.layers.0.self_attn.v_proj": dict(bits=8, group_size=64),
            "model.layers.1.mlp.gate_proj": dict(bits=8, group_size=32),
            "model.layers.2.mlp.down_proj": dict(bits=8, group_size=64),
            "lm_head": dict(bits=8, group_size=32),
        },
    ),
}


def config_of(family, tied):
    return {**BASE, **FAMILIES[family], "tie_word_embeddings": tied, "eos_token_id": 0}


def write_model(folder, config, quantisation=None, dtype=mx.float32, seed=1):
    """Writes a model with random weights of `dtype` that give logits of a few units and attention that is not uniform."""
    folder.mkdir(parents=True)
    model_class, arguments = _get_classes(config)
    model = model_class(arguments.from_dict(config))
    mx.random.seed(seed)
    model.update(tree_map_with_path(_random, model.parameters()))
    config = dict(config)
    if quantisation:
        config["quantization"] = _quantise(model, quantisation)
    weights = {name: a.astype(dtype) if mx.issubdtype(a.dtype, mx.floating) else a for name, a in tree_flatten(model.parameters())}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(folder)
    return folder


def _random(name, a):
    noise = mx.random.normal(a.shape)
    if "norm" in name:
        return 1 + 0.2 * noise
    if name.endswith("bias"):
        return 0.3 * noise
    if "embed_tokens" in name:
        return 0.2 * noise  # rows are normed first; as a tied head they give logits as large as an untied head's
    return noise * (1.5 / a.shape[-1] ** 0.5)


def _quantise(model, quantisation):
    overrides = quantisation.get("layers", {})
    width = {key: quantisation[key] for key in ("group_size", "bits", "mode") if key in quantisation}
    names = {name for name, module in model.named_modules() if hasattr(module, "to_quantized")}
    nn.quantize(model, **width, class_predicate=lambda name, module: name in names and overrides.get(name, True))
    return {**width, **{name: value for name, value in overrides.items() if name in names}}


def write_tokenizer(folder):
    """A byte-level tokenizer: 256 bytes, some special tokens and nothing merged."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = [f"<|special_{i}|>" for i in range(VOCAB - len(alphabet))]
    vocabulary = {token: i for i, token in enumerate(special + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer_class="PreTrainedTokenizerFast", eos_token=special[0])))
