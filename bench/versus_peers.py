#!/usr/bin/env python3
"""Decode and prefill speed of tersor against mlx_lm and llama.cpp on one GGUF file, taking turns in one run.

    .venv/bin/python bench/versus_peers.py MODEL.gguf [--depth 512] [--rounds 3] [--steps 32] [--kv SETTING]... [--out FILE.json]

Precision class: same weights (the file's own 4- and 8-bit codes in every program). Activations meet them as 16-bit integers in
tersor (`--precision exact`: as floats), as 8-bit integers in llama.cpp, as floats in mlx_lm. Each program's own cache setting is part
of its name: `kv` of tersor and llama.cpp, fp32 in mlx_lm. llama.cpp takes part where the Python package llama_cpp is installed (pip
install llama-cpp-python; it compiles for minutes). The figure is the median over rounds of tokens per second, raw samples are kept,
and ratios are medians of the ratios within a round. mlx_lm's prefill is not measured: it takes minutes.
"""

import argparse
import json
import pathlib
import platform
import subprocess
import time

import paired

ROOT = pathlib.Path(__file__).resolve().parents[1]


def tersor_arms(model, depth, steps, settings, precision):
    """One process a round measures all settings of tersor, in alternating order, at the same depth."""

    def measure():
        command = [
            ROOT / "build/bin/tersor",
            "bench",
            "decode",
            "--model",
            model,
            "--depth",
            str(depth),
            "--steps",
            str(steps),
            "--repeat",
            "1",
            "--precision",
            precision,
            "--json",
        ]
        for setting in settings:
            command += ["--kv", setting]
        rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["results"]
        return {f"tersor {row['kv']}": {"decode": row["decode_tok_s"], "prefill": row["prefill_tok_s"]} for row in rows}

    return measure


def mlx_lm_arm(model, depth, steps):
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    network = quantised_mlx_lm_model(model)
    cache = make_prompt_cache(network)
    tokens = mx.arange(100, 100 + depth)[None]
    mx.eval(network(tokens, cache=cache))

    def measure():
        mx.eval(network(mx.array([[7]]), cache=cache))
        begin = time.perf_counter()
        for step in range(steps):
            mx.eval(network(mx.array([[7 + step]]), cache=cache))
        seconds = time.perf_counter() - begin
        for layer in cache:
            layer.trim(steps + 1)
        return {"mlx_lm": {"decode": steps / seconds}}

    return measure


def quantised_mlx_lm_model(path):
    """The GGUF's tensors as mlx_lm's own quantised llama."""
    import sys

    import mlx.core as mx
    import mlx.nn as nn
    from mlx_lm.models import llama

    sys.path.insert(0, str(ROOT / "tests/python"))
    import reference

    arrays, metadata = mx.load(str(path), return_metadata=True)
    network = llama.Model(reference.llama_arguments(arrays, metadata))
    weights = reference.quantised_weights(arrays, metadata)
    bits = {
        name[: -len(".scales")]: 32 * weights[name[: -len("scales")] + "weight"].shape[-1] // (32 * value.shape[-1])
        for name, value in weights.items()
        if name.endswith(".scales")
    }
    nn.quantize(network, class_predicate=lambda name, module: {"group_size": 32, "bits": bits[name]} if name in bits else False)
    network.load_weights(list(weights.items()))
    return network


def llama_cpp_arms(model, depth, steps):
    try:
        import llama_cpp
    except ImportError:
        return None
    contexts = {}
    for name, kind in (("f16", 1), ("q8_0", 8), ("q4_0", 2)):
        contexts[name] = llama_cpp.Llama(
            model,
            n_ctx=depth + steps + 64,
            n_batch=512,
            n_threads=2,
            n_threads_batch=2,
            flash_attn=True,
            type_k=kind,
            type_v=kind,
            verbose=False,
        )

    def measure():
        result = {}
        for name, context in contexts.items():
            context.reset()
            begin = time.perf_counter()
            context.eval(list(range(100, 100 + depth)))
            middle = time.perf_counter()
            for step in range(steps):
                context.eval([7 + step])
            end = time.perf_counter()
            result[f"llama.cpp {name}"] = {"decode": steps / (end - middle), "prefill": depth / (middle - begin)}
        return result

    return measure


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            flags = [f for f in ("avx2", "avx512f", "avx512_vnni") if f in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")]
            return f"{line.split(':')[1].strip()}, {' '.join(flags)}"
    return platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--depth", type=int, default=512)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kv", action="append", help="settings of tersor's cache (default: full, turboquant:4, recommended)")
    parser.add_argument("--precision", default="int16", help="of tersor's linear layers: int16 or exact (default: %(default)s)")
    parser.add_argument("--mlx-steps", type=int, default=4, help="steps of mlx_lm a round (it takes 0.2 s a token here)")
    parser.add_argument("--peers", default="mlx_lm,llama.cpp", help="which peers take part (default: %(default)s)")
    parser.add_argument("--out")
    options = parser.parse_args()
    settings = options.kv or ["full", "turboquant:4", "recommended"]
    arms = [tersor_arms(options.model, options.depth, options.steps, settings, options.precision)]
    if "mlx_lm" in options.peers:
        arms.append(mlx_lm_arm(options.model, options.depth, options.mlx_steps))
    llama = llama_cpp_arms(options.model, options.depth, options.steps) if "llama.cpp" in options.peers else None
    if llama:
        arms.append(llama)
    rounds = paired.alternate(arms, options.rounds)
    tables = paired.tables(rounds)
    paired.show(tables)
    if options.out:
        record = {
            "depth": options.depth,
            "steps": options.steps,
            "precision_class": "same weights",
            "precision": options.precision,
            "machine": cpu_name(),
            "rounds": rounds,
            **tables,
        }
        pathlib.Path(options.out).write_text(json.dumps(record, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
