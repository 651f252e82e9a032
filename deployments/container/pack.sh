#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes a container image as an OCI archive, without a container engine: what the build.sh of each image calls.
#
#   pack.sh FILES ARCHIVE OUT PACKER ARCH FLAG…    builds what is in the image with the script FILES, and
#                                                  writes OUT/ARCHIVE.tar, or OUT/ARCHIVE-ARCH.tar for
#                                                  another architecture than this machine's, which an
#                                                  empty ARCH is
#
# PACKER is the built tests/cluster; the flags are those of its `image build`.
set -eu

mkdir -p "$3"
files=$1 archive=$2 out=$(cd "$3" && pwd) packer=$(realpath "$4") host=$(go env GOHOSTARCH)
arch=${5:-$host}
shift 5
[ "$arch" = "$host" ] || archive=$archive-$arch

built=$("$files" "$out" "$arch")
IFS='
'
for file in $built; do
	set -- "$@" --file "$file:0755"
done
# Same input, same bytes: whoever loads the image sees whether it changed.
"$packer" image build --arch "$arch" --out "$out/$archive.tar" "$@"
