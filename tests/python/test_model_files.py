"""Model files against the `gguf` package, MLX and safetensors: what is loaded, and what is refused and how."""

import json
import shutil
import struct
import subprocess

import gguf
import mlx.core as mx
import numpy as np
import pytest
from tiny_models import config_of, write_model

HIDDEN, HEADS, KV_HEADS, FEED, LAYERS = 64, 4, 2, 96, 2
TYPES = gguf.GGMLQuantizationType
PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


@pytest.fixture(scope="module")
def driver(build_dir):
    """Runs model_driver and gives (exit status, its one line)."""
    binary = build_dir / "bin" / "model_driver"
    if not binary.exists():
        pytest.fail(f"{binary} does not exist: build it, or set TERSOR_BUILD")

    def run(*arguments):
        done = subprocess.run([str(binary), *map(str, arguments)], capture_output=True, text=True, timeout=60)
        assert done.returncode in (0, 2), done.stderr
        return done.returncode, (done.stdout if done.returncode == 0 else done.stderr).strip()

    return run


@pytest.fixture
def facts(driver):
    """The configuration that `load` prints, as a dict of strings."""

    def run(path, mode="load"):
        code, line = driver(mode, path)
        assert code == 0, line
        return dict(item.split("=", 1) for item in line.split()[1:])

    return run


@pytest.fixture
def refusal(driver):
    """The error of `load`: one line that names the file."""

    def run(path):
        code, line = driver("load", path)
        assert code == 2 and line.startswith("err ") and "\n" not in line, line
        return line

    return run


def canonical(name):
    """Hugging Face's name of a GGUF tensor, and the heads whose rows llama.cpp reorders."""
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("blk."):
        return f"{PARTS[stem]}.{kind}", 0
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{PARTS[part]}.{kind}", {"attn_q": HEADS, "attn_k": KV_HEADS}.get(part, 0)


