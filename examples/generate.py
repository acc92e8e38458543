#!/usr/bin/env python3
"""Answers a prompt with a compressed cache: generate.py MODEL [PROMPT]"""

import sys

import mlx_lm
import tersor

model, tokenizer = mlx_lm.load(sys.argv[1])
prompt = tokenizer.apply_chat_template(
    [{"role": "user", "content": sys.argv[2] if len(sys.argv) > 2 else "What is a lighthouse?"}], add_generation_prompt=True
)
with tersor.attach(model, "turboquant:4,window=32") as report:
    print(mlx_lm.generate(model, tokenizer, prompt=prompt, max_tokens=24))
    print(report)
