"""The `tersor` command as users meet it: fields of the JSON, text and JSON alike, determinism, and one line for every bad input."""

import json
import os
import pathlib
import signal
import subprocess
import time

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO_TEXT = ROOT / "docs" / "demo" / "lighthouse.txt"
PROMPT = "What is the capital of France?"
GROUPS = ["bench", "codec"]
COMMANDS = ["generate", "chat", "eval", "bench decode", "bench model", "bench attention", "bench linear", "codec list", "codec roundtrip"]
COMMANDS += ["calibrate", "bench encode", "bench pack", "logits", "tokenize", "detokenize", "inspect"]


@pytest.fixture(scope="module")
def json_of(tersor):
    return lambda *arguments, **options: json.loads(tersor(*arguments, "--json", **options).stdout)


@pytest.fixture(scope="module")
def refused(tersor):
    """Runs a command that must fail with one line on standard error and nothing on standard output."""

    def run(*arguments, **options):
        done = tersor(*arguments, code=2, **options)
        lines = done.stderr.splitlines()
        assert len(lines) == 1 and lines[0].startswith("tersor: "), done.stderr
        assert done.stdout == ""
        return lines[0]

    return run


@pytest.fixture(scope="module")
def binary(build_dir):
    return str(build_dir / "bin" / "tersor")


def fields(value, names):
    missing = [name for name in names.split() if name not in value]
    assert not missing, f"missing: {missing}"


# Usage


@pytest.mark.parametrize("command", COMMANDS + GROUPS)
def test_help(tersor, command):
    text = tersor(*command.split(), "--help").stdout
    assert "Usage: tersor " + command in text
    if command in COMMANDS:
        assert "--json" in text and "Example: " in text and "tersor " + command in text.split("Example: ")[1]


def test_version(tersor):
    line = tersor("--version").stdout
    assert line.startswith("tersor ") and "MLX 0." in line and "backend cpu" in line and line.count("\n") == 1


