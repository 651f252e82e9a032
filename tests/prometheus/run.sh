#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests alerts and dashboard: with promtool, and with a real Prometheus that scrapes the
# driver on a new cluster:
#
#   run.sh BUILD CLUSTER_DIR
#
# BUILD has the image of the driver, and the cluster tool. With KEEP=1 the cluster stays
# up afterwards.
set -eu
cd "$(dirname "$0")/../.."
build=$(realpath "$1")
dir=$(realpath -m "$2")
began=$(date +%s)
cluster=$build/bin/cluster

. tests/ownedcluster.sh
afterwards() { tests/took.sh test-prometheus "$began" "$1"; }

# Of its discoveries it needs one, and no pages of its own: that is minutes of compiling less.
go build -C tests/prometheus -buildvcs=false -tags remove_all_sd,enable_kubernetes_sd -o "$build/bin/" \
	github.com/prometheus/prometheus/cmd/prometheus github.com/prometheus/prometheus/cmd/promtool
echo "test-prometheus: Prometheus is built after $(($(date +%s) - began)) s"
(cd tests/prometheus && PROMTOOL="$build/bin/promtool" go test -count=1 -v ./...)

"$cluster" --dir "$dir" down
"$cluster" --dir "$dir" up --nodes "n1=v100x4:share n2=v100x4:mps" --image "$build/driver-image.tar"
tests/cluster/install-driver.sh "$build/driver-image.tar" "$cluster" --dir "$dir"
E2E_CLUSTER_DIR="$dir" PROMETHEUS="$build/bin/prometheus" HELM="$build/bin/helm" \
	go test -count=1 -v -tags e2e -timeout 10m ./tests/monitoring
