#!/usr/bin/env python3
"""Draws what `tersor bench --json` measured: one PNG beside each JSON file of a folder, and the figures as a table on the terminal.

    .venv/bin/python bench/charts.py FOLDER
"""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def series(rows, name, x, y):
    """{name: ([x...], [y...])} in the order in which the names come."""
    found = {}
    for row in rows:
        xs, ys = found.setdefault(name(row), ([], []))
        xs.append(x(row))
        ys.append(y(row))
    return found


def lines(axes, data, xlabel, ylabel, log=False):
    for name, (xs, ys) in data.items():
        axes.plot(xs, ys, marker="o", label=name)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
    axes.set_ylim(bottom=None if log else 0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def draw_decode(record, figure):
    left, right = figure.subplots(1, 2)
    rows = record["results"]
    decode = series(rows, lambda r: r["kv"], lambda r: r["depth"], lambda r: r["decode_tok_s"])
    lines(left, decode, "tokens in the cache", "decode, tokens/s")
    prompts = [r for r in rows if r["depth"] > 0]
    prefill = series(prompts, lambda r: r["kv"], lambda r: r["depth"], lambda r: r["prefill_tok_s"])
    lines(right, prefill, "prompt tokens", "prefill, tokens/s")


def draw_linear(record, figure):
    left, right = figure.subplots(1, 2)
    rows = record["results"]
    label = lambda r: f"{r['shape']} {r['precision']}"  # noqa: E731
    lines(left, series(rows, label, lambda r: r["rows"], lambda r: r["gop_s"]), "rows", "Gop/s", log=True)
    for limit, name in (("float_gop_s", "float peak"), ("integer_gop_s", "integer peak")):
        left.axhline(record[limit], linestyle="--", color="grey", linewidth=0.8)
        left.annotate(name, (1, record[limit]), fontsize=7)
    single = [r for r in rows if r["rows"] == 1]
    right.barh([label(r) for r in single], [100 * r["of_read"] for r in single])
    right.set_xlabel(f"one row: weight bytes a second, % of a streaming read ({record['read_gb_s']:.1f} GB/s)")
    right.tick_params(axis="y", labelsize=6)


def draw_attention(record, figure):
    axes = figure.subplots()
    data = series(record["results"], lambda r: r["kv"], lambda r: r["depth"], lambda r: 1e3 * r["attend_ms"])
    lines(axes, data, "tokens in the cache", "one layer's attention, us")


DRAW = {"decode": draw_decode, "linear": draw_linear, "attention": draw_attention}
COLUMNS = {
    "decode": ("kv", "depth", "prefill_tok_s", "decode_tok_s", "kv_bytes"),
    "linear": ("shape", "precision", "rows", "ms", "of_read", "of_peak"),
    "attention": ("kv", "depth", "attend_ms", "gb_s"),
}


def table(record):
    columns = COLUMNS[record["benchmark"]]
    cells = [columns] + [[f"{r[c]:.3f}" if isinstance(r[c], float) else str(r[c]) for c in columns] for r in record["results"]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in cells)


def main():
    if len(sys.argv) != 2 or not pathlib.Path(sys.argv[1]).is_dir():
        sys.exit("usage: charts.py FOLDER with JSON files of tersor bench")
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        figure = plt.figure(figsize=(12, 5), layout="constrained")
        machine = record["machine"]
        figure.suptitle(f"{path.stem}: {machine['cpu']}, {machine['simd']}, {machine['threads']} threads", fontsize=9)
        DRAW[record["benchmark"]](record, figure)
        figure.savefig(path.with_suffix(".png"), dpi=120)
        plt.close(figure)
        print(f"{path.stem}\n{table(record)}\n")


if __name__ == "__main__":
    main()
