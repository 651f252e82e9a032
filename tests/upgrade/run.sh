#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Upgrades the driver on a new cluster, with pods running:
#
#   run.sh BUILD CLUSTER_DIR COMMIT
#
# COMMIT is the version that the cluster starts with, built from the repository's history
# by its own scripts; BUILD has the image of the new one, and the cluster tool. With
# KEEP=1 the cluster stays up afterwards.
set -eu
cd "$(dirname "$0")/../.."
build=$1
dir=$(realpath -m "$2")
began=$(date +%s)
cluster=$PWD/$build/bin/cluster

commit=$(git rev-parse --verify --quiet "$3^{commit}") || {
	echo "upgrade: there is no commit $3 here. A shallow clone has only the last ones: git fetch --unshallow," >&2
	echo "or name one that is here: make upgrade UPGRADE_FROM=COMMIT" >&2
	exit 1
}
old=$build/upgrade/$commit

. tests/ownedcluster.sh
afterwards() { tests/took.sh upgrade "$began" "$1"; }

# The old version's files, without a second working tree that somebody has to prune.
if ! [ -e "$old/.build/driver-image.tar" ]; then
	rm -rf "$old"
	mkdir -p "$old"
	git archive "$commit" | tar -x -C "$old"
	VERSION=$(git describe --tags --always "$commit") make --no-print-directory -C "$old" images
fi

nodes="share=v100x4:share whole=a10x4 mps=v100x4:mps dynamic=a100x8:dynamic topo=dgx1:topology"
"$cluster" --dir "$dir" down
"$cluster" --dir "$dir" up --nodes "$nodes" --image "$old/.build/driver-image.tar"
"$old/tests/cluster/install-driver.sh" "$old/.build/driver-image.tar" "$cluster" --dir "$dir"
# The test applies the new version when its pods run.
E2E_CLUSTER_DIR="$dir" UPGRADE_NODES="$nodes" UPGRADE_IMAGE="$(realpath "$build")/driver-image.tar" \
	go test -count=1 -v -tags e2e -timeout 15m ./tests/upgrade
