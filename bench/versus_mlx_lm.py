#!/usr/bin/env python3
"""A whole model of random weights in tersor and in mlx_lm: one shape, one weight format, taking turns in one run on MLX's default device.

    .venv/bin/python bench/versus_mlx_lm.py --shape llama-3.2-1b --weights affine:4 --depth 1024,32768 --kv full --kv turboquant:4
        [--prefill 8192] [--rounds 3] [--steps 32] [--mlx-lm FOLDER] [--out FILE.json]

Precision class: same weights, that is, as many bits in the same format; activations meet them as tersor's report says, in mlx_lm in
bfloat16 (float16 for --weights f16). Caches are filled with random keys and values up to each depth. The next step's input is the
likeliest token of the last one; mlx_lm runs one step ahead as its own generate does. A process of tersor each round makes the same
model anew. The figure is the median over rounds of tokens per second, raw samples are kept, and ratios are medians of the ratios
within a round.

Of mlx_lm only mlx_lm.models is imported, which needs mlx alone: no transformers, no tokenizers, no network. --mlx-lm names the folder
that holds the package where it is not installed.
"""

import argparse
import importlib
import importlib.util
import json
import pathlib
import platform
import subprocess
import sys
import time
import types

import paired

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODULES = {"mistral": "llama"}  # families that mlx_lm runs with the code of another


def whole_list(text):
    return [int(word) for word in text.split(",") if word]


class Tersor:
    """`tersor bench model`, all settings and depths in one process a round."""

    def __init__(self, options):
        self.command = [options.tersor, "bench", "model", "--shape", options.shape, "--weights", options.weights, "--json"]
        self.command += ["--depth", options.depth, "--steps", str(options.steps), "--repeat", "1", "--precision", options.precision]
        for setting in options.kv:
            self.command += ["--kv", setting]
        if options.prefill:
            self.command += ["--prefill", options.prefill]
        if options.chunk:
            self.command += ["--chunk", str(options.chunk)]
        self.reports = []

    def measure(self):
        done = subprocess.run(self.command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr.strip() or f"{self.command[0]} ended with status {done.returncode}")
        report = json.loads(done.stdout)
        self.reports.append(report)
        samples = {}
        for row in report["results"]:
            samples.setdefault(f"tersor {row['kv']}", {})[f"decode {row['depth']}"] = row["decode_tok_s"]
        for row in report["prefill"]:
            samples.setdefault(f"tersor {row['kv']}", {})[f"prefill {row['tokens']}"] = row["prefill_tok_s"]
        return samples


def import_models(folder, family):
    """The modules of mlx_lm.models, without running mlx_lm/__init__.py, which imports far more than models need."""
    if folder:
        sys.path.insert(0, str(folder))
    found = importlib.util.find_spec("mlx_lm")
    if found is None:
        sys.exit("mlx_lm is not installed: pip install mlx-lm, or name the folder that holds it with --mlx-lm")
    package = types.ModuleType("mlx_lm")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["mlx_lm"] = package
    names = (f"models.{MODULES.get(family, family)}", "models.cache", "_version")
    return [importlib.import_module(f"mlx_lm.{name}") for name in names]