def test_no_command_lists_the_commands(tersor):
    done = tersor(code=2)
    assert len(done.stderr.splitlines()) == 1
    assert all(command.split()[0] in done.stdout for command in COMMANDS)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["genrate"], ["unknown command", "did you mean generate?"]),
        (["generate", "--modle", "x"], ["--modle", "did you mean --model?"]),
        (["generate", "--prompt", "x"], ["--model is required"]),
        (["generate", "--model", "nowhere.gguf", "--prompt", "x"], ["nowhere.gguf", "no such file"]),
        (["bench"], ["bench", "decode", "attention"]),
        (["bench", "decod"], ["did you mean decode?"]),
        (["bench", "model"], ["--shape is required"]),
        (["bench", "model", "--shape", "llama-9"], ["llama-9", "smollm2-135m", "llama-3.1-8b", "qwen3-8b"]),
        (["bench", "model", "--shape", "smollm2-135m", "--weights", "int4"], ["int4", "affine:BITS"]),
        (["bench", "model", "--shape", "smollm2-135m", "--weights", "affine:7"], ["affine:7"]),
        (["bench", "model", "--shape", "smollm2-135m", "--weights", "affine:4,group=128"], ["do not divide rows of 576"]),
        (["bench", "model", "--shape", "smollm2-135m", "--kv", "turboqant:4"], ["turboqant"]),
        (["bench", "model", "--shape", "smollm2-135m", "--fill", "zeros"], ["zeros", "random or prefill"]),
        (["bench", "model", "--shape", "smollm2-135m", "--depth", "-1"], ["--depth", "whole number from 0"]),
        (["bench", "model", "--shape", "smollm2-135m", "--depth", "9999999"], ["smollm2-135m", "caches of", "nine tenths"]),
        (["bench", "model", "--shape", "smollm2-135m", "--prefill", "0"], ["--prefill", "whole number from 1"]),
        (["bench", "model", "--shape", "llama-3.2-1b", "--weights", "mxfp6"], ["mxfp6", "mxfp4", "mxfp8", "f32"]),
        (["bench", "linear", "--weights", "int4"], ["int4", "affine:BITS", "mxfp4"]),
        (["bench", "linear", "--shape", "64x48", "--weights", "mxfp8"], ["do not divide rows of 48"]),
        (["bench", "linear", "--shape", "llama-9"], ["llama-9", "unknown", "4096x4096"]),
        (["bench", "linear", "--shape", "0x64"], ["0x64", "above 0"]),
        (["bench", "linear", "--shape", "123456789x64"], ["123456789x64", "too large", "2^30"]),
        (["bench", "linear", "--shape", "64x99999999999999999999"], ["too large"]),
        (["codec", "list", "extra"], ["unexpected argument", "extra"]),
        (["codec", "roundtrip", "--kv", "turboqant:4", "--in", "x", "--out", "y.npy"], ["turboqant"]),
        (["codec", "roundtrip", "--kv", "full", "--in", "nowhere.npy", "--out", "y.npy"], ["nowhere.npy"]),
        (["codec", "roundtrip", "--kv", "full", "--in", "x", "--out", "/nowhere/y.npy"], ["/nowhere/y.npy", "does not exist"]),
        (["codec", "roundtrip", "--kv", "full", "--role", "both", "--in", "x", "--out", "y"], ["both", "keys or values"]),
        (["bench", "attention", "--heads", "9", "--kv-heads", "2"], ["--heads 9", "multiple"]),
        (["bench", "attention", "--depth", "0"], ["--depth", "whole number from 1"]),
        (["bench", "attention", "--depth", "16,"], ["--depth", "whole number from 1"]),
        (["bench", "attention", "--skip-layers", "0"], ["--skip-layers"]),
        (["bench", "encode", "--kv", "turboquant:4", "--shape", "1,2,3"], ["--shape", "BATCH,HEADS,TOKENS,DIM"]),
        (["bench", "encode", "--kv", "turboquant:4", "--shape", "1000,1000,1000,128"], ["--shape", "quarter of the memory"]),
        (["bench", "encode", "--kv", "qjl:64", "--role", "values"], ["qjl"]),
        (["bench", "encode", "--kv", "turboquant:4,centre=4"], ["centre="]),
        (["bench", "encode", "--kv", "affine:4,axis=channel", "--role", "values"], ["axis=channel is for keys", "affine:4"]),
        (["bench", "encode", "--kv", "affine:4,axis=channel", "--shape", "1,1,100,64"], ["--shape", "64 tokens"]),
        (["bench", "pack", "--bits", "9"], ["--bits", "from 1 to 8"]),
        (["bench", "pack", "--count", "0"], ["--count", "from 1"]),
        (["codec", "roundtrip", "--kv", "full", "--in", "x", "--out", ""], ["--out", "not empty"]),
        (["codec", "roundtrip", "--kv", "full", "--in", "x", "--out", "y.txt"], ["y.txt", ".npy"]),
        (["tokenize", "--model", "/dev/null"], ["/dev/null"]),
        (["inspect", "nowhere.gguf"], ["nowhere.gguf"]),
        (["inspect", "--model", "nowhere.gguf"], ["nowhere.gguf"]),
    ],
)
def test_bad_usage(refused, arguments, words):
    line = refused(*arguments)
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--max-tokens", "0"], ["--max-tokens", "from 1"]),
        (["--max-tokens", "many"], ["--max-tokens", "many"]),
        (["--max-tokens", "99999999999999999999"], ["--max-tokens"]),
        (["--temp", "-1"], ["--temp", "from 0"]),
        (["--temp", "nan"], ["--temp"]),
        (["--top-p", "1.5"], ["--top-p"]),
        (["--seed", "-1"], ["--seed"]),
        (["--stop", ""], ["--stop"]),
        (["--kv", "turboquant:9"], ["turboquant:9"]),
        (["--kv", "zip:4"], ["zip", "turboquant"]),
        (["--kv", "full", "--kv", "affine:8"], ["--kv"]),
        (["--kv-keys", "affine:8"], ["--kv-values"]),
        (["--kernels", "perhaps"], ["perhaps", "auto"]),
        (["--dtype", "f8"], ["f8"]),
        (["--skip-layers", "one"], ["--skip-layers"]),
        (["--skip-layers", "99"], ["99"]),
        (["--prompt-cache-out", "/nowhere/c.safetensors"], ["/nowhere"]),
        (["--prompt-cache-in", "/nowhere/c.safetensors"], ["/nowhere"]),
        (["--raw", "--system", "Be kind."], ["--system", "--raw"]),
        (["--prompt-file", "/nowhere/p.txt"], ["exclude"]),
        (["--prompt-cache-out", ""], ["--prompt-cache-out", "not empty"]),
        (["--top-p", "0"], ["top-p is 0: "]),
        (["--kv", "full:fp8"], ["write full[:fp16|bf16|fp32]"]),
        (["--skip-layers", "0,,1"], ["--skip-layers"]),
    ],
)
def test_bad_generate_options(refused, smollm2, arguments, words):
    line = refused("generate", "--model", smollm2, "--prompt", PROMPT, *arguments)
    assert all(word in line for word in words), line


def test_bad_prompts(refused, smollm2, tmp_path):
    model = ["generate", "--model", smollm2]
    assert "no prompt" in refused(*model)
    assert "empty" in refused(*model, "--prompt", "")
    assert "empty" in refused(*model, "--prompt", "-", stdin="\n")
    assert "empty" in refused(*model, "--prompt", "", "--raw")
    assert "/nowhere/p.txt" in refused(*model, "--prompt-file", "/nowhere/p.txt")
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"abc\xffdef")
    line = refused(*model, "--prompt-file", bad)
    assert "byte 3" in line and "bad.txt" in line
    long = tmp_path / "long.txt"
    long.write_text("word " * 9000, encoding="utf-8")
    assert "8192" in refused(*model, "--prompt-file", long)


def test_bad_model_files(refused, tmp_path):
    for name, content in [("empty.gguf", b""), ("page.gguf", b"<!DOCTYPE html><html></html>"), ("cut.gguf", b"GGUF\x03\x00\x00\x00")]:
        path = tmp_path / name
        path.write_bytes(content)
        assert name in refused("generate", "--model", path, "--prompt", "x")
        assert name in refused("inspect", path)


def test_a_damaged_tokenizer_is_named(tersor, refused, smollm2, tmp_path):
    path = tmp_path / "damaged.gguf"
    content = pathlib.Path(smollm2).read_bytes()
    token = len("Ġwhich".encode()).to_bytes(8, "little") + "Ġwhich".encode()
    assert content.count(token) == 1
    path.write_bytes(content.replace(token, token[:-1] + b"~"))
    words = ["damaged.gguf: tokenizer: merge ", "the file is damaged, fetch it again"]
    for command in (["generate", "--prompt", "x"], ["tokenize"]):
        line = refused(*command, "--model", path)
        assert all(word in line for word in words), line
    text = tersor("inspect", path).stdout
    assert "no: " in text and all(word in text for word in words)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no /dev/zero")
