"""Logits against mlx_lm on the same weights, float32 on both sides, with an uncompressed float32 cache.

The kernels are required, so that a silent fall-back to composed operations cannot pass for them; one test forbids them. Parity is that
of `--precision exact`; what the default, int16, changes is bounded at the end.
"""

import mlx.core as mx
import numpy as np
import pytest
import reference
import tiny_models

CHUNKS = [None, 1, 7, 64]  # None: all tokens in one piece
TINY_TOLERANCE = 2e-4
SMOLLM2_TOLERANCE = 2e-3


@pytest.fixture
def logits(tersor, tmp_path):
    def run(model, tokens, chunk=None, kernels="require", precision="exact"):
        out = tmp_path / "logits.npy"
        ids = ",".join(map(str, tokens))
        chunk = chunk or len(tokens)
        how = ["--dtype", "f32", "--kv", "full", "--chunk", chunk, "--kernels", kernels, "--precision", precision]
        tersor("logits", "--model", model, "--tokens", ids, "--all", *how, "--out", out)
        return np.load(out)

    return run


def random_tokens(count, vocabulary, seed=7):
    return np.random.default_rng(seed).integers(0, vocabulary, count).tolist()


def compare(ours, theirs, tolerance, what):
    assert ours.dtype == np.float32 and ours.shape == theirs.shape
    difference = np.abs(ours - theirs).max()
    print(f"{what}: largest difference {difference:.2e}, logits up to {np.abs(theirs).max():.1f}")
    assert difference <= tolerance, what


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("quantisation", tiny_models.QUANTISATIONS)
@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_tiny_models(logits, tmp_path, family, quantisation, tied):
    config = tiny_models.config_of(family, tied)
    folder = tiny_models.write_model(tmp_path / "model", config, tiny_models.QUANTISATIONS[quantisation])
    tokens = random_tokens(100, tiny_models.VOCAB)
    expected = reference.logits_of_folder(folder, tokens)
    assert np.abs(expected).max() > 1, "logits near zero would prove nothing"
    for chunk in CHUNKS:
        compare(logits(folder, tokens, chunk), expected, TINY_TOLERANCE, f"{family} {quantisation} chunk {chunk}")


@pytest.mark.parametrize("quantisation", ["dense", "mixed"])
@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_composed_operations(logits, tmp_path, family, quantisation):
    folder = tiny_models.write_model(tmp_path / "model", tiny_models.config_of(family, True), tiny_models.QUANTISATIONS[quantisation])
    tokens = random_tokens(70, tiny_models.VOCAB)
    ours = logits(folder, tokens, 32, kernels="forbid")
    compare(ours, reference.logits_of_folder(folder, tokens), TINY_TOLERANCE, f"{family} {quantisation} composed")


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("quantisation", ["dense", "4bit-32"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_stored_in_16_bits(logits, tmp_path, family, quantisation, dtype):
    config = tiny_models.config_of(family, True)
    folder = tiny_models.write_model(tmp_path / "model", config, tiny_models.QUANTISATIONS[quantisation], dtype)
    tokens = random_tokens(40, tiny_models.VOCAB)
    compare(logits(folder, tokens, 16), reference.logits_of_folder(folder, tokens), TINY_TOLERANCE, f"{family} {quantisation} {dtype}")


@pytest.fixture(scope="module")
def smollm2_reference(smollm2):
    tokens = random_tokens(256, 49152)
    return tokens, reference.logits_of_gguf(smollm2, tokens)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_smollm2(logits, smollm2, smollm2_reference, chunk):
    tokens, expected = smollm2_reference
    assert expected.shape == (256, 49152)
    compare(logits(smollm2, tokens, chunk), expected, SMOLLM2_TOLERANCE, f"SmolLM2 chunk {chunk}")


def kl(p_logits, q_logits):
    """KL(p || q) at each position, in float64."""
    p, q = (x.astype(np.float64) for x in (p_logits, q_logits))
    log_p, log_q = (x - x.max(-1, keepdims=True) for x in (p, q))
    log_p, log_q = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (log_p, log_q))
    return (np.exp(log_p) * (log_p - log_q)).sum(-1)


@pytest.mark.parametrize("chunk", [1, None])
def test_int16_stays_close(logits, smollm2, smollm2_reference, chunk):
    tokens, expected = smollm2_reference
    ours = logits(smollm2, tokens, chunk, precision="int16")
    divergence, difference = kl(expected, ours), np.abs(ours - expected)
    print(f"int16 chunk {chunk}: KL mean {divergence.mean():.1e}, largest {divergence.max():.1e}, logits off by {difference.max():.1e}")
    assert (ours.argmax(-1) == expected.argmax(-1)).mean() > 0.99
    assert divergence.mean() <= 1e-5 and divergence.max() <= 1e-3
    assert difference.max() <= 0.1


@pytest.mark.parametrize("quantisation", [q for q in tiny_models.QUANTISATIONS if q != "dense"])
def test_int16_runs_every_format(logits, tmp_path, quantisation):
    folder = tiny_models.write_model(tmp_path / "model", tiny_models.config_of("llama", True), tiny_models.QUANTISATIONS[quantisation])
    tokens = random_tokens(60, tiny_models.VOCAB)
    expected = reference.logits_of_folder(folder, tokens)
    for chunk in (1, 7, None):
        compare(logits(folder, tokens, chunk, precision="int16"), expected, 3e-2, f"{quantisation} chunk {chunk}")
