#!/usr/bin/env python3
"""What every codec does to a model's logits, and what its cache takes: `tersor eval` over all of them, as a table, a JSON file and a PNG.

    .venv/bin/python bench/eval_codecs.py MODEL TEXT CALIBRATION_TEXT OUT_WITHOUT_SUFFIX

Every cache keeps its first 4 and its 24 most recent tokens in full precision. Codecs that need a calibration get one from
CALIBRATION_TEXT, kept beside the output and used again when it is there. Bytes are what the allocator holds for the cache, windows and
spare room included.
"""

import json
import pathlib
import subprocess
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

TERSOR = pathlib.Path(__file__).resolve().parents[1] / "build" / "bin" / "tersor"
WINDOW = ",window=24,sinks=4"
FAMILIES = {
    "turboquant": ["turboquant:2", "turboquant:3", "turboquant:4", "turboquant:5", "turboquant:6"],
    "turboquant, centred keys": [f"turboquant:{b},centre=256/turboquant:{b}" for b in (2, 3, 4, 5, 6)],
    "turboquant split": ["turboquant:2.5", "turboquant:3.5"],
    "turboquant-prod": ["turboquant-prod:3", "turboquant-prod:4", "turboquant-prod:5"],
    "turboquant-rvq": ["turboquant-rvq:1+1", "turboquant-rvq:2+1", "turboquant-rvq:2+2", "turboquant-rvq:4+4"],
    "qjl keys, affine:2 values": ["qjl:128/affine:2,group=32", "qjl:256/affine:2,group=32"],
    "affine, groups of 32": ["affine:2,group=32", "affine:3,group=32", "affine:4,group=32", "affine:8,group=32"],
    "affine, centred keys": [f"affine:{b},group=32,centre=256/affine:{b},group=32" for b in (2, 3, 4)],
    "affine, keys by channel (KIVI)": [f"affine:{b},group=32,axis=channel/affine:{b},group=32" for b in (2, 3, 4)],
    "mxfp": ["mxfp4", "mxfp8"],
    "vecinfer": ["vecinfer:1,sub=8", "vecinfer:1.5,sub=4", "vecinfer:2,sub=4"],
}
CALIBRATED = ("turboquant:2.5", "turboquant:3.5", "vecinfer")
TOKENS = 2048


def with_window(kv):
    keys, _, values = kv.partition("/")
    return keys + WINDOW + ("/" + values if values else "")


def calibration(model, text, kv, stem):
    path = stem.parent / f"{stem.name}-{kv.replace(':', '').replace(',', '-').replace('=', '')}.safetensors"
    if not path.exists():
        subprocess.run([TERSOR, "calibrate", "--model", model, "--text", text, "--kv", kv, "--out", path], check=True)
    return path


def evaluate(model, text, kv, files):
    command = [TERSOR, "eval", "--model", model, "--text", text, "--tokens", str(TOKENS), "--json", "--kv", with_window(kv)]
    for path in files:
        command += ["--calibration", path]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["results"][0]
    return {
        **{k: v for k, v in result.items() if not isinstance(v, (dict, list))},
        "codec": kv,
        "bytes": result["kv"]["bytes"],
        "bytes_full": result["kv"]["bytes_full"],
    }


def draw(rows, path):
    figure, axes = plt.subplots(figsize=(9, 6), layout="constrained")
    for name, family in FAMILIES.items():
        mine = [r for r in rows if r["codec"] in family]
        axes.plot([r["bytes"] / 2**20 for r in mine], [max(r["kl_mean"], 1e-6) for r in mine], marker="o", markersize=4, label=name)
    axes.set_xlabel("cache, MiB (measured)")
    axes.set_ylabel("mean KL divergence from the uncompressed cache")
    axes.set_yscale("log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=120)


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    model, text, calibration_text, stem = sys.argv[1], sys.argv[2], sys.argv[3], pathlib.Path(sys.argv[4])
    stem.parent.mkdir(parents=True, exist_ok=True)
    record = stem.with_suffix(".json")
    about = {
        "model": pathlib.Path(model).name,
        "text": pathlib.Path(text).name,
        "tokens": TOKENS,
        "calibration_text": pathlib.Path(calibration_text).name,
    }
    rows = []
    for kv in (kv for family in FAMILIES.values() for kv in family):
        files = [calibration(model, calibration_text, kv, stem)] if kv.startswith(CALIBRATED) else []
        rows.append(evaluate(model, text, kv, files))
        r = rows[-1]
        print(
            f"{kv:45} {r['bytes'] / 2**20:6.2f} MiB {r['bytes'] / r['bytes_full']:.3f}  top-1 {100 * r['top1_agreement']:6.2f} %"
            f"  KL {r['kl_mean']:.5f}  perplexity {r['perplexity']:.2f} ({r['perplexity_full']:.2f})",
            flush=True,
        )
        record.write_text(json.dumps({**about, "results": rows}, indent=1))
    draw(rows, stem.with_suffix(".png"))


if __name__ == "__main__":
    main()
