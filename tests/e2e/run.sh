#!/bin/sh
# Runs the end-to-end tests on a cluster of their own:
#
#   run.sh CLUSTER_DIR [PATTERN]
#
# PATTERN selects tests as "go test -run" does. With KEEP=1 the cluster stays
# up afterwards, and the next run starts on it.
set -eu
cd "$(dirname "$0")/../.."
dir=$1
pattern=${2:-.}

make --no-print-directory cluster CLUSTER_DIR="$dir" NODES="$(grep -v '^#' tests/e2e/NODES | tr '\n' ' ')"
status=0
E2E_CLUSTER_DIR="$PWD/$dir" go test -count=1 -v -tags e2e -timeout 30m -run "$pattern" ./tests/e2e/... || status=$?
if [ -n "${KEEP:-}" ]; then
	echo "The cluster is still up (KEEP): KUBECONFIG=$PWD/$dir/kubeconfig; make cluster-down CLUSTER_DIR=$dir ends it"
else
	make --no-print-directory cluster-down CLUSTER_DIR="$dir"
fi
exit "$status"
