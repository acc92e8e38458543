#!/usr/bin/env python3
"""How far settings move a model's logits on a text: evaluate.py MODEL FILE [TOKENS]"""

import sys

import mlx_lm
import tersor

model, tokenizer = mlx_lm.load(sys.argv[1])
text = open(sys.argv[2], encoding="utf-8").read()
limit = int(sys.argv[3]) if len(sys.argv) > 3 else 500
for result in tersor.evaluate(model, tokenizer, text, ["affine:8", "turboquant:4", "turboquant:2"], limit=limit):
    print(result)