def test_endless_input_is_an_error(refused, smollm2):
    assert "1.0 GiB" in refused("generate", "--model", smollm2, "--prompt-file", "/dev/zero")


def test_environment_is_explained(tersor):
    text = tersor("--help").stdout
    assert "TERSOR_THREADS" in text and "TERSOR_SIMD" in text and "AVX3_DL (AVX-512 with VNNI and VBMI)" in text and "cgroup quota" in text
    text = " ".join(tersor("generate", "--help").stdout.split())
    assert "f16 unless given" in text and "affinity and cgroup quota" in text
    assert "TERSOR" not in tersor("bench", "--help").stdout


def test_avx512_is_another_name_of_avx3(tersor):
    names = [tersor("codec", "list", code=None, env={"TERSOR_SIMD": name}) for name in ("AVX3", "avx512")]
    assert names[0].code == names[1].code


def test_bad_environment(refused):
    assert "TERSOR_THREADS" in refused("codec", "list", env={"TERSOR_THREADS": "many"})
    assert "--threads" in refused("codec", "list", "--threads", "0")
    assert "AVX9" in refused("codec", "list", env={"TERSOR_SIMD": "AVX9"})


# Generation

GREEDY = ["--prompt", PROMPT, "--max-tokens", 7]


@pytest.fixture(scope="module")
def greedy(json_of, smollm2):
    return json_of("generate", "--model", smollm2, *GREEDY)


def test_generate_json(greedy):
    fields(greedy, "text tokens prompt_tokens generated_tokens prefill_tok_s decode_tok_s stop_reason kv layers kernels backend")
    fields(greedy["kv"], "keys values window sinks tokens bytes bytes_full peak_bytes active_bytes")
    assert greedy["generated_tokens"] == len(greedy["tokens"]) > 0
    assert greedy["backend"] == "cpu" and "Paris" in greedy["text"]
    assert greedy["kv"]["tokens"] == greedy["prompt_tokens"] + greedy["generated_tokens"]
    assert len(greedy["layers"]) == 30
    for layer in greedy["layers"]:
        fields(layer, "keys_requested values_requested keys values bytes reason")
        assert layer["keys"] == layer["keys_requested"] or layer["reason"]
    assert greedy["kv"]["bytes"] == sum(layer["bytes"] for layer in greedy["layers"])
    for choice in greedy["kernels"]:
        fields(choice, "op kernel reason fast problem")


def test_text_and_json_agree(tersor, smollm2, greedy):
    done = tersor("generate", "--model", smollm2, *GREEDY)
    assert done.stdout == greedy["text"] + "\n"
    assert f"prompt {greedy['prompt_tokens']} tokens" in done.stderr and "layers: 30 compressed; MLX allocator peak" in done.stderr
    assert "(larger than full: " in done.stderr
    assert "\r" not in done.stderr and "\033" not in done.stderr


def test_stdin_prompt_is_the_same_prompt(json_of, smollm2, greedy):
    arguments = ["generate", "--model", smollm2, "--max-tokens", 7]
    assert json_of(*arguments, "--prompt", "-", stdin=PROMPT + "\n")["tokens"] == greedy["tokens"]
    assert json_of(*arguments, "--prompt-file", "-", stdin=PROMPT)["tokens"] == greedy["tokens"]


def test_seed_decides_the_sample(json_of, smollm2):
    arguments = ["generate", "--model", smollm2, "--raw", "--prompt", "Once", "--max-tokens", 5, "--temp", 1.2, "--seed"]
    first, again, other = (json_of(*arguments, seed)["tokens"] for seed in (3, 3, 4))
    assert first == again != other


def test_stop_string_and_raw(json_of, smollm2):
    arguments = ["generate", "--model", smollm2, "--raw", "--prompt", "one two three four", "--max-tokens", 8, "--kv", "full"]
    whole = json_of(*arguments, "--ignore-end")
    assert whole["stop_reason"] == "length" and whole["generated_tokens"] == 8
    stop = whole["text"].split()[1]
    cut = json_of(*arguments, "--stop", stop)
    assert cut["stop_reason"] == "stop" and cut["text"] == whole["text"][: whole["text"].index(stop)]


def test_kv_options_reach_the_cache(json_of, smollm2):
    setting = ["--kv-keys", "affine:8", "--kv-values", "turboquant:4", "--window", 16, "--sinks", 2, "--skip-layers", "0,-1"]
    kv = json_of("generate", "--model", smollm2, "--prompt", PROMPT, "--max-tokens", 2, *setting)
    assert (kv["kv"]["keys"], kv["kv"]["window"], kv["kv"]["sinks"], kv["kv"]["skip"]) == ("affine:8", 16, 2, [0, -1])
    assert kv["kv"]["values"].startswith("turboquant:4")
    effective = [layer["keys"] for layer in kv["layers"]]
    assert effective[0].startswith("full") and effective[29].startswith("full") and set(effective[1:29]) == {"affine:8"}
    assert kv["layers"][0]["reason"]


