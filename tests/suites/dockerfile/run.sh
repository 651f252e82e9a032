#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the driver's image by deployments/container/Dockerfile, and compares what is in it with
# what is in the image of build.sh: paths, permissions and contents, and what it starts:
#
#   run.sh BUILD
#
# BUILD has the image of build.sh. The engine is Debian's buildah, which needs no daemon. No
# registry is asked: in place of Go's image the build has this machine's Go, compiler and caches.
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
buildah bud --isolation chroot --quiet --file deployments/container/Dockerfile --tag driver \
	--build-arg GO_IMAGE=localhost/go-of-this-machine --build-arg VERSION="${VERSION:-unknown}" \
	--volume /usr:/usr:ro --volume /etc:/etc:ro \
	--volume "$(go env GOMODCACHE)":/root/go/pkg/mod:ro --volume "$(go env GOCACHE)":/root/.cache/go-build .
buildah push --quiet driver "oci-archive:$work/dockerfile.tar"

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
content "$build/driver-image.tar" build
content "$work/dockerfile.tar" dockerfile
diff -u "$work/build.config" "$work/dockerfile.config"
diff -u "$work/build.files" "$work/dockerfile.files"
cat "$work/dockerfile.config" "$work/dockerfile.files"
echo "test-dockerfile: the image of deployments/container/Dockerfile is that of build.sh: $(grep -c '^f' "$work/build.files") files"
