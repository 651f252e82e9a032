#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Publishes what build.sh has made, as a draft that a maintainer signs and publishes:
#
#   publish.sh DIRECTORY REGISTRY
#
# DIRECTORY is .build/release/VERSION. REGISTRY, such as ghcr.io/gpushare, gets the image, and the chart in charts/.
# It takes skopeo, helm, cosign and gh, each logged in. cosign signs without a key, with the identity of the workflow
# that runs this.
set -eu
dir=$(realpath "$1")
registry=$2
version=$(basename "$dir")
(cd "$dir" && sha256sum --quiet --check --strict SHA256SUMS)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

image=$registry/dra-driver-gpushare
skopeo copy --all --digestfile "$work/image" "oci-archive:$dir/dra-driver-gpushare-image-$version.tar" \
	"docker://$image:$version"
cosign sign --yes "$image@$(cat "$work/image")"

helm push "$dir/dra-driver-gpushare-${version#v}.tgz" "oci://$registry/charts" >"$work/chart" 2>&1 || {
	cat "$work/chart" >&2
	exit 1
}
digest=$(sed -n 's/^Digest: //p' "$work/chart")
[ -n "$digest" ] || {
	echo "publish: helm did not say which digest the chart has:" >&2
	cat "$work/chart" >&2
	exit 1
}
cosign sign --yes "$registry/charts/dra-driver-gpushare@$digest"

cosign sign-blob --yes --bundle "$dir/SHA256SUMS.sigstore.json" "$dir/SHA256SUMS"
gh release create "$version" --draft --verify-tag --title "$version" --generate-notes "$dir"/*