def test_prompt_cache_goes_on(json_of, refused, smollm2, tmp_path):
    file = tmp_path / "turn.safetensors"
    first = json_of("generate", "--model", smollm2, *GREEDY, "--prompt-cache-out", file)
    second = json_of("generate", "--model", smollm2, "--prompt", "And of Italy?", "--max-tokens", 8, "--prompt-cache-in", file)
    assert second["kv"]["tokens"] == first["kv"]["tokens"] + second["prompt_tokens"] + second["generated_tokens"]
    line = refused("generate", "--model", smollm2, *GREEDY, "--prompt-cache-in", file, "--kv", "affine:4")
    assert "affine:4" in line
    line = refused("generate", "--model", smollm2, *GREEDY, "--prompt-cache-in", file, "--dtype", "f32")
    assert "--dtype f16, not f32" in line
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(file.read_bytes()[:1000])
    assert "broken.safetensors" in refused("generate", "--model", smollm2, *GREEDY, "--prompt-cache-in", broken)


def test_nothing_of_another_kind_is_overwritten(refused, smollm2, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    assert "exists and is not a saved cache" in refused("generate", "--model", smollm2, *GREEDY, "--prompt-cache-out", file)
    assert file.read_text() == "mine"


def test_keys_by_channel(json_of, smollm2):
    """KIVI's keys lose less than groups of channels at two bits, as the paper says of models whose keys have loud channels."""
    settings = ["affine:2,group=32,axis=channel/affine:8", "affine:2,group=32/affine:8"]
    run = ["eval", "--model", smollm2, "--text", DEMO_TEXT, "--tokens", 300]
    channel, token = json_of(*run, "--kv", settings[0], "--kv", settings[1])["results"]
    assert channel["kl_mean"] < 0.5 * token["kl_mean"]
    assert channel["kv"]["bytes"] < channel["kv"]["bytes_full"]


@pytest.mark.parametrize("kv", ["recommended", "full", "affine:8", "affine:4,group=32,axis=channel/affine:8"])
def test_an_empty_prompt_goes_on(tersor, json_of, refused, smollm2, tmp_path, kv):
    file = tmp_path / "half.safetensors"
    model = ["generate", "--model", smollm2, "--raw", "--ignore-end"]
    whole = json_of(*model, "--prompt", "The sea", "--kv", kv, "--max-tokens", 16)
    half = json_of(*model, "--prompt", "The sea", "--kv", kv, "--max-tokens", 8, "--prompt-cache-out", file)
    rest = json_of(*model, "--prompt", "", "--max-tokens", 8, "--prompt-cache-in", file)
    assert half["tokens"] + rest["tokens"] == whole["tokens"] and rest["kv"]["tokens"] == whole["kv"]["tokens"]
    line = refused("generate", "--model", smollm2, "--prompt", "", "--prompt-cache-in", file)
    assert "the prompt is empty" in line and "--raw" in line
    tersor("chat", "--model", smollm2, stdin=f"/save {file}\n")
    assert "half.safetensors: does not say what its last token is" in refused(*model, "--prompt", "", "--prompt-cache-in", file)


def test_groups_larger_than_a_head_are_reported(tersor, json_of, smollm2):
    setting = ["generate", "--model", smollm2, *GREEDY, "--kv", "affine:4,group=128"]
    kinds = {(layer["keys_requested"], layer["keys"], layer["values"]) for layer in json_of(*setting)["layers"]}
    assert kinds == {("affine:4,group=128", "affine:4", "affine:4")}
    words = "30 layers keep affine:4: groups of 128 are cut to the head size of 64 (4.5 bits a number)"
    assert words in tersor(*setting).stderr
    assert words in tersor("eval", "--model", smollm2, "--text", DEMO_TEXT, "--tokens", 16, "--kv", "affine:4,group=128").stdout


def test_chat_in_a_pipe(tersor, smollm2, tmp_path):
    file = tmp_path / "chat.safetensors"
    lines = f"My name is Ada.\n/save {file}\nWhat is my name?\n/reset\n/load {file}\nWhat is my name?\n/quit\nnever seen\n"
    done = tersor("chat", "--model", smollm2, "--max-tokens", 6, "--json", stdin=lines)
    turns = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(turns) == 3
    assert turns[1]["text"] == turns[2]["text"]
    assert turns[1]["kv"]["tokens"] > turns[0]["kv"]["tokens"]
    text = tersor("chat", "--model", smollm2, "--max-tokens", 6, stdin="My name is Ada.\n").stdout
    assert text == turns[0]["text"] + "\n"


# Measurements


def test_eval(tersor, json_of, smollm2):
    arguments = ["eval", "--model", smollm2, "--text", DEMO_TEXT, "--tokens", 48]
    one = json_of(*arguments, "--kv", "full")
    fields(one, "perplexity perplexity_full kl_mean kl_p99 kl_max top1_agreement logit_error_mean logit_error_max policy passed kv results")
    fields(one["kv"], "keys values bytes bytes_full ratio tokens")
    assert one["policy"] == "strict" and one["passed"] is True and one["kl_max"] < 1e-6 and one["top1_agreement"] == 1
    assert one["kv"]["tokens"] == 48
    two = json_of(*arguments, "--kv", "affine:8", "--kv", "turboquant:2")
    assert len(two["results"]) == 2 and "perplexity" not in two
    assert two["results"][0]["kl_mean"] < two["results"][1]["kl_mean"]
    assert one["policy_limits"]["kl_max"] == 0.001 and one["failed"] == [] and "kl_max" in two["results"][1]["failed"]
    table = tersor(*arguments, "--kv", "turboquant:2", "--check", code=1).stdout.splitlines()
    assert len(table) == 3 and table[2].startswith("strict: ") and "turboquant:2 fails top-1, KL max" in table[2]
    assert "KL max <= 0.001" in " ".join(tersor("eval", "--help").stdout.split())


def test_bad_eval(refused, smollm2, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("a", encoding="utf-8")
    assert "at least 2" in refused("eval", "--model", smollm2, "--text", short)
    assert "/nowhere" in refused("eval", "--model", smollm2, "--text", "/nowhere/text")
    long = tmp_path / "long.txt"
    long.write_text("word " * 9000, encoding="utf-8")
    assert "--tokens 8192" in refused("eval", "--model", smollm2, "--text", long)


def test_bench_decode(json_of, smollm2):
    setting = ["--depth", "32,64", "--kv", "full", "--kv", "turboquant:4", "--steps", 2, "--repeat", 2]
    result = json_of("bench", "decode", "--model", smollm2, *setting)
    fields(result, "results machine precision_class steps repeat")
    fields(result["machine"], "cpu simd threads mlx")
    assert result["precision_class"] == "same weights"
    assert [(row["depth"], row["lossy"]) for row in result["results"]] == [(32, False), (32, True), (64, False), (64, True)]
    for row in result["results"]:
        fields(row, "kv prefill_tok_s decode_tok_s samples kv_bytes peak_bytes")
        assert len(row["samples"]) == 2 and min(row["samples"]) <= row["decode_tok_s"] <= max(row["samples"])


def test_bench_model(json_of, tersor):
    setting = ["--shape", "smollm2-135m", "--weights", "affine:4", "--depth", "0,100", "--kv", "full", "--kv", "turboquant:4"]
    setting += ["--steps", 2, "--repeat", 2]
    result = json_of("bench", "model", *setting, "--prefill", 40)
    fields(result, "shape weights seed config precision_class weight_bytes peak_resident_bytes steps repeat kernels machine")
    assert result["weights"] == "affine:4,group=64" and 70e6 < result["weight_bytes"] < 80e6
    assert result["config"]["hidden_size"] == 576 and result["config"]["quantization"] == {"group_size": 64, "bits": 4}
    assert {choice["op"] for choice in result["kernels"]} == {"linear", "rope"} and all(choice["fast"] for choice in result["kernels"])
    assert [(row["depth"], row["kv"]) for row in result["results"]] == [(d, kv) for d in (0, 100) for kv in ("full", "turboquant:4")]
    for row in result["results"]:
        fields(row, "decode_ms decode_tok_s samples kv_bytes kv_bytes_full peak_bytes kernels lossy")
        assert row["filled"] == "random" and len(row["samples"]) == 2 and min(row["samples"]) <= row["decode_tok_s"] <= max(row["samples"])
    assert [(row["tokens"], row["kv"], len(row["samples"])) for row in result["prefill"]] == [(40, "full", 2), (40, "turboquant:4", 2)]
    text = tersor("bench", "model", *setting).stdout
    assert "random weights of affine:4,group=64" in text and "kernels: linear affine:4,group=64,int16" in text


@pytest.mark.parametrize("weights", ["affine:8,group=32", "mxfp4", "mxfp8", "bf16", "f32"])
def test_bench_model_weights(json_of, weights):
    setting = ["--shape", "smollm2-135m", "--weights", weights, "--depth", 8, "--kv", "affine:8,window=4", "--steps", 2, "--repeat", 1]
    result = json_of("bench", "model", *setting, "--fill", "prefill", "--precision", "exact")
    assert result["weights"] == weights and result["precision_class"] == "same weights"
    assert result["results"][0]["filled"] == "prefill" and result["results"][0]["prefill_tok_s"] > 0


def test_bench_linear(json_of):
    weights = ["affine:4", "mxfp4", "mxfp8", "f16", "bf16", "f32"]
    result = json_of("bench", "linear", "--shape", "64x64", "--weights", *weights, "--rows", 1, "--repeat", 1)
    assert not result["interrupted"]
    kinds = [("affine:4,group=64", "int16"), ("affine:4,group=64", "exact"), ("mxfp4", "int16"), ("mxfp4", "exact")]
    assert [(row["weights"], row["precision"]) for row in result["results"]] == kinds + [(name, "exact") for name in weights[2:]]
    assert [row["weight_bytes"] for row in result["results"][::2]][:2] == [64 * 36, 64 * 34]


def test_bench_model_refuses_what_does_not_fit(refused):
    """Before anything is made: at once, and in one line."""
    begin = time.monotonic()
    line = refused("bench", "model", "--shape", "llama-3.1-8b", "--weights", "bf16", "--depth", 16000000)
    assert "llama-3.1-8b: weights of bf16 (15.0 GiB) and caches of 16000032 tokens" in line and "use a smaller shape" in line
    assert time.monotonic() - begin < 5


def test_bench_attention(json_of):
    shape = ["--heads", 4, "--kv-heads", 2, "--head-dim", 64]
    result = json_of("bench", "attention", *shape, "--depth", 100, "--kv", "full", "--kv", "affine:4", "--repeat", 3)
    for row in result["results"]:
        fields(row, "depth kv attend_ms samples bytes gb_s")
    assert result["results"][1]["bytes"] < result["results"][0]["bytes"]


@pytest.mark.parametrize(
    "kv, role", [("turboquant:4", "keys"), ("affine:8", "values"), ("vecinfer:2,sub=2", "values"), ("qjl:128", "keys")]
)
def test_bench_encode(json_of, kv, role):
    result = json_of("bench", "encode", "--kv", kv, "--role", role, "--shape", "1,2,2048,64", "--repeat", 3)
    fields(result, "ms samples peak_bytes allocator_peak_bytes resident_peak_bytes output_bytes kernel fast machine")
    assert len(result["samples"]) == 3 and result["ms"] > 0 and result["shape"] == [1, 2, 2048, 64]
    assert result["output_bytes"] == 2 * 2048 * 64 * result["bits_per_element"] / 8
    assert result["allocator_peak_bytes"] <= result["output_bytes"] + 65536
    assert result["calibration"] == ("the vectors themselves" if "vecinfer" in kv else "none")


def test_bench_pack(json_of, tersor):
    result = json_of("bench", "pack", "--bits", 3, "--count", 100001, "--repeat", 3)
    assert [row["name"] for row in result["results"]] == ["quantise", "pack", "unpack", "dequantise"]
    assert all(row["ms"] > 0 and row["gb_s"] > 0 and len(row["samples"]) == 3 for row in result["results"])
    assert "GB/s" in tersor("bench", "pack", "--count", 1000, "--repeat", 1).stdout


# Files


def test_codec_list(tersor, json_of):
    codecs = {row["codec"]: row for row in json_of("codec", "list")["codecs"]}
    assert codecs["full:fp16"]["bits_per_element"]["64"] == 16
    assert codecs["turboquant:4"]["bits_per_element"]["128"] == 4.125
    assert codecs["turboquant:4"]["ratio"]["128"] == pytest.approx(16 / 4.125)
    assert codecs["turboquant:4"]["distortion"] == pytest.approx(0.0093148, rel=1e-4)
    assert codecs["qjl:256"]["keys"] and not codecs["qjl:256"]["values"]
    assert codecs["vecinfer:2,sub=4"]["calibrated"] and codecs["vecinfer:2,sub=4"]["needs"] and not codecs["mxfp4"]["needs"]
    assert {row["family"] for row in codecs.values()} >= {"affine", "turboquant-prod", "turboquant-rvq", "mxfp8"}
    text = tersor("codec", "list").stdout
    assert all(name in text for name in codecs)


@pytest.mark.parametrize(
    "dtype, kv, low, high",
    [
        (np.float32, "turboquant:4", 0.005, 0.02),
        (np.float16, "affine:8", 0, 1e-3),
        (np.float64, "full", 0, 1e-6),
    ],
)
def test_codec_roundtrip(json_of, tmp_path, dtype, kv, low, high):
    x = np.random.default_rng(1).standard_normal((3, 5, 64)).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    result = json_of("codec", "roundtrip", "--kv", kv, "--in", tmp_path / "x.npy", "--out", tmp_path / "y.npy")
    y = np.load(tmp_path / "y.npy")
    assert y.shape == x.shape and y.dtype == np.float32
    error = float(((x - y.astype(np.float64)) ** 2).sum() / (x.astype(np.float64) ** 2).sum())
    assert low <= error <= high and result["relative_mse"] == pytest.approx(error, rel=1e-2, abs=1e-9)
    assert result["relative_error"] == pytest.approx(result["relative_mse"] ** 0.5)
    assert result["exact"] or result["snr_db"] == pytest.approx(-10 * np.log10(result["relative_mse"]))
    assert result["vectors"] == 15 and result["odd_numbers"] == 0


@pytest.mark.parametrize("kv", ["affine:4,group=32,axis=channel", "mxfp4", "turboquant-prod:3", "turboquant-rvq:2+2", "qjl:512"])
def test_codec_roundtrip_of_every_family(json_of, refused, tmp_path, kv):
    """As far as `codec list` says, on Gaussian numbers."""
    np.save(tmp_path / "x.npy", np.random.default_rng(1).standard_normal((256, 128)).astype(np.float32))
    run = ["codec", "roundtrip", "--kv", kv, "--in", tmp_path / "x.npy", "--out", tmp_path / "y.npy"]
    listed = {row["codec"]: row["distortion"] for row in json_of("codec", "list")["codecs"]}
    assert json_of(*run)["relative_mse"] == pytest.approx(listed[kv], rel=0.15)
    if "channel" in kv:
        np.save(tmp_path / "x.npy", np.ones((33, 128), np.float32))
        assert "32 vectors together" in refused(*run)


def test_codec_roundtrip_with_a_mean(json_of, tmp_path):
    x = np.random.default_rng(1).standard_normal((256, 64)).astype(np.float32) + 300 * np.random.default_rng(2).standard_normal(64)
    np.save(tmp_path / "x.npy", x)
    files = ["--in", tmp_path / "x.npy", "--out", tmp_path / "y.npy"]
    run = ["codec", "roundtrip", *files, "--kv"]
    plain, centred = (json_of(*run, kv)["relative_mse"] for kv in ("turboquant:4", "turboquant:4,centre=64"))
    assert centred < plain / 1000


def test_codec_roundtrip_leaves_odd_numbers_out(tersor, json_of, refused, tmp_path):
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    files = ["--in", tmp_path / "x.npy", "--out", tmp_path / "y.npy"]
    arguments = ["codec", "roundtrip", "--kv", "affine:4", *files]
    np.save(tmp_path / "x.npy", x[:2])
    clean = json_of(*arguments)
    x[2, 3], x[3, 0], x[3, 1] = np.nan, np.inf, 1e5
    np.save(tmp_path / "x.npy", x)
    result = json_of(*arguments)
    assert (result["odd_numbers"], result["odd_vectors"], result["vectors"]) == (3, 2, 4)
    assert all(result[name] == clean[name] for name in ("relative_error", "relative_mse", "snr_db"))
    done = tersor(*arguments)
    assert done.stderr.startswith("3 numbers are NaN") and done.stderr.count("\n") == 1 and "SNR" in done.stdout
    np.save(tmp_path / "x.npy", x[2:])
    assert "nothing can be measured" in refused(*arguments)
    os.remove(tmp_path / "y.npy")
    os.symlink(tmp_path / "x.npy", tmp_path / "y.npy")
    assert "--in" in refused(*arguments)


def test_bad_arrays(refused, tmp_path):
    def case(name, content):
        path = tmp_path / name
        path.write_bytes(content)
        return refused("codec", "roundtrip", "--kv", "full", "--in", path, "--out", tmp_path / "out.npy")

    np.save(tmp_path / "good.npy", np.zeros((4, 64), np.float32))
    good = (tmp_path / "good.npy").read_bytes()
    assert "is not a .npy file" in case("text.npy", b"hello, this is text")
    assert "bytes of numbers" in case("cut.npy", good[:-7])
    assert "bytes of numbers" in case("long.npy", good + b"x")
    assert "more numbers" in case("huge.npy", good.replace(b"(4, 64), }" + b" " * 14, b"(400000000000000, 64), }"))
    assert "type" in case("int.npy", good.replace(b"<f4", b"<i4"))
    assert "Fortran" in case("fortran.npy", good.replace(b"False", b"True "))
    assert not (tmp_path / "out.npy").exists()


def test_logits(json_of, smollm2, tmp_path):
    arguments = ["logits", "--model", smollm2, "--tokens", "1,9690,198", "--out"]
    result = json_of(*arguments, tmp_path / "all.npy", "--all")
    rows = np.load(tmp_path / "all.npy")
    assert result["shape"] == [3, 49152] == list(rows.shape) and rows.dtype == np.float32
    json_of(*arguments, tmp_path / "last.npy")
    last = np.load(tmp_path / "last.npy")
    assert last.shape == (1, 49152) and np.abs(last[0] - rows[2]).max() < 1e-3
    safetensors = pytest.importorskip("safetensors.numpy")
    json_of(*arguments, tmp_path / "last.safetensors")
    assert np.array_equal(safetensors.load_file(tmp_path / "last.safetensors")["logits"], last)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--tokens", "1,x"], ['"x"', "token id"]),
        (["--tokens", "1,-2"], ['"-2"']),
        (["--tokens", "1,,2"], ["missing"]),
        (["--tokens", "1,2,"], ["missing"]),
        (["--tokens", "49152"], ["49152", "vocabulary"]),
        ([], ["--tokens"]),
    ],
)
def test_bad_logits(refused, smollm2, tmp_path, arguments, words):
    line = refused("logits", "--model", smollm2, *arguments, "--out", tmp_path / "x.npy")
    assert all(word in line for word in words), line
    assert not list(tmp_path.iterdir())


