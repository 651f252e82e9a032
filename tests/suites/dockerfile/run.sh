#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the driver's image by deployments/container/Dockerfile, and that of simulated GPUs by
# tests/standins/image/Dockerfile, and compares what is in them with what is in the images of
# build.sh beside each: paths, permissions and contents, and what they start:
#
#   run.sh BUILD
#
# BUILD has the driver's image of build.sh. The engine is Debian's buildah, which needs no daemon. No
# registry is asked: in place of Go's image the builds have this machine's Go, compiler and caches.
# The programs are linked again.
set -eu
cd "$(dirname "$0")/../../.."
build=$(realpath "$1")
command -v buildah >/dev/null || apt-get install --yes --no-install-recommends buildah
command -v jq >/dev/null || apt-get install --yes --no-install-recommends jq

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
buildah() {
	command buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"
}

# A system without content of its own: links to what is mounted from this machine.
mkdir -p "$work/base/usr" "$work/base/etc" "$work/base/tmp" "$work/base/root/go/pkg/mod" "$work/base/root/.cache/go-build"
for link in bin lib lib64 sbin; do
	ln -s "usr/$link" "$work/base/$link"
done
container=$(buildah from scratch)
buildah copy --quiet "$container" "$work/base" /
buildah config --env "PATH=$(dirname "$(command -v go)"):/usr/bin:/bin" --env GOPROXY=off --env GOTOOLCHAIN=local \
	--env HOME=/root --env CGO_CFLAGS="${CGO_CFLAGS:-}" "$container"
buildah commit --quiet "$container" localhost/go-of-this-machine

# content ARCHIVE NAME writes NAME.files, and NAME.config: what the image starts, and for what machine.
content() {
	mkdir -p "$work/$2/archive" "$work/$2/root"
	tar -xf "$1" -C "$work/$2/archive"
	blobs=$work/$2/archive/blobs
	manifest=$(jq -r '.manifests[0].digest' "$work/$2/archive/index.json" | tr : /)
	jq -r '.layers[].digest' "$blobs/$manifest" | tr : / | while read -r layer; do
		tar -xf "$blobs/$layer" -C "$work/$2/root"
	done
	jq -S '{architecture, os, config: {Entrypoint: .config.Entrypoint, Env: .config.Env}}' \
		"$blobs/$(jq -r .config.digest "$blobs/$manifest" | tr : /)" >"$work/$2.config"
	(
		cd "$work/$2/root"
		find . -mindepth 1 -printf '%y %m %P\n' | sort -k 3
		find . -type f -print0 | sort -z | xargs -0 sha256sum
	) >"$work/$2.files"
}

# compare DIRECTORY ARCHIVE [ARGUMENT…] compares the image of the Dockerfile in a directory with that of an archive.
compare() {
	dockerfile=$1/Dockerfile
	archive=$2
	shift 2
	rm -rf "$work/build" "$work/dockerfile"
	buildah bud --isolation chroot --quiet --file "$dockerfile" --tag compared \
		--build-arg GO_IMAGE=localhost/go-of-this-machine "$@" \
		--volume /usr:/usr:ro --volume /etc:/etc:ro \
		--volume "$(go env GOMODCACHE)":/root/go/pkg/mod:ro --volume "$(go env GOCACHE)":/root/.cache/go-build .
	buildah push --quiet compared "oci-archive:$work/dockerfile.tar"
	content "$archive" build
	content "$work/dockerfile.tar" dockerfile
	diff -u "$work/build.config" "$work/dockerfile.config"
	diff -u "$work/build.files" "$work/dockerfile.files"
	cat "$work/dockerfile.config" "$work/dockerfile.files"
	echo "test-dockerfile: the image of $dockerfile is that of build.sh: $(grep -c '^f' "$work/build.files") files"
	rm "$work/dockerfile.tar"
}
compare deployments/container "$build/driver-image.tar" --build-arg VERSION="${VERSION:-unknown}"
tests/standins/image/build.sh "$build" "$build/bin/cluster"
compare tests/standins/image "$build/simulated-gpus.tar"
