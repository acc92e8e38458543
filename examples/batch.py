#!/usr/bin/env python3
"""Answers several prompts of different lengths at once: batch.py MODEL"""

import sys

import mlx_lm
import tersor

model, tokenizer = mlx_lm.load(sys.argv[1])
prompts = [tokenizer.encode(text) for text in ("A lighthouse is", "In the north of the country there is a", "One, two, three,")]
with tersor.attach(model, "turboquant:4"):
    answer = mlx_lm.batch_generate(model, tokenizer, prompts=prompts, max_tokens=8)
for text in answer.texts:
    print(repr(text))
