#!/usr/bin/env python3
"""What becomes of every model family of mlx_lm when its caches are compressed: docs/models.md.

    .venv/bin/python scripts/families.py            # all, rewrites docs/models.md
    .venv/bin/python scripts/families.py --check    # all, fails where the page says something else
    .venv/bin/python scripts/families.py llama gpt2 # these only, prints

Every model file is built as a tiny random model and attached with affine:8. It then takes a prompt in chunks and decodes, takes tokens
back and goes on, and decodes a batch of three lengths; logits are compared with those of the model's own caches. A claim of compression
is checked: the logits must differ from the uncompressed ones by more than rounding, and the caches must hold fewer bytes.
"""

import argparse
import dataclasses
import os
import sys
import time
from pathlib import Path

import family_configs

os.environ.setdefault("MLX_DISABLE_COMPILE", "1")  # on a CPU mx.compile runs g++ for every fused kernel

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / os.environ.get("TERSOR_BUILD", "build") / "python"))
PROMPT, STEPS, TRIM = 23, 8, 5
# Random weights have flat logits; affine:8 moves them by about 1e-2 of their spread, and a cache that mixes up tokens by much more.
CLOSE = 0.15
KV = "affine:8,group=32"


@dataclasses.dataclass
class Row:
    """One line of the table."""

    name: str
    verdict: str = ""  # compressed, partly, declined, or why it cannot be tried
    compressed: int = 0
    caches: int = 0
    reasons: tuple = ()
    batch: str = ""
    worst: float = 0.0
    fault: str = ""


