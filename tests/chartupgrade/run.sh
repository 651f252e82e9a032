#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Upgrades the driver by its chart, rolls it back and uninstalls it, on a new cluster of two
# nodes, with pods that run and pods that start:
#
#   run.sh BUILD CLUSTER_DIR
#
# BUILD has the cluster tool and Helm. The two versions are made of this checkout: charts and
# images that differ in their version. With KEEP=1 the cluster stays up afterwards.
set -eu
cd "$(dirname "$0")/../.."
build=$1
dir=$(realpath -m "$2")
began=$(date +%s)
cluster=$build/bin/cluster
helm=$(realpath "$build/bin/helm")
made=$(realpath -m "$build/chartupgrade")

. tests/ownedcluster.sh
afterwards() { tests/took.sh test-chart-upgrade "$began" "$1"; }

mkdir -p "$made"
for version in 0.1.0 0.2.0; do
	VERSION=$version DRIVER_IMAGE_NAME=localhost/dra-driver-gpushare:$version deployments/container/build.sh "$made/$version" "$cluster"
	"$helm" package deployments/helm/dra-driver-gpushare --version $version --app-version $version --destination "$made"
done
"$cluster" --dir "$dir" down
"$cluster" --dir "$dir" up --nodes "share=v100x4:share mps=v100x4:mps" \
	--image "$made/0.1.0/driver-image.tar" --image "$made/0.2.0/driver-image.tar"
E2E_CLUSTER_DIR="$dir" HELM="$helm" CHARTS="$made" go test -count=1 -v -tags e2e -timeout 15m ./tests/chartupgrade
