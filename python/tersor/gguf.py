"""A GGUF file as a model folder that mlx_lm loads: codes, scales and tokenizer rules are kept as they are."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Optional, Union

import mlx.core as mx

from ._native import Error, core

_FLOATS = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def _rope_scaling(config: dict):
    if "llama3_scaling" in config:
        return {"rope_type": "llama3", **config["llama3_scaling"]}
    if config["linear_rope_factor"] != 1:
        return {"rope_type": "linear", "factor": config["linear_rope_factor"]}
    return None


def _config(config: dict, quantised: dict, tokenizer: dict) -> dict:
    family = config["family"]
    result = {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": "llama" if family == "mistral" else family,
        "hidden_size": config["hidden"],
        "num_hidden_layers": config["layers"],
        "intermediate_size": config["intermediate"],
        "num_attention_heads": config["heads"],
        "num_key_value_heads": config["kv_heads"],
        "head_dim": config["head_dim"],
        "rms_norm_eps": config["norm_eps"],
        "rope_theta": config["rope_theta"],
        "vocab_size": config["vocab"],
        "max_position_embeddings": config["context"],
        "tie_word_embeddings": config["tied_head"],
        "hidden_act": _ACTIVATIONS[config["activation"]],
        "attention_bias": config["qkv_bias"] if family == "llama" else config["o_bias"],
        "mlp_bias": config["mlp_bias"],
        "bos_token_id": tokenizer["bos"],
        "eos_token_id": tokenizer["end_tokens"] or tokenizer["eos"],
    }
    if config["rotary_dims"] != config["head_dim"]:
        raise Error(f"only {config['rotary_dims']} of {config['head_dim']} dimensions turn, which mlx_lm's {family} cannot do")
    if config["sliding_window"]:
        result["sliding_window"] = config["sliding_window"]
        result["layer_types"] = ["sliding_attention"] * config["layers"]
    if scaling := _rope_scaling(config):
        result["rope_scaling"] = scaling
    if quantised:
        most = max(quantised.values(), key=lambda how: sum(h == how for h in quantised.values()))
        result["quantization"] = dict(most)
        for name, how in quantised.items():
            if how != most:
                result["quantization"][name] = how
    return result


def _pre_tokenizer(steps):
    from tokenizers import Regex, pre_tokenizers

    made = []
    for step in steps:
        if step["kind"] == "digits":
            made.append(pre_tokenizers.Digits(individual_digits=step["individual"]))
        elif step["kind"] == "byte_level":
            made.append(pre_tokenizers.ByteLevel(add_prefix_space=step["add_prefix_space"], use_regex=step["use_regex"]))
        else:
            pattern = Regex(step["pattern"]) if step["kind"] == "split_regex" else step["pattern"]
            made.append(pre_tokenizers.Split(pattern, step["behaviour"], step["invert"]))
    return made[0] if len(made) == 1 else pre_tokenizers.Sequence(made)


def _tokenizer_json(data: dict) -> str:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    vocabulary = {}
    for i, token in enumerate(data["tokens"]):
        vocabulary[token if token and token not in vocabulary else f"<unused{i}>"] = i
    unk = None if data["unk"] is None else data["tokens"][data["unk"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, data["merges"], unk_token=unk, ignore_merges=data["ignore_merges"]))
    if data["nfc"]:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(data["pretokenizer"])
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(content, special=True, normalized=False) for _, content, is_special in data["added"] if is_special]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken(content, normalized=False) for _, content, is_special in data["added"] if not is_special])
    for i, content, _ in data["added"]:
        if tokenizer.token_to_id(content) != i:
            raise Error(f"token {content!r} would get another id than {i}; the file's vocabulary has it twice")
    if data["add_bos"] and data["bos"] is not None:
        bos = data["tokens"][data["bos"]]
        tokenizer.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B:1", special_tokens=[(bos, data["bos"])]),
            ]
        )
    return tokenizer.to_str()


def _tokenizer_config(data: dict, context: int) -> dict:
    def token(i):
        return None if i is None else data["tokens"][i]

    result = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "bos_token": token(data["bos"]),
        "eos_token": token(data["eos"]),
        "unk_token": token(data["unk"]),
    }
    if data["chat_template"]:
        result["chat_template"] = data["chat_template"]
    return {key: value for key, value in result.items() if value is not None}


def _write(folder: Path, source: Path, dtype) -> None:
    config, arrays, quantised, tokenizer = core.load_model(str(source))
    if config["family"] not in _ARCHITECTURES:
        raise Error(f"{source}: models of family {config['family']} cannot be converted; {', '.join(_ARCHITECTURES)} can")
    files = {
        "config.json": json.dumps(_config(config, quantised, tokenizer), indent=2),
        "tokenizer.json": _tokenizer_json(tokenizer),
        "tokenizer_config.json": json.dumps(_tokenizer_config(tokenizer, config["context"]), indent=2, ensure_ascii=False),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    arrays = {name: a.astype(dtype) if a.dtype in _FLOATS.values() else a for name, a in arrays.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), arrays, {"format": "mlx"})


def convert(source: Union[str, Path], folder: Union[str, Path], dtype: Optional[str] = None) -> Path:
    """Writes a folder that ``mlx_lm.load`` takes from a GGUF file (Llama, Mistral, Qwen2 and Qwen3 shapes; types that Tersor reads).

    Quantised weights keep their codes (MLX's affine of group 32, or mxfp4). dtype: of scales and all other numbers, and so of the
    model's activations: "float16", "bfloat16" or "float32"; unless given float32 where MLX runs on a CPU, whose 16-bit products are 10
    times as slow, else float16. Raises :class:`tersor.Error` when the file cannot be read or the folder exists. The folder appears as a
    whole or not at all.
    """
    if dtype is None:
        dtype = "float32" if mx.default_device() == mx.cpu else "float16"
    if dtype not in _FLOATS:
        raise Error(f"dtype is {dtype!r}; use {', '.join(_FLOATS)}")
    source, folder = Path(source), Path(folder)
    if folder.exists():
        raise Error(f"{folder} exists already; name a folder that does not, or remove it")
    if not folder.parent.is_dir():
        raise Error(f"{folder.parent} is not a folder, so that {folder.name} cannot be made in it")
    try:
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise Error(f"{folder.parent}: cannot be written ({error.strerror}); name a folder elsewhere") from error
    try:
        _write(scratch, source, _FLOATS[dtype])
        os.chmod(scratch, 0o755)
        os.replace(scratch, folder)
    except OSError as error:
        shutil.rmtree(scratch, ignore_errors=True)
        raise Error(f"{folder}: cannot be written ({error.strerror})") from error
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return folder
