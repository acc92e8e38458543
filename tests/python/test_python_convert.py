"""A GGUF file as a folder for mlx_lm, and python -m tersor."""

import json
import os
import subprocess
import sys

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest

import tersor as ts

TEXTS = [
    "What is a lighthouse?",
    "2024: don't\tpanic — naïve café 東京 🙂👩‍👩‍👧",
    "<|im_start|>user\nx<|im_end|>",
    "   spaces\n\n  and 'quotes'",
]


@pytest.fixture(scope="module")
def folder(smollm2, tmp_path_factory):
    return ts.convert(smollm2, tmp_path_factory.mktemp("converted") / "smollm2")


@pytest.fixture(scope="module")
def loaded(folder):
    return mlx_lm.load(str(folder))


def run(build_dir, *arguments, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "tersor", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(build_dir / "python")},
    )
    assert done.returncode == code, done.stderr
    return done


def test_codes_stay_as_they_are(folder, smollm2):
    ours, theirs = mx.load(str(folder / "model.safetensors")), mx.load(str(smollm2))
    assert mx.array_equal(ours["model.layers.0.mlp.up_proj.weight"], theirs["blk.0.ffn_up.weight"])
    config = json.loads((folder / "config.json").read_text())
    assert config["quantization"]["bits"] == 4 and config["quantization"]["model.embed_tokens"]["bits"] == 8


def test_ids_are_those_of_the_command(loaded, tersor, smollm2):
    tokenizer = loaded[1]
    for text in TEXTS:
        ids = [int(i) for i in tersor("tokenize", "--model", smollm2, "--special", stdin=text).stdout.split()]
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == text


def test_logits_are_those_of_the_command(loaded, tersor, smollm2, tmp_path):
    ids = [504, 2365, 282, 260, 7210, 314]
    tersor("logits", "--model", smollm2, "--tokens", ",".join(map(str, ids)), "--precision", "exact", "--out", tmp_path / "l.npy")
    expected = np.load(tmp_path / "l.npy").reshape(-1)
    found = np.array(loaded[0](mx.array([ids]))[0, -1].astype(mx.float32))
    assert np.abs(found - expected).max() < 2e-3 * np.abs(expected).max()


def test_a_folder_that_exists_is_left_alone(folder, smollm2):
    before = sorted(p.name for p in folder.iterdir())
    with pytest.raises(ts.Error, match="exists already"):
        ts.convert(smollm2, folder)
    assert sorted(p.name for p in folder.iterdir()) == before


def test_a_broken_file_leaves_nothing_behind(tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\x03\x00\x00\x00nothing")
    with pytest.raises(ts.Error, match="broken.gguf"):
        ts.convert(tmp_path / "broken.gguf", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["broken.gguf"]


def test_generate_says_what_was_compressed(folder, build_dir):
    done = run(build_dir, "generate", "--model", folder, "--prompt", "Hi", "--max-tokens", 3, "--kv", "affine:8")
    assert "30 of 30 caches store affine:8" in done.stderr
    assert "Generation: 3 tokens" in done.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["generate", "--kv", "turbo:4"], "turbo:4"),
        (["generate", "--kv-bits", "4"], "use --kv"),
        (["generate", "--max-kv-size", "64"], "leave it out"),
        (["generate", "--kv-skip", "first"], "--kv-skip"),
        (["eval", "--model", "x", "--text", "/nowhere"], "/nowhere"),
        (["fly"], "no command"),
    ],
)
def test_bad_usage_is_one_line(build_dir, arguments, message):
    done = run(build_dir, *arguments, code=2)
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_eval_agrees_with_the_command(folder, build_dir, tersor, smollm2, tmp_path):
    text = tmp_path / "t.txt"
    text.write_text("A lighthouse is a tower that shows ships at night where the coast is. " * 4)
    ours = json.loads(run(build_dir, "eval", "--model", folder, "--text", text, "--kv", "turboquant:4", "--json").stdout)
    (row,) = json.loads(
        tersor("eval", "--model", smollm2, "--text", text, "--kv", "turboquant:4", "--precision", "exact", "--json").stdout
    )["results"]
    assert ours["positions"] == row["positions"]
    assert ours["kl_mean"] == pytest.approx(row["kl_mean"], rel=0.25)
    assert ours["perplexity_full"] == pytest.approx(row["perplexity_full"], rel=2e-3)


def test_divisors_of_llama_3_become_its_rule_and_others_are_refused(tmp_path):
    from test_model_files import HEADS, HIDDEN, write_gguf

    size = HIDDEN // HEADS
    waves = 2 * np.pi * 50000.0 ** (np.arange(0, size, 2) / size)
    smooth = np.clip((8192 / waves - 1) / 3, 0, 1)
    divisors = (1 / ((1 - smooth) / 8 + smooth)).astype(np.float32)
    write_gguf(tmp_path / "llama3.gguf", tokens=90, extra={"rope_freqs.weight": divisors})
    config = json.loads((ts.convert(tmp_path / "llama3.gguf", tmp_path / "llama3") / "config.json").read_text())
    scaling = config["rope_scaling"]
    assert scaling["rope_type"] == "llama3" and scaling["factor"] == pytest.approx(divisors.max())
    write_gguf(tmp_path / "other.gguf", tokens=90, extra={"rope_freqs.weight": divisors[::-1].copy()})
    with pytest.raises(ts.Error, match="Llama 3's rule"):
        ts.convert(tmp_path / "other.gguf", tmp_path / "other")
    write_gguf(tmp_path / "plain.gguf", tokens=90, extra={"rope_freqs.weight": np.ones(size // 2, np.float32)})
    assert "rope_scaling" not in (ts.convert(tmp_path / "plain.gguf", tmp_path / "plain") / "config.json").read_text()
