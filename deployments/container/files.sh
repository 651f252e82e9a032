#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds what is in the driver's container image, and prints it, a line SOURCE=PATH for each
# file:
#
#   files.sh OUT [ARCH]    builds in OUT/image, or in OUT/image-ARCH for another architecture than
#                          this machine's
#
# VERSION is what the programs say they are. For another architecture it takes Debian's cross
# compiler (for arm64: gcc-aarch64-linux-gnu).
#
# The image holds the driver's programs and the C library, and nothing else. It
# cannot be without a C library: NVML exists only as a shared library that links
# to one, and the driver opens it at run time from the node's driver root. The C library
# is that of the machine the image is built on, or that of its cross compiler.
set -eu

mkdir -p "$1"
out=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
checkout=$(cd "$here/../.." && pwd)

fail() {
	echo "driver image: $1" >&2
	exit 1
}

host=$(go env GOHOSTARCH)
arch=${2:-$host}
image=$out/image
cross=
if [ "$arch" != "$host" ]; then
	case $arch in
	amd64) cross=x86_64-linux-gnu loader=ld-linux-x86-64.so.2 ;;
	arm64) cross=aarch64-linux-gnu loader=ld-linux-aarch64.so.1 ;;
	*) fail "architecture $arch is none of amd64 and arm64" ;;
	esac
	image=$out/image-$arch
	package=gcc-$(echo "$cross" | tr _ -)
	command -v "$cross-gcc" >/dev/null || fail "$cross-gcc is missing: install it (Debian: $package)"
	export CC="$cross-gcc"
fi
export GOARCH="$arch"
# No debug information is compiled that would be stripped, and the C library resolves neither names nor
# users: with the same flags the tests' Kubernetes shares what is compiled here. Without templates, for the
# pages of gRPC's trace and the help of the command line, the linker leaves out each method that nobody
# calls: that is four tenths of a program.
export GOFLAGS="-buildvcs=false -trimpath -gcflags=all=-dwarf=false -tags=netgo,osusergo,grpcnotrace,urfave_cli_no_template"
mkdir -p "$image"

# Symbols of NVML are resolved when the library is opened, so the linker must
# leave them to the first call.
echo "driver image: building gpu-kubelet-plugin, gpu-mps-supervisor and gpu-compat-controller" >&2
CGO_ENABLED=1 GOWORK=off go build -C "$checkout" \
	-ldflags "-s -w -extldflags -Wl,-z,lazy -X github.com/gpushare/dra-driver-gpushare/internal/version.linked=${VERSION:-unknown}" \
	-o "$image/" ./cmd/gpu-kubelet-plugin ./cmd/gpu-mps-supervisor ./cmd/gpu-compat-controller ||
	fail "go build of the programs failed"

# The hooks run on the node, outside of the image, under whatever C library is
# there: they bring their own, or need none. They open no library, NVML or other,
# though the linker warns of a dlopen.
echo "driver image: building gpu-cdi-hook" >&2
CGO_ENABLED=1 GOWORK=off go build -C "$here/cdi-hook" \
	-ldflags '-s -w -extldflags -static' \
	-o "$image/gpu-cdi-hook" . \
	2>"$image/gpu-cdi-hook.log" ||
	{ cat "$image/gpu-cdi-hook.log" >&2; fail "go build gpu-cdi-hook failed"; }

echo "driver image: building gpu-mps-check" >&2
CGO_ENABLED=0 GOWORK=off go build -C "$checkout" -ldflags '-s -w' \
	-o "$image/gpu-mps-check" ./cmd/gpu-mps-check ||
	fail "go build ./cmd/gpu-mps-check failed"

# It opens NVML, as the plugin does, but with the host's C library. So the plugin tries it on the
# host before it uses it.
echo "driver image: building gpu-memory-limit" >&2
CGO_ENABLED=1 GOWORK=off go build -C "$checkout" -ldflags '-s -w -extldflags -Wl,-z,lazy' \
	-o "$image/gpu-memory-limit" ./cmd/gpu-memory-limit ||
	fail "go build ./cmd/gpu-memory-limit failed"

# What the driver links to, as the loader resolves it here, and what NVML links to besides.
# The paths stay, for the loader has them built in: Debian's looks below the name of the
# architecture.
beside="libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libgcc_s.so.1"
libraries=
add() { # FILE PATH
	[ -e "$1" ] ||
		fail "$1 is missing: NVML may need it; install the package that has it (Debian: libc6, libgcc-s1, or those of the cross compiler)"
	libraries="$libraries
$1=$2"
}
if [ -z "$cross" ]; then
	linked=$(ldd "$image/gpu-kubelet-plugin" | sed -n -e 's/.*=> \(\/[^ ]*\) .*/\1/p' -e 's/^[[:space:]]*\(\/[^ ]*\) .*/\1/p')
	libc=$(printf '%s\n' "$linked" | grep '/libc\.so\.') || fail "ldd names no C library"
	for path in $linked; do
		add "$path" "$path"
	done
	for name in $beside; do
		add "$(dirname "$libc")/$name" "$(dirname "$libc")/$name"
	done
else
	linked=$("$cross-readelf" -d "$image/gpu-kubelet-plugin" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
	for name in $linked libc.so.6 $beside; do
		add "$("$CC" -print-file-name="$name")" "/lib/$cross/$name"
	done
	add "$("$CC" -print-file-name="$loader")" "$("$cross-readelf" -l "$image/gpu-kubelet-plugin" |
		sed -n 's/.*program interpreter: \(.*\)\]/\1/p')"
fi

for program in gpu-kubelet-plugin gpu-mps-supervisor gpu-compat-controller gpu-cdi-hook gpu-mps-check gpu-memory-limit; do
	echo "$image/$program=/usr/bin/$program"
done
printf '%s\n' "$libraries" | sed '/^$/d' | sort -u