def test_logits_out_is_checked_first(refused, smollm2):
    assert "/nowhere" in refused("logits", "--model", smollm2, "--tokens", "1", "--out", "/nowhere/x.npy")
    assert ".safetensors" in refused("logits", "--model", smollm2, "--tokens", "1", "--out", "x.txt")


def test_tokens_there_and_back(tersor, json_of, smollm2):
    text = "Grüße, 2024! 🙂\n"
    ids = tersor("tokenize", "--model", smollm2, stdin=text).stdout.split()
    assert tersor("detokenize", "--model", smollm2, *ids).stdout == text
    assert tersor("detokenize", "--model", smollm2, stdin=" ".join(ids)).stdout == text
    result = json_of("tokenize", "--model", smollm2, stdin=text)
    assert [str(i) for i in result["ids"]] == ids and len(result["pieces"]) == len(ids)
    assert tersor("tokenize", "--model", smollm2, "--special", stdin="x<|im_end|>y").stdout == "104 2 105\n"
    assert tersor("tokenize", "--model", smollm2, stdin="x<|im_end|>y").stdout != "104 2 105\n"
    assert tersor("detokenize", "--model", smollm2, 104, 2, 105).stdout == "xy"


def test_bad_tokens(refused, binary, smollm2):
    assert "999999" in refused("detokenize", "--model", smollm2, 999999)
    assert "no token ids" in refused("detokenize", "--model", smollm2, stdin="")
    done = subprocess.run([binary, "tokenize", "--model", smollm2], input=b"ab\xc3", capture_output=True, check=False)
    assert done.returncode == 2 and done.stdout == b"" and b"byte 2" in done.stderr and done.stderr.count(b"\n") == 1


