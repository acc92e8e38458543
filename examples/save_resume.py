#!/usr/bin/env python3
"""Reads a prompt, saves its cache, and goes on from the file: save_resume.py MODEL CACHE.safetensors"""

import sys

import mlx_lm
import tersor
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache

model, tokenizer = mlx_lm.load(sys.argv[1])
cache = tersor.make_cache(model, "turboquant:4")
first = mlx_lm.generate(model, tokenizer, prompt="The harbour was quiet until", max_tokens=8, prompt_cache=cache)
save_prompt_cache(sys.argv[2], cache)

resumed = load_prompt_cache(sys.argv[2])
print(first + mlx_lm.generate(model, tokenizer, prompt=" and then", max_tokens=8, prompt_cache=resumed))