def to_halves(a, heads):
    """Undoes llama.cpp's order of rows."""
    return a.reshape(heads, a.shape[0] // heads // 2, 2, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)


def tensors_of(architecture, rng, tokens, tied=True, biases=False):
    head = HIDDEN // HEADS
    shapes = {"token_embd.weight": (tokens, HIDDEN), "output_norm.weight": (HIDDEN,)}
    if not tied:
        shapes["output.weight"] = (tokens, HIDDEN)
    for i in range(LAYERS):
        rows = {
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (KV_HEADS * head, HIDDEN),
            "attn_v": (KV_HEADS * head, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
        }
        rows |= {
            "ffn_gate": (FEED, HIDDEN),
            "ffn_up": (FEED, HIDDEN),
            "ffn_down": (HIDDEN, FEED),
            "attn_norm": (HIDDEN,),
            "ffn_norm": (HIDDEN,),
        }
        if architecture == "qwen3":
            rows |= {"attn_q_norm": (head,), "attn_k_norm": (head,)}
        shapes |= {f"blk.{i}.{part}.weight": shape for part, shape in rows.items()}
        if biases:
            shapes |= {f"blk.{i}.{part}.bias": rows[part][:1] for part in ("attn_q", "attn_k", "attn_v")}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(path, architecture="llama", types=lambda name: TYPES.F32, drop=(), tokens=48, keys=None, layers=LAYERS, extra=None, **shape):
    """Writes a model and returns what the gguf package says its tensors are worth."""
    writer = gguf.GGUFWriter(path, architecture)
    numbers = {"block_count": layers, "context_length": 128, "embedding_length": HIDDEN, "feed_forward_length": FEED}
    numbers |= {
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "vocab_size": tokens,
        "rope.dimension_count": HIDDEN // HEADS,
    }
    for key, value in numbers.items():
        if key not in drop:
            writer.add_uint32(f"{architecture}.{key}", value)
    for key, value in {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 50000.0}.items():
        if key not in drop:
            writer.add_float32(f"{architecture}.{key}", value)
    for key, value in (keys or {}).items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(key, value)
    writer.add_tokenizer_model("gpt2")
    if "tokenizer.ggml.pre" not in drop:
        writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<|im_end|>", "[note]", "<|endoftext|>", *(chr(ord("!") + i) for i in range(tokens - 4)), "ab"])
    writer.add_token_types([3, 4, 3] + [1] * (tokens - 3))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    reference = {}
    for name, values in {**tensors_of(architecture, np.random.default_rng(5), tokens, **shape), **(extra or {})}.items():
        kind = types(name)
        stored = gguf.quants.quantize(values, kind)
        reference[name] = gguf.quants.dequantize(stored, kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return reference


def loaded_arrays(driver, path, out):
    code, line = driver("save", path, out)
    assert code == 0, line
    return mx.load(str(out))


def as_float32(arrays, name, bits=None):
    stem = name.rsplit(".", 1)[0]
    if name.endswith(".weight") and stem + ".scales" in arrays:
        weight, scales = arrays[name], arrays[stem + ".scales"]
        bits = weight.shape[1] // scales.shape[1]  # groups of 32: bits words a group
        if scales.dtype == mx.uint8:
            return np.array(mx.dequantize(weight, scales, mode={4: "mxfp4", 8: "mxfp8"}[bits], dtype=mx.float32))
        return np.array(mx.dequantize(weight, scales.astype(mx.float32), arrays[stem + ".biases"].astype(mx.float32), 32, bits))
    return np.array(arrays[name].astype(mx.float32))


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "MXFP4"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_every_type_is_worth_what_the_gguf_package_says(driver, tmp_path, architecture, kind):
    path = tmp_path / "m.gguf"
    shape = dict(tied=architecture != "qwen2", biases=architecture == "qwen2")
    matrix = lambda name: TYPES[kind] if name.endswith(".weight") and "norm" not in name else TYPES.F32
    reference = write_gguf(path, architecture, matrix, **shape)
    arrays = loaded_arrays(driver, path, tmp_path / "out.safetensors")
    for name, expected in reference.items():
        target, heads = canonical(name)
        if architecture == "llama" and heads:
            expected = to_halves(expected, heads)
        got = as_float32(arrays, target)
        if kind == "MXFP4":
            assert np.array_equal(got, expected), name
        scale = max(np.abs(expected).max() / (127 if kind == "Q8_0" else 8), 1e-30) if matrix(name) != TYPES.F32 else 0
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-3 * scale, err_msg=name)
    kept = arrays["model.layers.0.self_attn.q_proj.weight"].dtype
    assert kept == {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}.get(kind, mx.uint32)


def test_smollm2_equals_what_mlx_loads(driver, smollm2, tmp_path):
    ours = loaded_arrays(driver, smollm2, tmp_path / "out.safetensors")
    theirs = mx.load(str(smollm2))
    assert len(ours) == len(theirs)
    for name, values in theirs.items():
        target, heads = canonical(name)
        if heads:
            values = to_halves(values, 9 if heads == HEADS else 3)
        got = ours[target]
        assert got.dtype == values.dtype and got.shape == values.shape and mx.array_equal(got, values), name


def test_smollm2_facts(facts, driver, smollm2):
    config = facts(smollm2)
    assert config["family"] == "llama" and config["tied"] == "1" and config["vocab"] == "49152" and config["theta"] == "100000"
    assert int(config["peak"]) < 2 * smollm2.stat().st_size
    tokenizer = facts(smollm2, "tokenizer")
    assert (tokenizer["tokens"], tokenizer["merges"], tokenizer["bos"], tokenizer["eos"], tokenizer["ends"]) == (
        "49152",
        "48900",
        "1",
        "2",
        "0,2",
    )
    code, text = driver("inspect", smollm2)
    assert code == 0 and "tensor types: F32 x 61, Q4_1 x 210, Q8_0 x 1" in text and "runs: yes" in text and "chat format: chatml" in text


@pytest.mark.parametrize(
    "key", ["vocab_size", "rope.freq_base", "attention.head_count_kv", "tokenizer.ggml.pre", "rope.dimension_count", "context_length"]
)
def test_missing_optional_keys_take_defaults(facts, refusal, tmp_path, key):
    path = tmp_path / "m.gguf"
    write_gguf(path, drop=[key])
    if key == "attention.head_count_kv":  # 4 instead of 2: the shapes tell
        assert "blk.0.attn_k.weight has shape [32, 64], but the configuration needs [64, 64]" in refusal(path)
        return
    config = facts(path)
    assert config["vocab"] == "48" and config["rotary"] == "16"
    assert config["theta"] == ("10000" if key == "rope.freq_base" else "50000")
    assert config["context"] == ("2048" if key == "context_length" else "128")


def test_mixed_types_and_an_unsupported_one(facts, refusal, tmp_path):
    path = tmp_path / "m.gguf"
    kinds = {
        "blk.0.attn_q.weight": TYPES.F16,
        "blk.0.attn_k.weight": TYPES.BF16,
        "blk.1.ffn_up.weight": TYPES.Q8_0,
        "blk.1.ffn_down.weight": TYPES.Q4_0,
    }
    write_gguf(path, types=lambda name: kinds.get(name, TYPES.F32))
    assert facts(path)["linears"] == "15"
    write_gguf(path, types=lambda name: TYPES.Q5_0 if name == "output.weight" else TYPES.F32, tied=False)
    assert "tensor output.weight is Q5_0, which is not supported yet; supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1, MXFP4" in refusal(path)


def test_split_files_and_other_architectures_are_refused_by_name(driver, refusal, tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, keys={"split.count": 2})
    assert "split into 2 files" in refusal(path)
    write_gguf(path, architecture="gemma3")
    assert '"gemma3" is not supported' in refusal(path)
    code, text = driver("inspect", path)
    assert code == 0 and "architecture: gemma3" in text and "runs: no: " in text


def test_gguf_tensors_without_a_use(driver, refusal, tmp_path):
    path = tmp_path / "m.gguf"
    zeros = lambda *shape: np.zeros(shape, np.float32)
    write_gguf(path, layers=1)
    assert "blk.1.attn_q.weight belongs to layer 1, but llama.block_count is 1" in refusal(path)
    for name in ["blk.0.attn_norm.bias", "blk.0.attn_sub_norm.weight", "blk.0.ffn_gate_shexp.weight", "token_types.weight"]:
        write_gguf(path, extra={name: zeros(HIDDEN)})
        assert f"{name} is not part of the llama architecture" in refusal(path)
    write_gguf(path, extra={"blk.0.attn_rot_embd.weight": zeros(8), "rope_freqs.weight": 1 + zeros(HIDDEN // HEADS // 2)})
    code, text = driver("inspect", path)
    assert code == 0 and "not used: 1 tensor that changes nothing: blk.0.attn_rot_embd.weight\n" in text


# Folders

CONFIG = dict(
    model_type="llama",
    hidden_size=HIDDEN,
    num_hidden_layers=LAYERS,
    intermediate_size=FEED,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    vocab_size=48,
    rms_norm_eps=1e-5,
    rope_theta=20000.0,
    max_position_embeddings=256,
    tie_word_embeddings=True,
    eos_token_id=2,
)


def folder_arrays(architecture="llama", **shape):
    return {
        canonical(name)[0]: mx.array(values) for name, values in tensors_of(architecture, np.random.default_rng(6), 48, **shape).items()
    }


def write_folder(folder, arrays=None, config=None, generation=None):
    folder.mkdir(exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), folder_arrays() if arrays is None else arrays)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    tokens = ["<|im_end|>", "[note]", "<|stop|>", *(chr(ord("!") + i) for i in range(44)), "ab"]
    added = [
        dict(id=i, content=tokens[i], special=i != 1, single_word=False, lstrip=False, rstrip=False, normalized=False) for i in range(3)
    ]
    byte_level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    model = dict(
        type="BPE", dropout=None, unk_token=None, fuse_unk=False, byte_fallback=False, ignore_merges=False, vocab=vocabulary, merges=["a b"]
    )
    tokenizer = dict(
        version="1.0", added_tokens=added, normalizer=None, pre_tokenizer=byte_level, post_processor=None, decoder=byte_level, model=model
    )
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(eos_token="<|im_end|>")))
    if generation:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_folder_arrays_are_kept_as_they_are(driver, tmp_path, dtype):
    arrays = {name: a.astype(dtype) for name, a in folder_arrays().items()}
    folder = write_folder(tmp_path / "m", arrays | {"model.layers.0.self_attn.rotary_emb.inv_freq": mx.zeros(8)})
    loaded = loaded_arrays(driver, folder, tmp_path / "out.safetensors")
    assert loaded.keys() == arrays.keys()
    assert all(loaded[name].dtype == dtype and mx.array_equal(loaded[name], a) for name, a in arrays.items())


def test_names_without_prefix_and_several_files(driver, facts, tmp_path):
    folder = write_folder(tmp_path / "m")
    identity = facts(folder)["weights"]
    arrays = {name.removeprefix("model."): a for name, a in folder_arrays().items()}
    (folder / "model.safetensors").unlink()
    names = sorted(arrays)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in files.items():
        mx.save_safetensors(str(folder / file), {name: arrays[name] for name in part})
    index = {name: file for file, part in files.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps(dict(weight_map=index)))
    assert facts(folder)["weights"] == identity
    for wrong, text in [
        ("../a.safetensors", "plain name"),
        ("/etc/passwd", "plain name"),
        ("c.safetensors", "cannot be opened"),
        (3, "name of a file"),
    ]:
        (folder / "model.safetensors.index.json").write_text(json.dumps(dict(weight_map={**index, names[0]: wrong})))
        code, line = driver("load", folder)
        assert code == 2 and text in line
    (folder / "model.safetensors.index.json").write_text(json.dumps(dict(weight_map={**index, "extra": "a.safetensors"})))
    assert '"extra" is listed' in driver("load", folder)[1]


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group", [32, 64])
def test_affine_folders(driver, tmp_path, bits, group):
    arrays, expected = {}, {}
    special = {"model.layers.1.mlp.up_proj": dict(bits=8, group_size=32), "model.layers.0.mlp.up_proj": False}
    for name, values in folder_arrays().items():
        stem = name.removesuffix(".weight")
        scheme = special.get(stem, dict(bits=bits, group_size=group))
        if values.ndim == 1 or not scheme or values.shape[1] % scheme["group_size"]:
            arrays[name] = values
            continue
        w, scales, biases = mx.quantize(values, **scheme)
        arrays |= {name: w, stem + ".scales": scales, stem + ".biases": biases}
    folder = write_folder(tmp_path / "m", arrays, dict(quantization=dict(bits=bits, group_size=group, mode="affine", **special)))
    loaded = loaded_arrays(driver, folder, tmp_path / "out.safetensors")
    assert loaded.keys() == arrays.keys()
    assert all(mx.array_equal(loaded[name], a) for name, a in arrays.items())


@pytest.mark.parametrize("mode, bits", [("mxfp4", 4), ("mxfp8", 8)])
def test_microscaling_folders(driver, tmp_path, mode, bits):
    schemes = {
        "model.layers.1.mlp.up_proj": dict(bits=8, group_size=32),  # names no mode: affine
        "model.layers.0.mlp.down_proj": dict(bits=12 - bits, group_size=32, mode={"mxfp4": "mxfp8", "mxfp8": "mxfp4"}[mode]),
        "model.layers.0.mlp.up_proj": False,
    }
    arrays = {}
    for name, values in folder_arrays().items():
        stem = name.removesuffix(".weight")
        scheme = schemes.get(stem, dict(mode=mode))
        if values.ndim == 1 or not scheme:
            arrays[name] = values
            continue
        w, scales, *biases = mx.quantize(values, **scheme)
        arrays |= {name: w, stem + ".scales": scales} | ({stem + ".biases": biases[0]} if biases else {})
    quantization = dict(bits=bits, group_size=32, mode=mode, **schemes)
    folder = write_folder(tmp_path / "m", arrays, dict(quantization=quantization))
    loaded = loaded_arrays(driver, folder, tmp_path / "out.safetensors")
    assert loaded.keys() == arrays.keys()
    assert all(mx.array_equal(loaded[name], a) for name, a in arrays.items())
    assert f"quantisation: {mode}, {bits} bits, groups of 32" in driver("inspect", folder)[1]


def test_microscaling_folders_that_are_refused(refusal, tmp_path):
    arrays = folder_arrays()
    stem = "model.layers.0.mlp.up_proj"
    w, scales = mx.quantize(arrays[stem + ".weight"], mode="mxfp4")
    arrays |= {stem + ".weight": w, stem + ".scales": scales}
    scheme = dict(bits=4, group_size=32, mode="mxfp4")
    for change, text in [
        (dict(mode="nvfp4"), '"nvfp4" is not supported; supported: affine, mxfp4, mxfp8'),
        (dict(group_size=64), '"quantization.group_size" is 64; 32, as mode mxfp4 has, is needed'),
        (dict(bits=8), '"quantization.bits" is 8; 4, as mode mxfp4 has, is needed'),
        (dict(mode="mxfp8", bits=8), "[96, 8]"),
        (dict(mode="affine"), "is U8"),
        (dict(mode=4), '"quantization.mode" is 4'),
        ({stem: dict(bits=8, group_size=64, mode="mxfp8")}, f'"quantization.{stem}.group_size" is 64'),
        ({stem: dict(bits=4, group_size=32)}, "is U8"),
        ({stem: dict(mode="affine")}, "is missing"),
    ]:
        assert text in refusal(write_folder(tmp_path / "m", arrays, dict(quantization={**scheme, **change})))
    wrong = arrays | {stem + ".scales": scales.astype(mx.float16)}
    assert "whose scales are U8" in refusal(write_folder(tmp_path / "m", wrong, dict(quantization=scheme)))
    wrong = arrays | {stem + ".scales": scales[:, :1]}
    assert "[96, 1], but the configuration needs [96, 2]" in refusal(write_folder(tmp_path / "m", wrong, dict(quantization=scheme)))


def test_a_gguf_scale_that_is_no_number_is_refused(refusal, tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, types=lambda name: TYPES.MXFP4 if name == "blk.0.ffn_up.weight" else TYPES.F32)
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.ffn_up.weight")
    whole = bytearray(path.read_bytes())
    whole[tensor.data_offset + 17 * 5] = 255
    path.write_bytes(whole)
    assert "blk.0.ffn_up.weight holds a block scale that is infinite, not a number" in refusal(path)


def test_configuration_keys(facts, tmp_path):
    folder = tmp_path / "m"
    llama3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
    for change, expected in [
        (dict(), dict(theta="20000", context="256", eps="1e-05", head_dim="16", window="0")),
        (dict(rope_scaling=dict(type="linear", factor=2.0)), dict(linear="2")),
        (dict(rope_scaling=dict(rope_type="llama3", **llama3)), dict(llama3="8")),
        (dict(rope_theta=None, rope_parameters=dict(rope_type="llama3", rope_theta=7000.0, **llama3)), dict(theta="7000", llama3="8")),
        (dict(rope_scaling=dict(type="default")), dict(linear="1", llama3="0")),
        (dict(rope_scaling=None, num_key_value_heads=2, head_dim=None), dict(head_dim="16")),
        (dict(model_type="mistral", sliding_window=64), dict(window="64", family="mistral")),
        (dict(model_type="mistral", sliding_window=None), dict(window="0")),
        (dict(partial_rotary_factor=0.5), dict(rotary="8")),
        (dict(hidden_act="swish"), dict(act="silu")),
        (dict(hidden_act="gelu"), dict(act="gelu")),
        (dict(hidden_act="gelu_new"), dict(act="gelu_tanh")),
        (dict(hidden_act="silu", hidden_activation="gelu_pytorch_tanh"), dict(act="gelu_tanh")),
    ]:
        config = facts(write_folder(folder, config=change))
        assert {key: config[key] for key in expected} == expected
    arrays = folder_arrays("qwen2", biases=True)
    for change, window in [
        (dict(use_sliding_window=False), "0"),
        (dict(use_sliding_window=True, max_window_layers=0), "32"),
        (dict(use_sliding_window=True, max_window_layers=2), "0"),
    ]:
        config = facts(write_folder(folder, arrays, dict(model_type="qwen2", sliding_window=32, **change)))
        assert config["window"] == window and config["qkv_bias"] == "1" and config["o_bias"] == "0"
    config = facts(
        write_folder(folder, folder_arrays("qwen3", tied=False), dict(model_type="qwen3", head_dim=16, tie_word_embeddings=False))
    )
    assert config["qk_norm"] == "1" and config["tied"] == "0"


@pytest.mark.parametrize(
    "change, text",
    [
        (dict(model_type="gemma3"), '"gemma3" is not supported'),
        (dict(model_type=None), '"model_type" is missing'),
        (dict(hidden_size=None), '"hidden_size" is missing'),
        (dict(hidden_size="64"), '"hidden_size" is ?64?'.replace("?", '"')),
        (dict(hidden_size=-64), '"hidden_size" is -64'),
        (dict(hidden_size=0), '"hidden_size" is 0'),
        (dict(vocab_size=2**31), '"vocab_size" is 2147483648'),
        (dict(vocab_size=1e30), '"vocab_size" is 1e+30'),
        (dict(num_hidden_layers=2**31 - 1), "layers"),
        (dict(num_attention_heads=3), "not a multiple"),
        (dict(num_key_value_heads=3), "not a multiple"),
        (dict(head_dim=15), "head size of 15"),
        (dict(rms_norm_eps="x"), '"rms_norm_eps"'),
        (dict(rms_norm_eps=1e40), '"rms_norm_eps"'),
        (dict(rope_theta=0), "rope base"),
        (dict(hidden_act="relu2"), 'hidden_act "relu2" is not supported; supported: silu, gelu'),
        (dict(hidden_activation="quick_gelu"), 'hidden_activation "quick_gelu" is not supported'),
        (dict(hidden_act=1), '"hidden_act" is 1'),
        (dict(rope_scaling=dict(type="yarn", factor=4.0)), '"yarn"'),
        (dict(rope_scaling=dict(type="linear")), '"rope_scaling.factor" is missing'),
        (dict(rope_scaling=[]), '"rope_scaling" is []'),
        (dict(quantization=dict(bits=4, group_size=16, mode="nvfp4")), '"nvfp4"'),
        (dict(quantization=dict(bits=7, group_size=32)), '"quantization.bits" is 7'),
        (dict(quantization=dict(bits=4, group_size=48)), '"quantization.group_size" is 48'),
        (dict(quantization_config=dict(quant_method="gptq", bits=4, group_size=128)), '"gptq"'),
        (dict(architectures=["LlamaForSequenceClassification"]), "LlamaForSequenceClassification"),
        (dict(hidden_act=None), '"hidden_act" is null'),
        (dict(quantization=dict(bits=4, group_size=32), quantization_config=dict(bits=8, group_size=32)), "disagree"),
        (dict(quantization=dict(bits=4, group_size=32), quantization_config=dict(quant_method="gptq", bits=4)), "disagree"),
        (dict(tie_word_embeddings=False), "lm_head.weight [48, 64] is missing"),
        (dict(attention_bias=True), "q_proj.bias [64] is missing"),
        (dict(intermediate_size=32), "has shape [96, 64], but the configuration needs [32, 64]"),
        (dict(eos_token_id=48), '"eos_token_id" is 48'),
        (dict(model_type="qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1), "mixes full and sliding"),
    ],
)
def test_configurations_that_are_refused(refusal, tmp_path, change, text):
    assert text in refusal(write_folder(tmp_path / "m", config=change))


def test_end_tokens_come_from_all_files(facts, tmp_path):
    folder = write_folder(tmp_path / "m", config=dict(eos_token_id=[2]), generation=dict(eos_token_id=[5, 2]))
    assert facts(folder, "tokenizer")["ends"] == "0,2,5"
    (folder / "chat_template.jinja").write_text("{{ '<|im_start|>' }}")
    assert facts(folder, "tokenizer")["template"] == "20"


def test_quantised_tensors_must_agree_with_the_configuration(refusal, tmp_path):
    arrays = folder_arrays()
    stem = "model.layers.0.mlp.up_proj"
    w, scales, biases = mx.quantize(arrays[stem + ".weight"], bits=4, group_size=32)
    arrays |= {stem + ".weight": w, stem + ".scales": scales, stem + ".biases": biases}
    scheme = dict(bits=4, group_size=32)
    assert "is not quantised, but the folder holds" in refusal(write_folder(tmp_path / "a", arrays))
    assert "[96, 16]" in refusal(write_folder(tmp_path / "a", arrays, dict(quantization=dict(scheme, bits=8))))
    assert "is not quantised" in refusal(write_folder(tmp_path / "a", arrays, dict(quantization={**scheme, stem: False})))
    without = {name: a for name, a in arrays.items() if name != stem + ".scales"}
    assert "is U32" in refusal(write_folder(tmp_path / "a", without, dict(quantization=scheme)))
    assert "must agree" in refusal(
        write_folder(tmp_path / "a", arrays | {stem + ".biases": biases.astype(mx.float16)}, dict(quantization=scheme))
    )
    assert "is I32" in refusal(write_folder(tmp_path / "a", arrays | {stem + ".weight": w.astype(mx.int32)}, dict(quantization=scheme)))
    assert "q_proj.bias is not part" in refusal(
        write_folder(tmp_path / "a", folder_arrays() | {"model.layers.0.self_attn.q_proj.bias": mx.zeros(HIDDEN)})
    )


def test_folder_tensors_without_a_use(driver, refusal, tmp_path):
    arrays, zeros = folder_arrays(), mx.zeros
    embedding = arrays["model.embed_tokens.weight"]
    assert "belongs to layer 1, but num_hidden_layers in config.json is 1" in refusal(
        write_folder(tmp_path / "a", arrays, dict(num_hidden_layers=1))
    )
    for name in ["model.layers.0.mlp.shared_expert.weight", "vision_tower.weight", "model.layers.0.mlp.up_proj.biases", "lm_head.bias"]:
        assert f"tensor {name} is " in refusal(write_folder(tmp_path / "a", arrays | {name: zeros(HIDDEN)}))
    line = refusal(write_folder(tmp_path / "a", arrays | {"lm_head.weight": embedding + 1}))
    assert "lm_head.weight is not what the embedding holds" in line and "set tie_word_embeddings to false" in line
    assert "lm_head.weight is not what" in refusal(write_folder(tmp_path / "a", arrays | {"lm_head.weight": embedding.astype(mx.float16)}))
    leftovers = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": zeros(8) for i in range(LAYERS)}
    leftovers |= {"lm_head.weight": embedding, "model.layers.0.attn.masked_bias": zeros(1)}
    folder = write_folder(tmp_path / "b", arrays | leftovers)
    words = "not used: 4 tensors that change nothing: lm_head.weight, model.layers.0.attn.masked_bias, "
    assert words in driver("inspect", folder)[1] and driver("load", folder)[0] == 0
    assert "not used" not in driver("inspect", write_folder(tmp_path / "c"))[1]


def test_tensors_without_a_use_are_noted(tersor, tmp_path):
    folder = write_model(tmp_path / "m", config_of("llama", True))
    command = ["logits", "--model", folder, "--tokens", "1,2", "--out", tmp_path / "l.npy"]
    assert "not used" not in tersor(*command).stderr
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    mx.save_safetensors(str(folder / "model.safetensors"), mx.load(str(folder / "model.safetensors")) | {name: mx.zeros(16)})
    assert f"{folder}: not used: 1 tensor that changes nothing: {name}\n" in tersor(*command).stderr
    text = " ".join(tersor("inspect", folder).stdout.split())
    assert f"not used 1 tensor that changes nothing: {name} family llama" in text and "runs yes" in text


def header_of(change):
    """A safetensors file whose header `change` has edited, as bytes."""
    header = {"a": dict(dtype="F32", shape=[2, 2], data_offsets=[0, 16]), "b": dict(dtype="F16", shape=[4], data_offsets=[16, 24])}
    text = change(header)
    text = (json.dumps(header) if text is None else text).encode()
    return struct.pack("<Q", len(text)) + text + bytes(24)


def test_damaged_safetensors_are_refused(driver, tmp_path):
    edits = [
        (lambda h: h["a"].update(data_offsets=[0, 2**63]), "lies at bytes"),
        (lambda h: h["a"].update(data_offsets=[16, 0]), "lies at bytes"),
        (lambda h: h["a"].update(data_offsets=[8, 24]), "overlap"),
        (lambda h: h["a"].update(shape=[2, 3]), "needs 24 bytes, but has 16"),
        (lambda h: h["a"].update(shape=[2**31, 2]), "impossible shape"),
        (lambda h: h["a"].update(shape=[-2, 2]), "negative number"),
        (lambda h: h["a"].update(shape=[2.5]), "not whole"),
        (lambda h: h["a"].update(shape=[[2]]), "a list"),
        (lambda h: h["a"].update(shape=[1] * 40), "too long"),
        (lambda h: h["a"].update(extra=1), 'unknown key "extra"'),
        (lambda h: h["a"].pop("dtype") and None, "lacks"),
        (lambda h: h.update(c=None), "null"),
        (lambda h: h.update({"": h["a"]}), "empty name"),
        (
            lambda h: (
                '{"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}, "a": {"dtype": "F32", "shape": [], "data_offsets": [4, 8]}}'
            ),
            "occurs twice",
        ),
        (lambda h: '{"a": ', "not valid JSON"),
        (lambda h: '{"x":{"shape":' + "[" * 5000, "a list"),
    ]
    path = tmp_path / "x.safetensors"
    path.write_bytes(header_of(lambda h: None))
    assert driver("inspect", path)[0] == 0
    for change, text in edits:
        path.write_bytes(header_of(change))
        code, line = driver("inspect", path)
        assert code == 2 and text in line and str(path) in line and "\n" not in line
    path.write_bytes(struct.pack("<Q", 2**40) + b"{" + bytes(50))
    assert "the header should have" in driver("inspect", path)[1]
    path.write_bytes(b"<html>not found</html>")
    assert "HTML page" in driver("inspect", path)[1]


def test_cut_folders_are_refused(driver, tmp_path):
    folder = write_folder(tmp_path / "m")
    for name in ["model.safetensors", "config.json", "tokenizer.json"]:
        whole = (folder / name).read_bytes()
        for size in [0, 1, 8, 9, 200, len(whole) // 2, len(whole) - 1]:
            (folder / name).write_bytes(whole[:size])
            code, line = driver("load", folder)
            assert code == 2 and name in line and "\n" not in line, (name, size, line)
        (folder / name).unlink()
        code, line = driver("load", folder)
        assert code == 2 and name in line
        (folder / name).write_bytes(whole)
    assert driver("load", folder)[0] == 0


def test_places_that_are_no_model(refusal, tmp_path):
    assert "there is no such file or folder" in refusal(tmp_path / "nothing")
    assert "config.json" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert "not an object" in refusal(tmp_path)
    folder = write_folder(tmp_path / "m")
    assert "give the folder" in refusal(folder / "model.safetensors")
    assert "give the folder" in refusal(folder / "config.json")
    shutil.move(folder / "tokenizer.json", folder / "tokenizer.model")
    assert "SentencePiece" in refusal(folder)