def distance(a, b):
    """Largest difference of logits over their spread, of the median row: another expert chosen makes a few rows jump."""
    import mlx.core as mx

    rows = mx.sort(mx.abs(a - b).max(axis=-1) / (mx.std(b, axis=-1) + 1e-9))
    return float(rows[rows.shape[0] // 2])


def single(model, caches, trim):
    """Logits of a prompt in two chunks, eight steps, and after a rewind; [positions, vocabulary]."""
    import mlx.core as mx

    ids = [(7 * i + 3) % 100 for i in range(PROMPT + STEPS)]
    rows = []
    for begin, end in ((0, 7), (7, PROMPT), *((i, i + 1) for i in range(PROMPT, PROMPT + STEPS))):
        rows.append(model(mx.array([ids[begin:end]]), cache=caches)[0, -1:].astype(mx.float32))
        mx.eval(rows[-1])
    if trim:
        for cache in caches:
            cache.trim(TRIM)
        rows.append(model(mx.array([ids[-TRIM:]]), cache=caches)[0, -1:].astype(mx.float32))
    return mx.concatenate(rows)


def batched(model):
    """Last logits of three sequences of different lengths run together, and each alone."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    prompts = [[(11 * i + 5 + n) % 100 for i in range(n)] for n in (3, 12, 17)]
    singles = [make_prompt_cache(model) for _ in prompts]
    lengths = [len(p) for p in prompts]
    padding = [max(lengths) - n for n in lengths]
    batch = [singles[0][i].merge([c[i] for c in singles]) for i in range(len(singles[0]))]
    for cache in batch:
        cache.prepare(lengths=lengths, right_padding=padding)
    model(mx.array([p + [0] * pad for p, pad in zip(prompts, padding)]), cache=batch)
    for cache in batch:
        cache.finalize()
    together = [model(mx.array([[4], [4], [4]]), cache=batch)[:, -1] for _ in range(2)][-1]
    alone = []
    for prompt, cache in zip(prompts, singles):
        model(mx.array([prompt]), cache=cache)
        alone.append([model(mx.array([[4]]), cache=cache)[0, -1] for _ in range(2)][-1])
    return together.astype(mx.float32), mx.stack(alone).astype(mx.float32)


def try_batch(model):
    """ "same", or what went wrong in words; models that cannot batch at all fail alike with their own caches."""
    try:
        together, alone = batched(model)
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0][:100] if str(error) else ""
    far = distance(together, alone)
    return ("same", "") if far < 1e-2 else ("differs", f"{far:.2g}")


def examine(name):
    """Everything that can be said about one model file."""
    import mlx.core as mx
    import tersor
    from mlx_lm.models.cache import make_prompt_cache

    row = Row(name)
    try:
        module = family_configs.import_family(name)
    except BaseException as error:  # a file may end the program when a package is missing
        row.verdict = f"cannot be imported here ({type(error).__name__})"
        return row
    if not (hasattr(module, "Model") and hasattr(module, "ModelArgs")):
        row.verdict = "no model"
        return row
    try:
        model = family_configs.build(name)
        native = make_prompt_cache(model)
        trimmable = all(cache.is_trimmable() for cache in native)
        expected = single(model, native, trimmable)
        mx.eval(expected)
    except Exception as error:
        row.verdict = f"cannot run here ({type(error).__name__}: {str(error).splitlines()[0][:70] if str(error) else ''})"
        return row
    native_batch = try_batch(model)
    report = tersor.attach(model, KV, fallback=True)
    with report:
        row.compressed, row.caches = len(report.replaced), len(report.decisions)
        row.reasons = tuple(sorted({d.reason for d in report.declined}))
        row.verdict = "declined" if not report else "compressed" if row.compressed == row.caches else "partly"
        if not report:
            return row
        caches = make_prompt_cache(model)
        found = single(model, caches, trimmable)
        row.worst = distance(found, expected)
        if not row.worst < CLOSE and bool(mx.isfinite(expected).all()):
            row.fault = f"logits differ by {row.worst:.2g} of their spread"
        elif row.worst == 0:
            row.fault = "logits equal the uncompressed ones: bypassed"
        for measured, own, decision in zip(tersor.Report.measure(caches), tersor.Report.measure(native), report.decisions):
            if decision.compressed and measured.tokens != PROMPT + STEPS:
                row.fault = f"{measured.name} holds {measured.tokens} tokens, not {PROMPT + STEPS}"
            if decision.compressed and measured.nbytes >= own.nbytes:
                row.fault = f"{measured.name} holds {measured.nbytes} bytes, the model's own cache {own.nbytes}"
        ours = try_batch(model)
        row.batch = ours[0] if ours[0] == "same" else f"{ours[0]} {ours[1]}".strip()
        if ours[0] != "same" and native_batch[0] == "same":
            row.fault = row.fault or f"batch: {row.batch}"
        elif ours[0] != "same":
            row.batch = "not with mlx_lm's own caches either"
    return row


def table(rows):
    """docs/models.md."""
    models = [r for r in rows if r.verdict != "no model"]
    runnable = [r for r in models if r.verdict in ("compressed", "partly", "declined")]
    count = {v: sum(r.verdict == v for r in runnable) for v in ("compressed", "partly", "declined")}
    good = count["compressed"] + count["partly"]
    lines = [
        "# Model families",
        "",
        "Every model file of mlx_lm 0.32.2, built as a tiny random model, attached, run in chunks, decoded, rewound and batched, its",
        "logits compared with those of its own caches. Made by `.venv/bin/python scripts/families.py`, and checked by the tests.",
        "",
        f"{len(rows)} files, {len(models)} of them models; {len(runnable)} run on this machine: {count['compressed']} compressed, "
        f"{count['partly']} partly (what is not is a sliding window or a recurrent state), {count['declined']} declined. "
        f"That is {100 * good / max(1, len(runnable)):.0f} % with compressed caches.",
        "",
        "| file | caches compressed | the others | batch equals rows alone |",
        "|---|---|---|---|",
    ]
    for r in models:
        done = f"{r.compressed} of {r.caches}" if r.caches else r.verdict
        lines.append(f"| {r.name} | {done} | {'; '.join(r.reasons).replace('|', '/')} | {r.batch} |")
    others = ", ".join(r.name for r in rows if r.verdict == "no model")
    return "\n".join([*lines, "", f"Files that hold no model: {others}.", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="model files; all when none is given")
    parser.add_argument("--check", action="store_true", help="compare with docs/models.md instead of writing it")
    options = parser.parse_args()
    names = options.names
    known = family_configs.model_files()
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"{', '.join(unknown)}: mlx_lm has no such model file")
    rows = []
    for name in names or known:
        begin = time.monotonic()
        row = examine(name)
        rows.append(row)
        facts = f"{row.compressed}/{row.caches} {row.worst:.3g} {time.monotonic() - begin:.1f}s {row.batch} {row.fault}"
        print(f"{row.name:26} {row.verdict:12} {facts} {'; '.join(row.reasons)}", flush=True)
    faults = [row for row in rows if row.fault]
    for row in faults:
        print(f"FAULT {row.name}: {row.fault}", file=sys.stderr)
    page = ROOT / "docs/models.md"
    if options.check and page.read_text(encoding="utf-8") != table(rows):
        print("docs/models.md says something else; run scripts/families.py without --check and look at what changed", file=sys.stderr)
        return 1
    if not names and not options.check:
        page.write_text(table(rows), encoding="utf-8")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
