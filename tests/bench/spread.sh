#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures how evenly shares come to lie on a node's cards, on a cluster of its
# own:
#
#   spread.sh CLUSTER_DIR
set -eu
cd "$(dirname "$0")/../.."
dir=$1
trap 'make --no-print-directory cluster-down CLUSTER_DIR="$dir" >&2' EXIT
make --no-print-directory cluster CLUSTER_DIR="$dir" NODES=n1=dgx1:share >&2
KUBECONFIG="$dir/kubeconfig" go run ./tests/bench/spread
