#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tries the archive of `make gpu-bundle` on this machine, which needs no GPU: with a
# simulated node, and stand-ins for NVML, CUDA, nvidia-smi and MPS:
#
#   simulated.sh ARCHIVE [ARGUMENT…]
#
# The second GPU is cut into MIG instances, and put back. Beside the archive it leaves
# gpu-report.md, which the run has written, and its logs. Arguments go to ./run.
set -eu
archive=$(realpath "$1")
out=$(dirname "$archive")
shift
cd "$(dirname "$0")/../.."
# Sockets lie below it: a short path.
kernel=
dir=$(mktemp -d "${TMPDIR:-/tmp}/gpub.XXXXXX")
down() {
	status=$?
	trap - EXIT
	# What was killed leaves its cluster behind.
	[ ! -e "$dir/bundle/work" ] || "$dir/bundle/run" down || status=1
	[ -z "$kernel" ] || kill "$kernel" 2>/dev/null || true
	rm -rf "$dir"
	exit "$status"
}
trap down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

echo "gpu-bundle-simulated: the node's driver" >&2
root=$dir/driver
CGO_ENABLED=0 GOWORK=off go build -buildvcs=false -o "$dir/mpsstandin" ./tests/standins/mps
tests/standins/nvmllib/build.sh "$dir/libnvidia-ml.so"
GOWORK=off go build -buildvcs=false -o "$dir/simnode" ./tests/standins/sim/simnode
"$dir/simnode" --machine deployments/hardware/testdata/h200x2.yaml --root "$root" --node gpu \
	--nvml "$dir/libnvidia-ml.so" --mps-control "$dir/mpsstandin"
gcc -std=gnu11 -O2 -static -o "$root/usr/bin/nvidia-smi" deployments/hardware/testdata/smistandin.c
library=$(readlink -f "$root/usr/lib/x86_64-linux-gnu/libcuda.so.1")
gcc -std=gnu11 -O2 -fPIC -shared -Wl,-soname,libcuda.so.1 -o "$library" tests/suites/hardware/testdata/cudastandin.c

# As on machines whose driver is in a folder of its own.
mkdir -p "$root/usr/local/nvidia/bin"
mv "$root/usr/lib/x86_64-linux-gnu" "$root/usr/local/nvidia/lib64"
mv "$root"/usr/bin/nvidia-* "$root/usr/local/nvidia/bin/"

mkdir "$dir/bundle"
tar -xf "$archive" -C "$dir/bundle"
if [ ! -e /dev/nvidiactl ]; then
	# Without a driver it says so, and has changed nothing.
	status=0
	"$dir/bundle/run" --report "$dir/report" 2>"$dir/refused" || status=$?
	if [ "$status" -ne 2 ] || ! grep -q '^- no NVIDIA driver' "$dir/refused" || [ -e "$dir/bundle/work" ] || [ -e "$dir/report" ]; then
		cat "$dir/refused" >&2
		echo "gpu-bundle-simulated: without a driver ./run ended with status $status, want 2, one line and nothing left" >&2
		exit 1
	fi
fi

# Makes the MIG instances, as the kernel module does.
"$dir/simnode" mig --root "$root" --delay 100ms &
kernel=$!

# As on a machine that has nothing but what every Linux has: no Go, above all. Clusters
# that are up on this machine beside it have to be known, so that addresses do not clash.
status=0
env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin GPUSHARE_CACHE="${GPUSHARE_CACHE:-$HOME/.cache}" \
	"$dir/bundle/run" --simulated "$root" --report "$out/gpu-report.md" --logs "$out/gpu-logs.tar.gz" \
	--may-change-mig 1 "$@" \
	>"$out/gpu-bundle.log" || status=$?
if [ "$status" -ne 0 ]; then
	sed -n '/failed\|^### Failures/,$p' "$out/gpu-report.md" >&2 || true
	echo "gpu-bundle-simulated: failed; the report is $out/gpu-report.md, the logs are $out/gpu-logs.tar.gz" >&2
	exit "$status"
fi
[ ! -e "$dir/bundle/work" ] || { echo "gpu-bundle-simulated: ./run has left $dir/bundle/work behind" >&2; exit 1; }
grep -q '^gpu.1.mig = 0 0$' "$root/machine.nvml" || { echo "gpu-bundle-simulated: the MIG mode was not put back" >&2; exit 1; }
grep '^Of .* checks' "$out/gpu-report.md" >&2
