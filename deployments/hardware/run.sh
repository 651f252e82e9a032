#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tries the GPU driver on this machine's GPUs, in a cluster of its own, and writes a
# report. Everything it needs is in this directory. ./run --help says what it takes,
# docs/hardware.md of the repository what it does.
#
#   ./run [--report FILE] [--logs FILE] …
#   ./run down        ends what a run has left that was killed
#
# GPU_BUNDLE_WORK is a directory to unpack into: one that does not exist, with a short
# path; by default "work" beside this script. It is removed at the end. One that holds files
# of others is refused.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=${GPU_BUNDLE_WORK:-$here/work}
# Says that a run made the directory, also where it was killed before all was unpacked.
mark=$work/.unpacked-by-gpu-bundle
# What is unpacked, and what a run takes beside it.
needed=$(cat "$here/NEEDED-MIB")

refuse() {
	echo "gpu-bundle: this machine cannot be used as it is; nothing was changed" >&2
	echo "- $1" >&2
	exit 2
}

# Removes what was unpacked, "complete" first and the mark, which * leaves out, last: who is killed meanwhile leaves
# what ./run down takes for a run's, and starts nothing of.
remove() {
	rm -rf "$work/complete" "$work"/*
	rm -rf "$work"
}

# Removes what a run has left, and nothing of others. "work" beside this script is a run's, marked or not.
remove_left() {
	[ -e "$work" ] || return 0
	[ -z "${GPU_BUNDLE_WORK:-}" ] || [ -e "$mark" ] || rmdir "$work" 2>/dev/null ||
		refuse "$work holds files that are not of a run: name a directory that does not exist by GPU_BUNDLE_WORK"
	remove
}

start() {
	exec "$work/lib/ld.so" --library-path "$work/lib" "$work/bin/gpubundle" --payload "$work" "$@"
}

[ "$(uname -sm)" = "Linux x86_64" ] || refuse "it is $(uname -sm), the programs here are for Linux x86_64"
[ "$(id -u)" = 0 ] || refuse "uid $(id -u) may not make namespaces, mounts and control groups: run it as root"
case "${1:-}" in
down)
	[ ! -e "$work/complete" ] || start down
	remove_left
	echo "gpu-bundle: nothing of a run is left in $work" >&2
	exit 0
	;;
esac
if [ -e "$work/complete" ]; then
	refuse "an earlier run was killed, or is still under way, in $work: end it with ./run down"
fi
remove_left
parent=$(dirname "$work")
free=$(df -Pm "$parent" | { read -r _; read -r _ _ _ free _; echo "$free"; })
[ "$free" -ge "$needed" ] ||
	refuse "$free MiB are free in $parent, a run takes $needed: make room, or name another directory by GPU_BUNDLE_WORK"

mkdir "$work"
trap remove EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
: >"$mark"
# Its own unpacker and C library: the machine may have neither xz nor this one.
"$here/lib/ld.so" --library-path "$here/lib" "$here/lib/xz" --decompress --stdout "$here/payload.tar.xz" | tar -xf - -C "$work" || true
[ -e "$work/complete" ] || refuse "the archive is damaged: $here/payload.tar.xz could not be unpacked to its end"
trap - EXIT INT TERM
start "$@"
