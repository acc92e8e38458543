#!/usr/bin/env python3
"""Decode speed of a model in mlx_lm with its own cache and with tersor attached, taking turns in one process.

    PYTHONPATH=build/python .venv/bin/python bench/mlx_lm_attached.py MODEL_FOLDER [--depth 2048] [--kv turboquant:4] [--rounds 5]

Precision class: same weights; only the cache and the attention over it differ. The share of a step that is attention is measured too:
the same model, the same linears, at depth 1. The figure is the median over rounds of milliseconds a token, raw samples are kept.
"""

import argparse
import json
import statistics
import time

import mlx.core as mx
import mlx_lm
import tersor
from mlx_lm.models.cache import make_prompt_cache


def prefill(model, cache, depth):
    ids = mx.arange(100, 100 + depth)[None]
    for begin in range(0, depth, 256):
        model(ids[:, begin : begin + 256], cache=cache)
        mx.eval([c.state for c in cache])


def milliseconds(model, cache, steps):
    token = mx.array([[5]])
    begin = time.perf_counter()
    for _ in range(steps):
        mx.eval(model(token, cache=cache))
    return 1e3 * (time.perf_counter() - begin) / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--depth", type=int, default=2048)
    parser.add_argument("--kv", default="turboquant:4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out")
    options = parser.parse_args()
    model, _ = mlx_lm.load(options.model)
    arms = {"mlx_lm": make_prompt_cache(model), f"tersor {options.kv}": tersor.make_cache(model, options.kv)}
    shallow = make_prompt_cache(model)
    for cache in arms.values():
        prefill(model, cache, options.depth)
    samples = {name: [] for name in (*arms, "mlx_lm at depth 1")}
    for turn in range(options.rounds):
        order = list(arms.items()) if turn % 2 == 0 else list(arms.items())[::-1]
        for name, cache in order:
            samples[name].append(milliseconds(model, cache, options.steps))
            for c in cache:
                c.trim(options.steps)
        samples["mlx_lm at depth 1"].append(milliseconds(model, shallow, options.steps))
        for c in shallow:
            c.trim(options.steps)
    result = {name: statistics.median(values) for name, values in samples.items()}
    ratios = [a / b for a, b in zip(samples["mlx_lm"], samples[f"tersor {options.kv}"])]
    for name, value in result.items():
        print(f"{name:28} {value:8.1f} ms a token")
    print(f"ratio, median of rounds      {statistics.median(ratios):8.2f}")
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            facts = {"depth": options.depth, "class": "same weights", "samples_ms": samples, "ratio": statistics.median(ratios)}
            json.dump(facts, file, indent=1)


if __name__ == "__main__":
    main()
