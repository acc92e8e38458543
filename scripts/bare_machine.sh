#!/usr/bin/env bash
# For maintainers: proves that the README's commands work on a bare Debian 12. Makes (or takes up again) a chroot with nothing but
# git, make, g++, python3 and python3-venv, clones this checkout's HEAD into it and runs the commands there, with timings.
#   scripts/bare_machine.sh FOLDER [COMMAND...]     default commands: "make test" "make run" "make build"
#   scripts/bare_machine.sh --fresh FOLDER [...]    throws an earlier chroot in FOLDER away first
# Needs root and debootstrap. The package mirror, certificates and pip settings are those of this machine.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage="usage: scripts/bare_machine.sh [--fresh] FOLDER [COMMAND...]"
original=("$@")
fresh=no
[ "${1:-}" = --fresh ] && { fresh=yes; shift; }
bare=${1:?$usage}
shift
[ $# -gt 0 ] || set -- "make test" "make run" "make build"
[ "$(id -u)" = 0 ] || die 2 "A chroot needs root: run this with sudo."
command -v debootstrap >/dev/null || die 2 "debootstrap is not installed: apt-get install debootstrap"
suite=bookworm
# In mount and process name spaces of its own nothing mounted or started here outlives the run.
[ -n "${TERSOR_BARE_INSIDE:-}" ] || TERSOR_BARE_INSIDE=1 exec unshare --mount --pid --fork "$root/scripts/bare_machine.sh" "${original[@]}"

# The first Debian archive that this machine's own apt uses.
mirror() {
  apt-get indextargets --format '$(SITE) $(REPO_URI) $(RELEASE)' 2>/dev/null |
    awk -v suite=$suite '$3 == suite {print $2; exit}'
}

make_chroot() {
  local from
  from=$(mirror)
  [ -n "$from" ] || die 2 "apt here has no source for Debian $suite (run apt-get update once)."
  say "Making a bare Debian 12 in $bare"
  debootstrap --variant=minbase --include=git,make,g++,python3,python3-venv,ca-certificates $suite "$bare" "$from" >"$bare.log" 2>&1 ||
    die 1 "debootstrap failed; see $bare.log"
  touch "$bare/.complete"
}

# What this machine needs to reach its package servers, the chroot needs too.
copy_network_settings() {
  local file
  cp -L /etc/resolv.conf /etc/hosts "$bare/etc/"
  for file in /etc/apt/apt.conf.d/*proxy* /etc/pip.conf; do
    [ -f "$file" ] && install -D -m 644 "$file" "$bare$file"
  done
  if compgen -G '/usr/local/share/ca-certificates/*.crt' >/dev/null; then
    mkdir -p "$bare/usr/local/share/ca-certificates"
    cp /usr/local/share/ca-certificates/*.crt "$bare/usr/local/share/ca-certificates/"
    chroot "$bare" update-ca-certificates >/dev/null 2>&1
  fi
  return 0
}

mount_kernel_folders() {
  mount -t proc proc "$bare/proc"
  mount --rbind /dev "$bare/dev"
}

# Only the settings a person would have: no variable of the caller's shell but those for proxies and certificates.
inside() {
  local keep=() name
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY PIP_CERT PIP_INDEX_URL SSL_CERT_FILE; do
    [ -n "${!name:-}" ] && keep+=("$name=${!name}")
  done
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb "${keep[@]}" chroot "$bare" bash -c "$1"
}

[ $fresh = yes ] && [ -e "$bare/.complete" ] && rm -rf --one-file-system "$bare"
if [ ! -e "$bare/.complete" ]; then make_chroot; fi
copy_network_settings
mount_kernel_folders
rm -rf "$bare/root/tersor"
git clone -q --no-hardlinks "$root" "$bare/root/tersor"
say "Checkout: $(git log -1 --format='%h %s')"
status=0
for command in "$@"; do
  say "== $command"
  begin=$(date +%s.%N)
  result=0
  inside "cd /root/tersor && $command" </dev/null || result=$?
  say "== $command: exit $result after $(awk -v a="$begin" -v b="$(date +%s.%N)" 'BEGIN {printf "%.1f", b - a}') s"
  [ $result = 0 ] || status=1
done
exit $status
