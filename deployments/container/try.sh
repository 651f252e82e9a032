#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Starts the programs of an image for another architecture, each with --version, under an
# emulator of Debian's qemu-user-static:
#
#   try.sh ARCHIVE MACHINE     MACHINE as qemu names it, such as aarch64
#
# It shows that they find their C library in the image. NVML and GPUs are not there.
set -eu

fail() {
	echo "image $archive: $1" >&2
	exit 1
}

archive=$1
emulator=qemu-$2-static
command -v "$emulator" >/dev/null || fail "$emulator is missing: install qemu-user-static"
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir "$root/archive" "$root/image"
tar -xf "$archive" -C "$root/archive"
# The layer is the largest of the blobs.
layer=$(ls -S "$root/archive/blobs/sha256" | head -n 1)
tar -xf "$root/archive/blobs/sha256/$layer" -C "$root/image"
for program in gpu-kubelet-plugin gpu-mps-supervisor gpu-compat-controller; do
	said=$("$emulator" -L "$root/image" "$root/image/usr/bin/$program" --version) || fail "$program does not start"
	echo "$said"
done
