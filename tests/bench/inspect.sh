#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures `kubectl inspect cgpu` on 1000 nodes that are objects only, on a
# cluster of its own, and prints a table:
#
#   inspect.sh BUILD CLUSTER_DIR [ARGUMENT…]
#
# BUILD is where the program `cluster` lies; the arguments go to
# tests/bench/inspect (see its --help).
set -eu
cd "$(dirname "$0")/../.."
build=$1 dir=$2
shift 2

trap '"$build/bin/cluster" --dir "$dir" down >&2' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir -p "$build/bench"
go build -buildvcs=false -o "$build/bench/inspect" ./tests/bench/inspect
# The cluster tool wants one node.
"$build/bin/cluster" --dir "$dir" up --nodes n1 >&2
"$build/bench/inspect" --kubeconfig "$dir/kubeconfig" --program "$build/bin/kubectl-inspect-cgpu" "$@"
