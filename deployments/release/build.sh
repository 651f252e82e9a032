#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds what a release consists of:
#
#   build.sh OUT PACKER VERSION URL
#
# OUT/release/VERSION gets the image for linux/amd64 and linux/arm64 in one OCI archive, the
# Helm chart, the kubectl plugin for four platforms with its manifest for krew, SBOMs,
# the provenance and SHA256SUMS. PACKER is the built tests/cluster, URL the directory where
# the files will lie. On Debian it takes gcc-aarch64-linux-gnu, on arm64 gcc-x86-64-linux-gnu.
set -eu

fail() {
	echo "release: $1" >&2
	exit 1
}

mkdir -p "$1"
out=$(cd "$1" && pwd)
packer=$(realpath "$2")
version=$3
url=$4
# Before it names a directory that is removed.
printf '%s\n' "$version" | grep -Eqx 'v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?' ||
	fail "RELEASE is \"$version\", not of the form v1.2.3 or v1.2.3-rc.1"
cd "$(dirname "$0")/../.."
[ -z "$(git status --porcelain)" ] || [ -n "${DIRTY:-}" ] ||
	fail "the checkout has changes that are not committed: commit them, or set DIRTY=1 for a try"
commit=$(git rev-parse HEAD)
export VERSION="$version" GOWORK=off

dir=$out/release/$version
rm -rf "$dir"
mkdir -p "$dir"
host=$(go env GOHOSTARCH)
set --
for arch in amd64 arm64; do
	deployments/container/build.sh "$out" "$packer" "$arch"
	image=$out/image archive=$out/driver-image.tar
	[ "$arch" = "$host" ] || image=$out/image-$arch archive=$out/driver-image-$arch.tar
	mkdir -p "$dir/programs/linux-$arch"
	for program in gpu-kubelet-plugin gpu-mps-supervisor gpu-compat-controller gpu-cdi-hook gpu-mps-check gpu-memory-limit; do
		cp "$image/$program" "$dir/programs/linux-$arch/"
	done
	set -- "$@" "$archive"
done
"$packer" image join --name "localhost/dra-driver-gpushare:$version" \
	--out "$dir/dra-driver-gpushare-image-$version.tar" "$@"

echo "release: packing the chart" >&2
go run -C tests/chart ./pack "$PWD/deployments/helm/dra-driver-gpushare" "${version#v}" "$version" "$dir" >/dev/null

for platform in linux-amd64 linux-arm64 darwin-amd64 darwin-arm64; do
	echo "release: building kubectl-inspect-cgpu for $platform" >&2
	# krew makes "kubectl inspect-cgpu" of it; as kubectl-inspect-cgpu in the PATH it is "kubectl inspect cgpu".
	CGO_ENABLED=0 GOOS=${platform%-*} GOARCH=${platform#*-} go build -buildvcs=false -trimpath \
		-ldflags "-s -w -X github.com/gpushare/dra-driver-gpushare/internal/version.linked=$version" \
		-o "$dir/plugins/$platform/kubectl-inspect-cgpu" ./cmd/kubectl-inspect-cgpu
done

[ -z "$(git status --porcelain)" ] || commit=$(printf '%040d' 0)
go run -C deployments/release . --version "$version" --commit "$commit" --url "$url" --license "$PWD/LICENSE" "$dir"
rm -r "$dir/programs" "$dir/plugins"
(cd "$dir" && sha256sum --quiet --check --strict SHA256SUMS)
echo "release: $dir" >&2
