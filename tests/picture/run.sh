#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes docs/pictures/inspect.svg of what `kubectl inspect cgpu` shows on a new cluster:
#
#   run.sh BUILD CLUSTER_DIR
#
# BUILD has the image of the driver, the cluster tool, Helm and kubectl-inspect-cgpu. With
# KEEP=1 the cluster stays up afterwards.
set -eu
cd "$(dirname "$0")/../.."
build=$1
dir=$(realpath -m "$2")
cluster=$build/bin/cluster

. tests/ownedcluster.sh

"$cluster" --dir "$dir" down
"$cluster" --dir "$dir" up --nodes "n1=v100x4:share n2=a10x4:share" --image "$build/driver-image.tar"
tests/cluster/install-driver.sh "$build/driver-image.tar" "$cluster" --dir "$dir"
E2E_CLUSTER_DIR="$dir" go test -count=1 -v -tags e2e -timeout 10m ./tests/picture
