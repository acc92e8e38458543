#!/usr/bin/env bash
# mlx_lm's server with compressed caches: server.sh MODEL [PORT]
exec "${PYTHON:-python3}" -m tersor serve --model "$1" --port "${2:-8080}" --kv turboquant:4
