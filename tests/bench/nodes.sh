#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Brings a cluster up, has a benchmark of nodes without kubelets run on it, and takes the cluster down again:
#
#   nodes.sh BUILD CLUSTER_DIR BENCHMARK [ARGUMENT…]
#
# BUILD is where the program `cluster` lies; BENCHMARK is a directory here, whose program the arguments go to (see its
# --help). With KEEP=1 the cluster stays, for a look at it.
set -eu
cd "$(dirname "$0")/../.."
build=$1 dir=$2 benchmark=$3
shift 3

cluster() { "$build/bin/cluster" --dir "$dir" "$@"; }

down() {
	status=$?
	trap - EXIT
	[ -n "${KEEP:-}" ] || cluster down >&2 || status=$?
	exit "$status"
}
trap down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir -p "$build/bench"
go build -o "$build/bench/" "./tests/bench/$benchmark" ./cmd/gpu-compat-controller
# The cluster tool wants one node; it takes no pods.
cluster up --nodes n1 >&2
cluster kubectl cordon n1 >&2
"$build/bench/$benchmark" --kubeconfig "$dir/kubeconfig" --controller "$build/bench/gpu-compat-controller" "$@"
