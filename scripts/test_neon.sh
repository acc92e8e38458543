#!/usr/bin/env bash
# Builds the rooms below MLX (base, codec, kernels/cpu) for 64-bit ARM and runs their tests under qemu-user. Needs Debian or Ubuntu:
# their cross compiler, and their arm64 packages, which are unpacked into build-neon/sysroot and installed nowhere.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

tools="g++-aarch64-linux-gnu qemu-user-static"
packages="libhwy-dev libhwy1 libgtest-dev libgmock-dev nlohmann-json3-dev"
folder=$root/build-neon
sysroot=$folder/sysroot

missing=$(for tool in $tools; do dpkg-query -W -f '${db:Status-Abbrev}' "$tool" 2>/dev/null | grep -q ^ii || echo "$tool"; done)
if [ -n "$missing" ]; then
  [ "$(id -u)" = 0 ] || die 2 "Not installed here: $(echo $missing). Install them, then run this again: sudo apt-get install" $missing
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null ||
    die 2 "apt-get could not install:" $missing
fi

if [ ! -e "$sysroot/.complete" ]; then
  say "Fetching arm64 packages into build-neon/sysroot"
  rm -rf "$sysroot" && mkdir -p "$sysroot" "$folder/lists/partial" "$folder/debs"
  options="-oAPT::Architecture=arm64 -oAPT::Architectures=arm64 -oDir::State::Lists=$folder/lists -oAPT::Sandbox::User=root"
  apt-get -qq $options update || die 2 "apt-get could not read the arm64 package lists."
  (cd "$folder/debs" && apt-get -qq $options download $packages >/dev/null) || die 2 "apt-get could not download: $packages"
  for deb in "$folder"/debs/*.deb; do dpkg-deb -x "$deb" "$sysroot"; done
  touch "$sysroot/.complete"
fi

rooms="base codec kernels_cpu"
[ -e "$folder/build.ninja" ] || output=$(cmake --preset neon 2>&1) || { say "$output"; die 2 "cmake could not configure build-neon."; }
ninja -C "$folder" $(printf 'test_%s ' $rooms)
scripts/test.sh neon
