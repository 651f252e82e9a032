#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds what is in the image that makes a node one with simulated GPUs, and prints it, a line
# SOURCE=PATH for each file:
#
#   files.sh OUT [ARCH]    builds in OUT/simulated, or in OUT/simulated-ARCH for another
#                          architecture than this machine's
#
# For another architecture it takes Debian's cross compiler (for arm64: gcc-aarch64-linux-gnu).
# The image has the command simnode, what it installs as the node's NVML library and MPS control
# program, and the machine files of demo/machines.
set -eu

mkdir -p "$1"
out=$(cd "$1" && pwd)
checkout=$(cd "$(dirname "$0")/../../.." && pwd)

host=$(go env GOHOSTARCH)
arch=${2:-$host}
image=$out/simulated
if [ "$arch" != "$host" ]; then
	case $arch in
	amd64) CC=x86_64-linux-gnu-gcc ;;
	arm64) CC=aarch64-linux-gnu-gcc ;;
	*)
		echo "simulated GPUs: architecture $arch is none of amd64 and arm64" >&2
		exit 1
		;;
	esac
	export CC
	image=$out/simulated-$arch
fi
mkdir -p "$image"
# With the flags of the driver's image, whose packages are compiled already.
export GOFLAGS="-buildvcs=false -trimpath -gcflags=all=-dwarf=false -tags=netgo,osusergo,grpcnotrace,urfave_cli_no_template"
echo "simulated GPUs: building simnode, mpsstandin and libnvidia-ml.so" >&2
# The image has no C library, nor has the root below which the node runs mpsstandin. Of NVML simnode takes the names:
# it opens no library, though the linker warns of a dlopen.
CGO_ENABLED=1 GOARCH=$arch GOWORK=off go build -C "$checkout" -ldflags '-s -w -extldflags -static' \
	-o "$image/simnode" ./tests/standins/sim/simnode 2>"$image/simnode.log" || {
	cat "$image/simnode.log" >&2
	exit 1
}
CGO_ENABLED=0 GOARCH=$arch GOWORK=off go build -C "$checkout" -ldflags '-s -w' -o "$image/mpsstandin" ./tests/standins/mps
"$checkout/tests/standins/nvmllib/build.sh" "$image/libnvidia-ml.so"

for file in simnode mpsstandin libnvidia-ml.so; do
	echo "$image/$file=/usr/bin/$file"
done
for machine in "$checkout"/demo/machines/*.yaml; do
	echo "$machine=/machines/$(basename "$machine")"
done
