#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures what the driver's policies, with those of the options, add to the creation of a pod, on
# a cluster of its own:
#
#   [OPTIONS="quota …"] admission.sh CLUSTER_DIR
set -eu
cd "$(dirname "$0")/../.."
dir=$1
trap 'make --no-print-directory cluster-down CLUSTER_DIR="$dir" >&2' EXIT
make --no-print-directory cluster CLUSTER_DIR="$dir" NODES=n1=t4x1:share >&2
export KUBECONFIG="$dir/kubeconfig"
for option in ${OPTIONS-quota share-limit visible-devices}; do
	.build/bin/cluster --dir "$dir" kubectl apply -k "deployments/options/$option" >&2
done
go run ./tests/bench/admission
