#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures what it costs that a ResourceQuota counts the GiB of shares, on a cluster of its
# own:
#
#   quota.sh CLUSTER_DIR
set -eu
cd "$(dirname "$0")/../.."
dir=$1
trap 'make --no-print-directory cluster-down CLUSTER_DIR="$dir" >&2' EXIT
make --no-print-directory cluster CLUSTER_DIR="$dir" NODES=n1=t4x1:share >&2
export KUBECONFIG="$dir/kubeconfig"
.build/bin/cluster --dir "$dir" kubectl apply -k deployments/options/quota >&2
go run ./tests/bench/quota
