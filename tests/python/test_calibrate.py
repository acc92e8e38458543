"""`tersor calibrate` and --calibration, as users meet them, on SmolLM2."""

import json
import pathlib
import signal
import subprocess
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = ROOT / "docs" / "codecs.md"
LAYERS, HEADS, DIM = 30, 3, 64


@pytest.fixture(scope="module")
def json_of(tersor):
    return lambda *arguments, **options: json.loads(tersor(*arguments, "--json", **options).stdout)


@pytest.fixture(scope="module")
def refused(tersor):
    def run(*arguments):
        done = tersor(*arguments, code=2)
        assert done.stdout == "" and len(done.stderr.splitlines()) == 1, done.stderr
        return done.stderr

    return run


@pytest.fixture(scope="module")
def calibrate(smollm2):
    return ["calibrate", "--model", smollm2, "--text", TEXT, "--tokens", "1200"]


@pytest.fixture(scope="module")
def split(json_of, calibrate, tmp_path_factory):
    """A calibration of turboquant:2.5, and what was said of it."""
    path = tmp_path_factory.mktemp("split") / "split.safetensors"
    return path, json_of(*calibrate, "--kv", "turboquant:2.5", "--out", path)


@pytest.fixture(scope="module")
def vecinfer(tersor, calibrate, tmp_path_factory):
    path = tmp_path_factory.mktemp("vecinfer") / "vecinfer.safetensors"
    done = tersor(*calibrate, "--codec", "vecinfer:2,sub=2,centre=calibrated", "--out", path)
    assert str(path) in done.stdout and done.stdout.count("\n") == 1 and done.stderr == ""
    return path


def test_what_the_file_holds(split, vecinfer):
    path, report = split
    assert report["layers"] == report["layers_done"] == LAYERS and report["layers_resumed"] == 0 and not report["interrupted"]
    assert report["tokens"] == report["key_vectors"] == report["value_vectors"] == 1200
    assert len(report["digest"]) == 16 and report["bytes"] == path.stat().st_size and report["warnings"] == 0
    tensors = load_file(path)
    assert sorted(tensors) == sorted(f"layers.{i}.{role}.channels" for i in range(LAYERS) for role in ("keys", "values"))
    assert all(sorted(heads[0]) == list(range(DIM)) for heads in tensors.values())
    books = load_file(vecinfer)
    assert books["layers.4.keys.centroids"].shape == (HEADS, 16, 2) and books["layers.4.keys.smoothing"].shape == (HEADS, DIM)
    assert books["layers.4.keys.mean"].shape == (HEADS, DIM) and "layers.4.values.mean" not in books
    assert not path.with_suffix(".safetensors.partial").exists()


def test_same_text_same_file(json_of, calibrate, split, tmp_path):
    again = tmp_path / "again.safetensors"
    json_of(*calibrate, "--kv", "turboquant:2.5", "--out", again, env={"TERSOR_THREADS": "1"})
    assert again.read_bytes() == split[0].read_bytes()


