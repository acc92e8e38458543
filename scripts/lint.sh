#!/usr/bin/env bash
# scripts/lint.sh format   rewrites C++ sources with clang-format
# scripts/lint.sh check    says which sources that would change, then runs clang-tidy over the release build
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

mapfile -d '' sources < <(find include src tests -name '*.h' -print0 -o -name '*.cpp' -print0 | sort -z)
case ${1:-} in
  format) clang-format -i "${sources[@]}" ;;
  check)
    status=0
    clang-format --dry-run -Werror "${sources[@]}" || status=1
    mapfile -d '' units < <(find src tests -name '*.cpp' -print0 | sort -z)
    printf '%s\0' "${units[@]}" |
      xargs -0 -n 1 -P "$(nproc)" clang-tidy -p build --quiet 2> >(grep -v 'warnings\? generated' >&2) || status=1
    [ $status = 0 ] && say "Layout and clang-tidy: nothing to complain about."
    exit $status
    ;;
  *) die 2 "usage: scripts/lint.sh format|check" ;;
esac
