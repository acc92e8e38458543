#!/usr/bin/env bash
# Removes the build folders that the presets make.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
rm -rf build build-dev build-asan build-tsan build-cuda
