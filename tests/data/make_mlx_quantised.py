"""Writes mlx_quantised.json: what mx.quantize makes of fixed numbers on the CPU. The C++ tests compare the codecs with it byte for byte.

Numbers are given by their bits (float16, bfloat16 or float32), so that nothing is lost on the way.
"""

import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np

COLUMNS = 128
CASES = ((2, 64), (3, 64), (4, 32), (4, 64), (4, 128), (5, 64), (6, 64), (8, 64))  # bits, group


def rows(seed):
    """Gaussian rows, and those that are special: constant, zero, one-sided, tiny, large, exact ties."""
    random = np.random.default_rng(seed)
    special = [
        np.zeros(COLUMNS),
        np.full(COLUMNS, 1.25),
        np.full(COLUMNS, -3.0),
        np.abs(random.standard_normal(COLUMNS)) + 1,
        -np.abs(random.standard_normal(COLUMNS)),
        random.standard_normal(COLUMNS) * 2.0**-12,
        random.standard_normal(COLUMNS) * 2.0**10,
        np.tile([6, 5, -5, 3.5, -3.5, 2.5, 1.75, -1.25, 0.75, -0.25, 0.25, 0.1, -0.1, 0, 4, -6], COLUMNS // 16),
        np.tile([448, 432, -432, 17, 19, -17, 2.0**-9, 2.0**-10, 3 * 2.0**-10, -(2.0**-10), 0.5, 1, -1, 0, 8, -448], COLUMNS // 16),
        np.eye(1, COLUMNS, 5)[0] * 7.5,
    ]
    return np.concatenate([random.standard_normal((3, COLUMNS)), np.array(special)]).astype(np.float32)


def bits_of(array):
    """The bits of an array of 16- or 32-bit floats as a flat list."""
    kind = mx.uint32 if array.dtype == mx.float32 else mx.uint16
    return np.array(mx.view(array, kind)).ravel().tolist()


def affine_case(x, bits, group):
    words, scales, biases = mx.quantize(x, group_size=group, bits=bits)
    decoded = mx.dequantize(words, scales, biases, group_size=group, bits=bits)
    return {
        "bits": bits,
        "group": group,
        "words": np.array(words).ravel().tolist(),
        "scales": bits_of(scales),
        "biases": bits_of(biases),
        "decoded": bits_of(decoded),
    }


def mx_case(x, bits):
    mode = f"mxfp{bits}"
    words, scales = mx.quantize(x, group_size=32, bits=bits, mode=mode)
    decoded = mx.dequantize(words, scales, group_size=32, bits=bits, mode=mode, dtype=x.dtype)
    flat = [np.array(a).ravel().tolist() for a in (words, scales)]
    return {"codec": mode, "words": flat[0], "scales": flat[1], "decoded": bits_of(decoded)}


def document():
    mx.set_default_device(mx.cpu)
    inputs = []
    for name, dtype in (("f32", mx.float32), ("f16", mx.float16), ("bf16", mx.bfloat16)):
        x = mx.array(rows(5)).astype(dtype)
        affine = [affine_case(x, bits, group) for bits, group in CASES]
        inputs.append({"dtype": name, "x": bits_of(x), "affine": affine, "mx": [mx_case(x, bits) for bits in (4, 8)]})
    return {"about": "mx.quantize on the CPU, by make_mlx_quantised.py", "columns": COLUMNS, "inputs": inputs}


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("mlx_quantised.json")
    target.write_text(json.dumps(document(), separators=(",", ":")).replace('{"dtype"', '\n{"dtype"') + "\n", encoding="utf-8")
