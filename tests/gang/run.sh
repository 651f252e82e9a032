#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests gangs on a new cluster that serves PodGroups, and preemption, which is switched on
# here:
#
#   run.sh BUILD CLUSTER_DIR
#
# BUILD has the image of the driver, the cluster tool, Helm and kubectl-inspect-cgpu. With
# KEEP=1 the cluster stays up afterwards. GANG_RUN chooses tests.
set -eu
cd "$(dirname "$0")/../.."
build=$1
dir=$(realpath -m "$2")
cluster=$build/bin/cluster

. tests/ownedcluster.sh

"$cluster" --dir "$dir" down
"$cluster" --dir "$dir" up --gates gang --image "$build/driver-image.tar" \
	--nodes "whole=v100x4:default share=v100x4:share linked=dgx1:topology"
HELM_ARGS="--set options.preemption=true" tests/cluster/install-driver.sh "$build/driver-image.tar" "$cluster" --dir "$dir"
E2E_CLUSTER_DIR="$dir" go test -vet=off -count=1 -v -tags e2e -timeout 60m -run "${GANG_RUN:-.}" ./tests/gang