def test_inspect(tersor, json_of, smollm2):
    result = json_of("inspect", smollm2)
    fields(result, "model machine kernels")
    fields(result["machine"], "cpu simd threads mlx backend memory_limit")
    assert len(result["model"]["tensors"]) > 200
    assert {choice["op"] for choice in result["kernels"]}
    machine = tersor("inspect").stdout
    assert result["machine"]["cpu"] in machine and result["machine"]["simd"] in machine


# Ends


def test_closed_standard_output_is_quiet(binary, smollm2):
    command = [binary, "generate", "--model", smollm2, "--prompt", PROMPT, "--ignore-end", "--max-tokens", "200"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=30) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_full_standard_output_is_an_error(binary):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([binary, "codec", "list"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2 and b"standard output" in done.stderr and done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("mebibytes", [150, 200, 220])
def test_too_little_memory_is_an_error(binary, smollm2, mebibytes):
    limit = f'ulimit -v {mebibytes * 1024}; exec "$@"'
    command = ["bash", "-c", limit, "-", binary, "generate", "--model", smollm2, "--prompt", "x", "--max-tokens", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "TERSOR_THREADS": "1"})
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("tersor: ") and len(done.stderr.splitlines()) == 1, done


SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


def interrupted(command, number, wait, stdin=b""):
    """Sends the signal after the first output (wait None) or after so many seconds: (status, standard output, last note)."""
    command = [str(word) for word in command]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(stdin)
        process.stdin.flush()
        first = b""
        if wait is None:
            first = process.stdout.read(1)
        else:
            time.sleep(wait)
        process.send_signal(number)
        begin = time.monotonic()
        out, notes = process.communicate(timeout=60)
        assert time.monotonic() - begin < 20
        return process.returncode, (first + out).decode(), notes.decode().splitlines()[-1]


@pytest.mark.parametrize("number, status", SIGNALS)
def test_an_interrupt_keeps_what_was_made(binary, smollm2, number, status):
    endless = ["--ignore-end", "--max-tokens", 8000]
    code, text, line = interrupted([binary, "generate", "-m", smollm2, "-p", PROMPT, *endless], number, None)
    assert code == status and text.strip() and text.endswith("\n")
    assert line.startswith("interrupted after ") and line.endswith((" token", " tokens"))
    code, text, line = interrupted([binary, "generate", "-m", smollm2, "-p", PROMPT, *endless, "--json"], number, 3)
    result = json.loads(text)
    assert code == status and result["interrupted"] and result["stop_reason"] == "interrupted"
    assert line.split()[:3] == ["interrupted", "after", str(result["generated_tokens"])]
    code, text, line = interrupted([binary, "chat", "-m", smollm2, *endless], number, None, b"Tell me all.\n/quit\n")
    assert code == status and text.strip() and line.startswith("interrupted after ")


@pytest.mark.parametrize("number, status", SIGNALS)
def test_an_interrupted_measurement_prints_its_results(binary, smollm2, tmp_path, number, status):
    text = tmp_path / "long.txt"
    text.write_text("word " * 7000, encoding="utf-8")
    code, out, line = interrupted([binary, "eval", "-m", smollm2, "--text", text, "--chunk", 16, "--json"], number, 3)
    result = json.loads(out)
    assert code == status and result["interrupted"] and 0 < result["kv"]["tokens"] < 7000
    assert line == f"interrupted after {result['kv']['tokens']} tokens"
    decode = ["--depth", "8", "--steps", "2", "--repeat", "1000"]
    benchmarks = [["decode", "-m", smollm2, *decode], ["model", "--shape", "smollm2-135m", *decode]]
    benchmarks += [["attention", "--depth", "4096", "--repeat", "100000"], ["linear", "--rows", "64", "--repeat", "1000"]]
    for benchmark in benchmarks:
        code, out, line = interrupted([binary, "bench", *benchmark, "--json"], number, 3)
        result = json.loads(out)
        assert code == status and result["interrupted"], benchmark
        assert line == f"interrupted after {sum(len(row['samples']) for row in result['results'])} samples"


def test_a_second_signal_ends_at_once(binary, smollm2, tmp_path):
    text = tmp_path / "long.txt"
    text.write_text("word " * 8000, encoding="utf-8")
    command = [binary, "generate", "-m", smollm2, "-f", text, "--raw", "--chunk", "8192"]  # one chunk of many seconds
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        out, notes = process.communicate(timeout=2)
        assert (process.returncode, out, notes) == (143, b"", b"")


def cut_short(binary, smollm2, file, tokens, end):
    command = [binary, "generate", "--model", smollm2, "--prompt", PROMPT, "--ignore-end", "--max-tokens", tokens]
    with subprocess.Popen([*command, "--prompt-cache-out", file], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(1)
        end(process)
        process.wait(timeout=60)
        return process.returncode


def test_an_unread_reply_is_still_saved(binary, smollm2, json_of, tmp_path):
    file = tmp_path / "cache.safetensors"
    assert cut_short(binary, smollm2, file, "30", lambda process: process.stdout.close()) == 0
    again = json_of("generate", "--model", smollm2, "--prompt", "Go on.", "--max-tokens", 2, "--prompt-cache-in", file)
    assert again["kv"]["tokens"] > 30 + again["prompt_tokens"]


def test_an_interrupted_reply_is_saved(binary, smollm2, json_of, tmp_path):
    file = tmp_path / "cache.safetensors"
    assert cut_short(binary, smollm2, file, "4000", lambda process: process.send_signal(signal.SIGINT)) == 130
    json_of("generate", "--model", smollm2, "--prompt", "Go on.", "--max-tokens", 2, "--prompt-cache-in", file)
    json_of("generate", "--model", smollm2, "--prompt", "", "--raw", "--max-tokens", 2, "--prompt-cache-in", file)
    assert list(tmp_path.iterdir()) == [file]
