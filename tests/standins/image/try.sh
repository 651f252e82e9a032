#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes a driver root with the programs of the image for arm64, which build.sh has built, and has the
# driver's own code for arm64 read the GPUs there, under an emulator of Debian's qemu-user-static:
#
#   try.sh OUT
set -eu
programs=$(realpath "$1")/simulated-arm64
cd "$(dirname "$0")/../../.."
emulator=qemu-aarch64-static
# Where Debian's cross compiler has its C library.
libraries=/usr/aarch64-linux-gnu
command -v "$emulator" >/dev/null || {
	echo "simulated GPUs: $emulator is missing: install qemu-user-static" >&2
	exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$emulator" "$programs/simnode" --machine demo/machines/v100x4.yaml --root "$work/driver" --node n1 \
	--nvml "$programs/libnvidia-ml.so" --mps-control "$programs/mpsstandin"
CC=aarch64-linux-gnu-gcc CGO_ENABLED=1 GOARCH=arm64 GOWORK=off \
	go test -c -vet=off -ldflags=-w -o "$work/reader" ./tests/standins/nvmllib
# With that variable the tests' program opens the library of a driver root, and answers.
echo '{"What":"read"}' | NVMLLIB_TEST_ROOT=$work/driver "$emulator" -L "$libraries" "$work/reader" >"$work/read"
read=$(grep -o 'Tesla V100-SXM2-16GB' "$work/read" | wc -l)
[ "$read" -eq 4 ] || {
	cat "$work/read" >&2
	echo "simulated GPUs: code for arm64 reads $read GPUs of four" >&2
	exit 1
}
echo "simulated GPUs: code for arm64 reads four $(grep -o 'Tesla V100[^"]*' "$work/read" | head -n 1)"