class MlxLm:
    """The same shape in mlx_lm, made when tersor has said what the shape is."""

    CHUNK = 2048  # of mlx_lm's own prefill

    def __init__(self, options, tersor):
        self.options, self.tersor, self.network = options, tersor, None

    def make(self):
        import mlx.core as mx
        import mlx.nn as nn

        config = self.tersor.reports[0]["config"]
        family, self.caches, version = import_models(self.options.mlx_lm, config["model_type"])
        self.version, self.mx, self.config = version.__version__, mx, config
        self.dtype = mx.float16 if self.options.weights == "f16" else mx.bfloat16
        network = family.Model(family.ModelArgs.from_dict(config))
        network.set_dtype(self.dtype)
        if "bits" in config.get("quantization", {}):
            nn.quantize(network, **config["quantization"])
        mx.eval(network.parameters())
        self.network = network
        self.prompts = {depth: self.filled(depth) for depth in whole_list(self.options.depth)}

    def filled(self, depth):
        mx, config = self.mx, self.config
        layers = [self.caches.KVCache() for _ in range(config["num_hidden_layers"])]
        if depth:
            shape = (1, config["num_key_value_heads"], depth, config["head_dim"])
            keys, values = (mx.random.normal(shape).astype(self.dtype) for _ in range(2))
            for layer in layers:
                layer.update_and_fetch(keys, values)
                mx.eval(layer.state)
        self.decode(layers, 2)  # loads code and pages
        return layers

    def decode(self, layers, steps):
        """Seconds of `steps` greedy steps; the caches are left as they were."""
        mx = self.mx

        def step(token):
            token = mx.argmax(self.network(token, cache=layers)[:, -1], axis=-1)[:, None]
            mx.async_eval(token)
            return token

        token = mx.array([[0]])
        mx.synchronize()
        begin = time.perf_counter()
        token = step(token)
        for _ in range(steps - 1):
            following = step(token)
            token.item()
            token = following
        token.item()
        seconds = time.perf_counter() - begin
        for layer in layers:
            layer.trim(steps)
        return seconds

    def prefill(self, tokens):
        mx = self.mx
        layers = [self.caches.KVCache() for _ in range(self.config["num_hidden_layers"])]
        prompt = mx.random.randint(0, self.config["vocab_size"], (1, tokens))
        mx.eval(prompt)
        mx.synchronize()
        begin = time.perf_counter()
        for done in range(0, tokens, self.CHUNK):
            logits = self.network(prompt[:, done : done + self.CHUNK], cache=layers)
            mx.eval([layer.state for layer in layers])
        mx.eval(logits[:, -1])
        return time.perf_counter() - begin

    def measure(self):
        if self.network is None:
            self.make()
        steps = self.options.mlx_steps or self.options.steps
        samples = {f"decode {depth}": steps / self.decode(layers, steps) for depth, layers in self.prompts.items()}
        for tokens in whole_list(self.options.prefill):
            samples[f"prefill {tokens}"] = tokens / self.prefill(tokens)
        return {"mlx_lm": samples}


def driver_version():
    """Of the NVIDIA driver; None without one."""
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.split("\n")[0].strip() or None


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True)
    parser.add_argument("--weights", default="affine:4", help="affine:4 and so on, bf16 or f16 (default: %(default)s)")
    parser.add_argument("--depth", default="512", help="tokens in the caches, separated by commas (default: %(default)s)")
    parser.add_argument("--prefill", default="", help="lengths of prompts to measure (default: none)")
    parser.add_argument("--kv", action="append", help="settings of tersor's cache (default: full, turboquant:4)")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--mlx-steps", type=int, help="steps of mlx_lm a round, where it is slow (default: --steps)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunk", type=int, help="prompt tokens that tersor processes at a time")
    parser.add_argument("--precision", default="int16", help="of tersor's linear layers on a CPU: int16 or exact (default: %(default)s)")
    parser.add_argument("--tersor", default=str(ROOT / "build/bin/tersor"), help="the program (default: %(default)s)")
    parser.add_argument("--mlx-lm", type=pathlib.Path, metavar="FOLDER", help="folder that holds the package mlx_lm")
    parser.add_argument("--out", help="JSON with raw samples")
    options = parser.parse_args()
    options.kv = options.kv or ["full", "turboquant:4"]
    return options


def main():
    options = parse_options()
    tersor = Tersor(options)
    peer = MlxLm(options, tersor)
    rounds = paired.alternate([tersor.measure, peer.measure], options.rounds)
    tables = paired.tables(rounds)
    paired.show(tables)
    report = tersor.reports[-1]
    if options.out:
        record = {
            "benchmark": "versus mlx_lm",
            "shape": options.shape,
            "weights": report["weights"],
            "precision_class": report["precision_class"],
            "filled": "random",
            "steps": options.steps,
            "mlx_lm": peer.version,
            "mlx": peer.mx.__version__,
            "python": platform.python_version(),
            "driver": driver_version(),
            "machine": report["machine"],
            "kernels": report["kernels"],
            "rounds": rounds,
            "tables": tables,
            "tersor": tersor.reports,
        }
        pathlib.Path(options.out).write_text(json.dumps(record, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
