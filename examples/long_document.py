#!/usr/bin/env python3
"""Reads a document in chunks and says what its cache takes: long_document.py MODEL FILE [TOKENS]"""

import sys

import mlx.core as mx
import mlx_lm
import tersor
from mlx_lm.models.cache import make_prompt_cache

model, tokenizer = mlx_lm.load(sys.argv[1])
tokens = tokenizer.encode(open(sys.argv[2], encoding="utf-8").read())[: int(sys.argv[3]) if len(sys.argv) > 3 else 2000]


def read(cache):
    for begin in range(0, len(tokens), 256):
        model(mx.array(tokens[begin : begin + 256])[None], cache=cache)
        mx.eval([c.state for c in cache])
    return sum(row.nbytes for row in tersor.Report.measure(cache))


full = read(make_prompt_cache(model))
compressed = read(tersor.make_cache(model, "turboquant:4"))
print(f"{len(tokens)} tokens: {compressed} bytes, {compressed / full:.2f} of the model's own cache")
