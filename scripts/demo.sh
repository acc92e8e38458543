#!/usr/bin/env bash
# What the program does, on a small model: an answer from a compressed cache, and what compressing changed.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

exec .venv/bin/python scripts/demo.py "$@"