def test_interrupted_and_gone_on(build_dir, tersor, refused, smollm2, tmp_path):
    out, partial = tmp_path / "c.safetensors", tmp_path / "c.safetensors.partial"
    command = ["calibrate", "--model", smollm2, "--text", TEXT, "--tokens", "400", "--kv", "vecinfer:2,sub=4", "--out"]
    whole = tmp_path / "whole.safetensors"
    done = tersor(*command, whole)
    assert done.stderr.startswith("warning: 400 tokens are few for the codebooks of vecinfer:2,sub=4; a text of 12800 tokens")
    assert done.stderr.count("\n") == 1
    before = whole.read_bytes()
    assert "exists" in refused(*command, whole) and whole.read_bytes() == before
    process = subprocess.Popen(
        [str(build_dir / "bin" / "tersor"), *map(str, command), str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not partial.exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and stdout == "" and "goes on there" in stderr and not out.exists()
    run = ["eval", "--model", smollm2, "--text", TEXT, "--tokens", "9", "--kv", "vecinfer:2,sub=4"]
    assert "holds" in refused(*run, "--calibration", partial)
    assert "whose seed is 0, not 1" in refused(*command, out, "--seed", "1")
    done = tersor(*command, out)
    assert "going on after" in done.stderr and out.read_bytes() == whole.read_bytes() and not partial.exists()


def test_eval_takes_each_setting_s_own(json_of, tersor, smollm2, split, vecinfer):
    arguments = ["eval", "--model", smollm2, "--text", TEXT, "--tokens", "300", "--window", "24", "--sinks", "4"]
    files = ["--calibration", vecinfer, "--calibration", split[0]]
    mixed = "vecinfer:2,sub=2,centre=calibrated/turboquant:2.5"
    settings = ["--kv", "turboquant:2.5", "--kv", "full", "--kv", mixed, "--kv", "turboquant:2"]
    results = json_of(*arguments, *settings, *files)["results"]
    kl = [row["kl_mean"] for row in results]
    assert kl[1] < 1e-3 and kl[0] < kl[3] and all(np.isfinite(kl))
    sizes = [row["kv"]["bytes"] for row in results]
    assert sizes[3] < sizes[0] < sizes[1]
    done = tersor(*arguments, "--kv", "full", *files)
    assert done.stderr.splitlines() == [
        f"{vecinfer}: not used: no setting here is vecinfer:2,sub=2,centre=calibrated/vecinfer:2,sub=2",
        f"{split[0]}: not used: no setting here is turboquant:2.5",
    ]


def test_prompt_caches(tersor, refused, smollm2, split, tmp_path):
    kv, saved = ["--kv", "turboquant:2.5"], tmp_path / "kv.safetensors"
    run = ["generate", "--model", smollm2, "--raw", "--max-tokens", "12", "--prompt"]
    calibration = ["--calibration", split[0]]
    first = tersor(*run, "The lighthouse stands on", *kv, *calibration, "--prompt-cache-out", saved).stdout
    assert first.strip()
    done = tersor(*run, " and", *calibration, "--prompt-cache-in", saved)
    assert done.stdout.strip() and "not used" not in done.stderr
    assert "--calibration" in refused(*run, " and", "--prompt-cache-in", saved)
    chat = tersor("chat", "--model", smollm2, *kv, *calibration, "--max-tokens", "3", stdin="Hello\n")
    assert chat.stdout.strip()


def test_where_it_is_missing_or_wrong(refused, tersor, smollm2, split, vecinfer, tmp_path):
    run = ["generate", "--model", smollm2, "--prompt", "x", "--kv"]
    assert "tersor calibrate" in refused(*run, "vecinfer:2,sub=4")
    assert "turboquant:3.5 needs a calibration of its own for keys" in refused(*run, "turboquant:3.5", "--calibration", split[0])
    assert "no such file" in refused(*run, "turboquant:2.5", "--calibration", tmp_path / "nowhere").lower()
    assert "is not a calibration of Tersor" in refused(*run, "turboquant:2.5", "--calibration", make_safetensors(tmp_path))
    damaged = tmp_path / "damaged"
    damaged.write_bytes(split[0].read_bytes()[:-9])
    assert "damaged" in refused(*run, "turboquant:2.5", "--calibration", damaged)
    calibrate = ["calibrate", "--model", smollm2, "--text", TEXT, "--out", tmp_path / "x", "--kv"]
    assert "needs no calibration" in refused(*calibrate, "turboquant:4")
    assert "vecinfer" in refused(*calibrate, "vecinfer:2")
    assert "/nowhere" in refused(*calibrate[:-2], "/nowhere/x", "--kv", "turboquant:2.5")
    (tmp_path / "empty.txt").touch()
    empty = ["calibrate", "--model", smollm2, "--text", tmp_path / "empty.txt", "--out", tmp_path / "x"]
    assert "empty" in refused(*empty, "--kv", "turboquant:2.5")


def make_safetensors(folder):
    path = folder / "other.safetensors"
    header = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"x")
    return path


def test_roundtrip_takes_a_layer_and_head(json_of, refused, split, vecinfer, tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(1).standard_normal((50, DIM)).astype(np.float32))
    files = ["--in", tmp_path / "x.npy", "--out", tmp_path / "y.npy"]
    run = ["codec", "roundtrip", "--kv", "turboquant:2.5", *files]
    errors = [json_of(*run, "--calibration", split[0], "--layer", layer, "--head", 2)["relative_mse"] for layer in (0, 7)]
    assert errors[0] != errors[1] and all(0.05 < error < 0.12 for error in errors)
    assert "30 layers and 3 KV heads" in refused(*run, "--calibration", split[0], "--layer", "30")
    assert "calibration" in refused(*run)
    books = json_of("codec", "roundtrip", "--kv", "vecinfer:2,sub=2", *files, "--role", "values", "--calibration", vecinfer)
    assert books["relative_mse"] < 1


ATTENTION = ["attention", "--heads", "9", "--kv-heads", "3", "--head-dim", "64", "--depth", "100"]


@pytest.mark.parametrize("command", [ATTENTION, ["decode", "--depth", "20", "--steps", "2"]])
def test_benchmarks(json_of, refused, smollm2, split, command):
    model = ["--model", smollm2] if command[0] == "decode" else []
    run = ["bench", *command, *model, "--kv", "turboquant:2.5", "--kv", "full", "--repeat", "1"]
    rows = json_of(*run, "--calibration", split[0])["results"]
    assert [row["kv"] for row in rows] == ["turboquant:2.5", "full"]
    assert "calibra" in refused(*run)


def test_bench_model(json_of, split):
    run = ["bench", "model", "--shape", "smollm2-135m", "--kv", "turboquant:2.5", "--depth", "20", "--steps", "2", "--repeat", "1"]
    assert json_of(*run, "--calibration", split[0])["results"][0]["kv"] == "turboquant:2.5"
