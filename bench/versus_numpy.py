#!/usr/bin/env python3
"""Packing and scalar quantisation of flat arrays: `tersor bench pack` against NumPy, in turns within one run.

NumPy packs in every way known here that takes codes of one byte each and gives the same bytes; its fastest counts, and the general way by
np.packbits and np.unpackbits stands beside it. Ratios are of the
medians within a round, the table shows their median."""

import argparse
import json
import pathlib
import statistics
import subprocess
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]


def pack_by_bits(codes, bits):
    return np.packbits(np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, :bits].reshape(-1), bitorder="little")


def unpack_by_bits(packed, bits, count):
    flags = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
    return np.packbits(flags, axis=1, bitorder="little")[:, 0]


def pack_by_words(codes, bits):
    """Eight codes are `bits` bytes of one 64-bit word."""
    words = codes[0::8].astype(np.uint64)
    for i in range(1, 8):
        words |= codes[i::8].astype(np.uint64) << np.uint64(i * bits)
    return np.ascontiguousarray(words.view(np.uint8).reshape(-1, 8)[:, :bits]).reshape(-1)


def unpack_by_words(packed, bits, count):
    words = np.zeros((count // 8, 8), np.uint8)
    words[:, :bits] = packed.reshape(-1, bits)
    words = words.view(np.uint64)[:, 0]
    codes = np.empty((count // 8, 8), np.uint8)
    for i in range(8):
        codes[:, i] = (words >> np.uint64(i * bits)) & np.uint64((1 << bits) - 1)
    return codes.reshape(-1)


def pack_within_bytes(codes, bits):
    """Where codes do not cross bytes."""
    each = 8 // bits
    packed = codes[0::each].copy()
    for i in range(1, each):
        packed |= codes[i::each] << np.uint8(i * bits)
    return packed


def unpack_within_bytes(packed, bits, count):
    each = 8 // bits
    codes = np.empty((count // each, each), np.uint8)
    for i in range(each):
        codes[:, i] = (packed >> np.uint8(i * bits)) & np.uint8((1 << bits) - 1)
    return codes.reshape(-1)


def milliseconds(step, repeat):
    samples = []
    for _ in range(repeat):
        begin = time.perf_counter()
        step()
        samples.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(samples)


def numpy_round(bits, count, repeat):
    """Milliseconds of each step, and the way that was fastest."""
    rng = np.random.default_rng(1)
    levels = 6 * (np.arange(1 << bits, dtype=np.float32) + 0.5) / (1 << bits) - 3
    thresholds = (levels[1:] + levels[:-1]) / 2
    x = rng.standard_normal(count, np.float32)
    codes = np.searchsorted(thresholds, x).astype(np.uint8)
    ways = {"bits": (pack_by_bits, unpack_by_bits), "words": (pack_by_words, unpack_by_words)}
    if 8 % bits == 0:
        ways["bytes"] = (pack_within_bytes, unpack_within_bytes)
    packed = pack_by_bits(codes, bits)
    steps = {
        "quantise": {"searchsorted": lambda: np.searchsorted(thresholds, x).astype(np.uint8)},
        "dequantise": {"take": lambda: levels[codes], "np.take": lambda: np.take(levels, codes)},
        "pack": {},
        "unpack": {},
    }
    for name, (pack, unpack) in ways.items():
        assert np.array_equal(pack(codes, bits), packed) and np.array_equal(unpack(packed, bits, count), codes), name
        steps["pack"][name] = lambda pack=pack: pack(codes, bits)
        steps["unpack"][name] = lambda unpack=unpack: unpack(packed, bits, count)
    return {step: {name: milliseconds(f, repeat) for name, f in some.items()} for step, some in steps.items()}


def tersor_round(tersor, bits, count, repeat):
    command = [tersor, "bench", "pack", "--bits", bits, "--count", count, "--repeat", repeat, "--json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr.strip())
    record = json.loads(done.stdout)
    return {row["name"]: row["ms"] for row in record["results"]}, record["machine"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tersor", default=ROOT / "build" / "bin" / "tersor")
    parser.add_argument("--bits", default="1,2,3,4,5,6,8", help="widths, separated by commas")
    parser.add_argument("--count", type=int, default=1_000_000, help="numbers; a multiple of 32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", help="where the samples go, as JSON")
    options = parser.parse_args()
    if options.count < 32 or options.count % 32:
        parser.error("--count must be a multiple of 32")
    record = {"count": options.count, "numpy": np.__version__, "rounds": {}, "ratios": {}}
    print(f"{'bits':4} {'step':10} {'tersor ms':>10} {'numpy ms':>10} {'ratio':>7}  numpy's fastest way")
    for bits in map(int, options.bits.split(",")):
        rounds = []
        for turn in range(options.rounds):
            arms = [
                lambda: ("tersor", tersor_round(options.tersor, bits, options.count, 30)),
                lambda: ("numpy", numpy_round(bits, options.count, 5)),
            ]
            sample = dict(arm() for arm in (arms if turn % 2 == 0 else reversed(arms)))
            sample["tersor"], record["machine"] = sample["tersor"]
            rounds.append(sample)
        record["rounds"][bits] = rounds
        record["ratios"][bits] = {}
        for step in rounds[0]["numpy"]:
            ours = [r["tersor"][step] for r in rounds]
            theirs = [min(r["numpy"][step].values()) for r in rounds]
            ratio = statistics.median(b / a for a, b in zip(ours, theirs))
            ways = rounds[0]["numpy"][step]
            record["ratios"][bits][step] = ratio
            way = min(ways, key=ways.get)
            line = f"{bits:4} {step:10} {statistics.median(ours):10.4f} {statistics.median(theirs):10.3f} {ratio:7.1f}  {way}"
            if "bits" in ways:
                general = statistics.median(r["numpy"][step]["bits"] / r["tersor"][step] for r in rounds)
                record["ratios"][bits][f"{step}, packbits"] = general
                line += f" ({general:.0f} x to np.packbits)"
            print(line)
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
