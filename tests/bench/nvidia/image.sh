#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds NVIDIA's DRA driver from a checkout of kubernetes-sigs/dra-driver-nvidia-gpu, and an image
# of it, in BUILD/bench:
#
#   image.sh CHECKOUT BUILD
#
# It takes what its vendor folder has: nothing is downloaded. NVIDIA's toolkit's hook is that of
# BUILD/bench.
set -eu

out=$2/bench
program=$out/nvidia-gpu-kubelet-plugin
echo "bench: building NVIDIA's driver" >&2
CGO_ENABLED=1 GOFLAGS=-mod=vendor GOWORK=off go build -C "$1" -ldflags '-s -w -extldflags -Wl,-z,lazy' -o "$program" \
	./cmd/gpu-kubelet-plugin 2>"$program.log" || { cat "$program.log" >&2; exit 1; }

# It opens NVML, which needs a C library, as this repository's driver does.
linked=$(ldd "$program" | sed -n -e 's/.*=> \(\/[^ ]*\) .*/\1/p' -e 's/^[[:space:]]*\(\/[^ ]*\) .*/\1/p')
beside=$(dirname "$(printf '%s\n' "$linked" | grep '/libc\.so\.')")
set -- --file "$program=/nvidia/gpu-kubelet-plugin:0755" --file "$out/nvidia-cdi-hook=/usr/bin/nvidia-cdi-hook:0755"
for library in $linked "$beside/libm.so.6" "$beside/libdl.so.2" "$beside/libpthread.so.0" "$beside/librt.so.1"; do
	set -- "$@" --file "$library=$library"
done
"$out/../bin/cluster" image build --name localhost/bench-nvidia:dev --out "$out/nvidia.tar" \
	--entrypoint /nvidia/gpu-kubelet-plugin --directory /tmp:0777 "$@"
