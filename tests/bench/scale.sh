#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Brings a cluster up, measures scheduling on 1000 nodes without kubelets, prints
# the table, and takes the cluster down again:
#
#   scale.sh BUILD CLUSTER_DIR [ARGUMENT…]
#
# BUILD is where the program `cluster` lies; the arguments go to tests/bench/scale
# (see its --help). With KEEP=1 the cluster stays, for a look at it.
set -eu
cd "$(dirname "$0")/../.."
build=$1 dir=$2
shift 2

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
go build -buildvcs=false -o "$build/bench/scale" ./tests/bench/scale
# The cluster tool wants one node; it takes no pods.
cluster up --nodes n1 >&2
cluster kubectl cordon n1 >&2
# The control plane of a cluster with network K, but for its API server, is at
# 127.88.K.1: tests/cluster/internal/cluster/network.go.
network=$(sed -n 's|^ *"index": *\([0-9]*\).*|\1|p' "$dir/state.json")
"$build/bench/scale" --kubeconfig "$dir/kubeconfig" \
	--scheduler "https://127.88.$network.1:10259" --controller-manager "https://127.88.$network.1:10257" "$@"
