#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the archive that tries the driver on a machine with GPUs, with everything that a
# run needs there, and prints its path:
#
#   build.sh OUT CLUSTER IMAGE          OUT/gpu-bundle.tar, small enough to be carried
#   build.sh OUT CLUSTER IMAGE quick    the same if it is there and up to date, else
#                                       OUT/gpu-bundle-quick.tar: hardly compressed
#
# CLUSTER is the built tests/cluster, IMAGE the archive of the driver's image, VERSION what
# the driver says it is. Compressing takes minutes. What was compressed is kept, and the
# same content is not compressed again.
set -eu

mkdir -p "$1"
out=$(cd "$1" && pwd)
cluster=$(realpath "$2")
image=$(realpath "$3")
quick=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
checkout=$(cd "$here/../.." && pwd)
made=$out/gpu-bundle
# Carried beside a checkout it has to fit 64 MiB.
most=$((60 * 1024 * 1024))

say() { echo "gpu-bundle: $1" >&2; }
fail() { say "$1"; exit 1; }

for tool in gcc xz tar ldd; do
	command -v $tool >/dev/null || fail "$tool is missing: install it (Debian: gcc, xz-utils, tar, libc-bin)"
done
rm -rf "$made"
mkdir -p "$made/payload/bin" "$made/payload/lib" "$made/payload/images" "$made/payload/programs" "$made/lib" "$made/overlay"
payload=$made/payload

say "building the programs"
"$cluster" programs >"$made/components"
while read -r name dir; do
	cp -a "$dir" "$payload/programs/$name"
done <"$made/components"
CGO_ENABLED=0 GOWORK=off go build -C "$checkout/tests/cluster" -buildvcs=false -trimpath -ldflags '-s -w' -o "$payload/bin/cluster" .
# Symbols of NVML are resolved when the library is opened, so the linker must leave them
# to the first call.
nvml='-s -w -extldflags -Wl,-z,lazy'
CGO_ENABLED=1 GOWORK=off go build -C "$checkout" -buildvcs=false -trimpath -ldflags "$nvml" -o "$payload/bin/gpubundle" ./deployments/hardware
# Without what tests/harness leaves out with the tag small: what it is linked with then has all methods of all objects.
CGO_ENABLED=1 GOWORK=off go test -C "$checkout" -c -vet=off -buildvcs=false -trimpath -ldflags "$nvml" \
	-tags hardware,small,netgo,osusergo,grpcnotrace,urfave_cli_no_template -o "$payload/bin/hardware.test" ./tests/suites/hardware
gcc -std=gnu11 -O2 -s -o "$made/cudaprobe" "$checkout/tests/suites/hardware/testdata/cudaprobe.c" -ldl

# What these link to, and what the driver's libraries link to besides, as it lies here: the
# other machine's C library may be older.
libc=$(ldd "$payload/bin/gpubundle" | sed -n 's/.*=> \(\/[^ ]*libc\.so\.6\) .*/\1/p')
[ -n "$libc" ] || fail "ldd names no C library"
loader=$(ldd "$payload/bin/gpubundle" | sed -n 's/^[[:space:]]*\(\/[^ ]*ld-linux[^ ]*\) .*/\1/p')
libraries=
for name in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libgcc_s.so.1; do
	[ -e "$(dirname "$libc")/$name" ] || fail "$(dirname "$libc")/$name is missing (Debian: libc6, libgcc-s1)"
	libraries="$libraries $(dirname "$libc")/$name"
done
cp -L "$loader" "$payload/lib/ld.so"
# shellcheck disable=SC2086 # a list of paths without blanks
cp -L $libraries "$payload/lib/"

say "packing the image of the pods"
set -- --name localhost/gpu-cuda:latest --entrypoint /gpu-probe \
	--env PATH=/:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/nvidia/bin \
	--file "$payload/programs/images/gpu-probe=/gpu-probe:0755" --file "$made/cudaprobe=/cudaprobe:0755" --directory /tmp:0777
for path in $loader $libraries; do
	set -- "$@" --file "$path=$path:0755"
done
"$cluster" image build --out "$payload/images/cuda.tar" "$@"
cp "$image" "$payload/images/driver.tar"
# For the tests on a cluster that is there: it has to be in a registry.
cp "$payload/images/cuda.tar" "$out/gpu-cuda.tar"

# What `kubectl apply -k deployments/manifests` applies, with the option that keeps
# bursts of pods from a race of the API server.
cat >"$made/overlay/kustomization.yaml" <<END
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- $(realpath --relative-to "$made/overlay" "$checkout/deployments/manifests")
- $(realpath --relative-to "$made/overlay" "$checkout/deployments/options/node-reads-claims")
END
"$payload/programs/kubernetes/kubectl" kustomize "$made/overlay" >"$payload/driver.yaml"
printf '%s\n' "${VERSION:-unknown}" >"$payload/VERSION"
: >"$payload/complete"

# Programs that share most of their packages lie next to each other, and "complete", which
# says that nothing is missing, comes last.
say "packing"
pack() { tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 "$@"; }
pack -cf "$made/payload.tar" -C "$payload" VERSION driver.yaml lib bin images programs complete
key=$(sha256sum "$made/payload.tar" | cut -d ' ' -f 1)
kept=$out/gpu-bundle.payload
archive=$out/gpu-bundle.tar
if [ "$(cat "$kept.key" 2>/dev/null)" = "$key" ]; then
	ln "$kept.tar.xz" "$made/payload.tar.xz"
elif [ "$quick" = quick ]; then
	archive=$out/gpu-bundle-quick.tar
	xz --compress --stdout -0 --threads=0 "$made/payload.tar" >"$made/payload.tar.xz"
else
	say "compressing $(($(stat -c %s "$made/payload.tar") >> 20)) MiB: some minutes"
	rm -f "$kept.key"
	# One dictionary for all: what the programs have in common is there once. The filter
	# makes calls of one function look alike.
	xz --compress --stdout --x86 --lzma2=preset=6,dict=512MiB "$made/payload.tar" >"$kept.tar.xz"
	echo "$key" >"$kept.key"
	ln "$kept.tar.xz" "$made/payload.tar.xz"
fi

# What unpacks it has to be there before.
xz=$(command -v xz)
cp -L "$xz" "$made/lib/xz"
ldd "$xz" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | xargs cp -L -t "$made/lib"
cp -L "$loader" "$made/lib/ld.so"
cp "$here/run.sh" "$made/run"
chmod 755 "$made/run"
# Unpacked, with room for images that containerd unpacks again, etcd and logs.
echo $((($(stat -c %s "$made/payload.tar") >> 20) + 1200)) >"$made/NEEDED-MIB"
pack -cf "$archive.new" -C "$made" run lib NEEDED-MIB payload.tar.xz
mv "$archive.new" "$archive"

(cd "$payload" && find . -type f -size +1M -printf '%s %p\n' | sort -rn |
	awk '{ printf "gpu-bundle: %6.1f MiB unpacked  %s\n", $1 / 1048576, $2 }') >&2
rm -rf "$made"
size=$(stat -c %s "$archive")
say "$archive has $((size >> 20)) MiB"
[ "$quick" = quick ] || [ "$size" -lt "$most" ] || fail "that is more than $((most >> 20)) MiB: too large to be carried"
echo "$archive"
