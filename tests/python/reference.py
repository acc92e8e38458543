"""Logits of a model as mlx_lm computes them, in float32."""

import pathlib

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models import llama
from mlx_lm.utils import load_model


def logits_of_folder(folder, tokens):
    """Reads the folder with mlx_lm; stored numbers are widened to float32, which loses nothing."""
    model, _ = load_model(pathlib.Path(folder))
    model.update(tree_map(lambda a: a.astype(mx.float32) if mx.issubdtype(a.dtype, mx.floating) else a, model.parameters()))
    return _forward(model, tokens)


def logits_of_gguf(path, tokens):
    """A llama-family GGUF. Its matrices are dequantised first: MLX multiplies dense float32 much faster than quantised ones here."""
    arrays, metadata = mx.load(str(path), return_metadata=True)
    heads, kv_heads = _head_counts(metadata)
    weights = {}
    for key in arrays:
        base, _, kind = key.rpartition(".")
        if kind == "weight":
            weights[_mlx_name(base) + ".weight"] = _rows_in_order(_dense(arrays, base), base, heads, kv_heads)
    model = llama.Model(llama_arguments(arrays, metadata))
    model.load_weights(list(weights.items()))
    return _forward(model, tokens)


def quantised_weights(arrays, metadata):
    """The same GGUF's tensors under mlx_lm's names, codes, scales and biases as they are."""
    heads, kv_heads = _head_counts(metadata)
    weights = {}
    for key, value in arrays.items():
        base, _, kind = key.rpartition(".")
        weights[f"{_mlx_name(base)}.{kind}"] = _rows_in_order(value, base, heads, kv_heads)
    return weights


def llama_arguments(arrays, metadata):
    get = lambda key: metadata[f"llama.{key}"].item()
    heads, kv_heads = _head_counts(metadata)
    return llama.ModelArgs(
        model_type="llama",
        hidden_size=get("embedding_length"),
        num_hidden_layers=get("block_count"),
        intermediate_size=get("feed_forward_length"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"),
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        rope_theta=get("rope.freq_base"),
        tie_word_embeddings="output.weight" not in arrays,
    )


def _head_counts(metadata):
    return metadata["llama.attention.head_count"].item(), metadata["llama.attention.head_count_kv"].item()


def _forward(model, tokens):
    return np.array(model(mx.array([list(tokens)]))[0])


_MODULES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


def _mlx_name(base):
    parts = base.split(".")
    return f"model.layers.{parts[1]}.{_MODULES[parts[2]]}" if parts[0] == "blk" else _MODULES[base]


def _dense(arrays, base):
    weight, scales = arrays[base + ".weight"], arrays.get(base + ".scales")
    if scales is None:
        return weight.astype(mx.float32)
    group = 32
    bits = 32 * weight.shape[-1] // (scales.shape[-1] * group)
    return mx.dequantize(weight, scales.astype(mx.float32), arrays[base + ".biases"].astype(mx.float32), group_size=group, bits=bits)


def _rows_in_order(weight, base, heads, kv_heads):
    """GGUF stores the rows of q and k with the two halves of each head interleaved."""
    n = {"attn_q": heads, "attn_k": kv_heads}.get(base.split(".")[-1])
    if n is None:
        return weight
    return weight.reshape(n, weight.shape[0] // n // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)
