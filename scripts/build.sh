#!/usr/bin/env bash
# Configures a preset where that is needed and builds it: scripts/build.sh PRESET [TARGET...]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=${1:?usage: scripts/build.sh PRESET [TARGET...]}
shift
folder=build-$preset
[ "$preset" = release ] && folder=build

cached() { sed -n "s/^$1:[A-Z]*=//p" "$folder/CMakeCache.txt" 2>/dev/null || true; }

# A folder that was configured for another place or with an MLX that is gone cannot be mended by CMake.
if [ -e "$folder/CMakeCache.txt" ]; then
  mlx=$(cached MLX_ROOT)
  if [ "$(cached CMAKE_HOME_DIRECTORY)" != "$root" ] || { [ -n "$mlx" ] && [ ! -d "$mlx" ]; }; then
    say "$folder was configured elsewhere; making it anew."
    rm -rf "$folder"
  fi
fi
if [ ! -e "$folder/build.ninja" ]; then
  output=$(cmake --preset "$preset" 2>&1) || { say "$output"; die 2 "cmake could not configure $folder (its message is above)."; }
fi
ninja -C "$folder" "$@"
