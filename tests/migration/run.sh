#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Rehearses docs/migrate.md on a new cluster:
#
#   run.sh BUILD CLUSTER_DIR [helm]
#
# With helm it is by the commands of Helm that the document has beside those of kubectl.
#
# BUILD has the image of the driver, the cluster tool and kubectl-inspect-cgpu. The cluster has
# that image and one of a stand-in for ACK's device plugin, and nothing of either is installed:
# that is what is rehearsed. With KEEP=1 the cluster stays up afterwards.
set -eu
cd "$(dirname "$0")/../.."
build=$1
dir=$(realpath -m "$2")
cluster=$build/bin/cluster

. tests/ownedcluster.sh

# The document's commands need it.
command -v jq >/dev/null || apt-get install --yes --no-install-recommends jq

CGO_ENABLED=0 go build -buildvcs=false -o "$build/standin" ./tests/deviceplugin/standin
"$cluster" image build --name localhost/device-plugin-standin:latest --out "$build/standin.tar" \
	--entrypoint /standin --file "$build/standin=/standin:0755"
if [ "${3:-}" = helm ]; then
	bin=$(realpath "$build/bin")
	export PATH="$bin:$PATH"
	helm package deployments/helm/dra-driver-gpushare --destination "$build/migration"
	MIGRATION_CHART=$(realpath "$build/migration/dra-driver-gpushare-0.0.0-dev.tgz")
	export MIGRATION_CHART
fi
"$cluster" --dir "$dir" down
"$cluster" --dir "$dir" up --nodes "n1=v100x4:share n2=v100x4:share" --image "$build/driver-image.tar" --image "$build/standin.tar" ${K8S:+--kubernetes "$K8S"}
E2E_CLUSTER_DIR="$dir" go test -vet=off -count=1 -v -tags e2e -timeout 60m ./tests/migration
