#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the end-to-end tests on a cluster of their own:
#
#   run.sh CLUSTER_DIR [PATTERN]
#
# PATTERN selects tests as "go test -run" does; all of them include the rehearsal of the
# migration, the driver in a namespace of its own, gangs and preemption, and
# gpu-bundle-simulated, on clusters of their own. With KEEP=1 the cluster stays up
# afterwards, and the next run with KEEP=1 starts on it; any other starts on a new one.
set -eu
cd "$(dirname "$0")/../.."
dir=$(realpath -m "$1")
pattern=${2:-.}
beside=
began=$(date +%s)
rm -f .build/e2e.log

down() {
	status=$?
	trap - EXIT
	for process in $beside; do
		wait "$process" || status=$?
	done
	[ -z "$beside" ] || cat .build/migration.log .build/elsewhere.log .build/gang.log
	[ ! -e .build/e2e.log ] || awk -f tests/e2e/failures.awk .build/e2e.log
	if [ -n "${KEEP:-}" ]; then
		echo "The cluster is still up (KEEP): KUBECONFIG=$dir/kubeconfig; make cluster-down CLUSTER_DIR=$dir ends it"
	else
		make --no-print-directory cluster-down CLUSTER_DIR="$dir" || status=$?
	fi
	tests/took.sh e2e "$began" "$status"
	exit "$status"
}
trap down EXIT
stop() {
	[ -z "$beside" ] || kill $beside || true
	exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM

[ -n "${KEEP:-}" ] || make --no-print-directory cluster-down CLUSTER_DIR="$dir"
make --no-print-directory cluster CLUSTER_DIR="$dir" NODES="$(grep -v '^#' tests/e2e/NODES | tr '\n' ' ')"
make --no-print-directory kubectl-inspect-cgpu
if [ "$pattern" = . ]; then
	# They wait as the other tests do: beside them they take hardly any time.
	for what in migration elsewhere gang; do
		KEEP= "tests/$what/run.sh" .build "$dir-$what" >".build/$what.log" 2>&1 &
		beside="$beside $!"
	done
fi
# Most of the time the tests wait, for each other's nodes too; go test would only
# run as many at once as there are processors.
# mawk, Debian's awk, waits for a block of 4096 bytes otherwise.
live=
awk -W version 2>&1 </dev/null | grep -q '^mawk' && live="-W interactive"
status=0
{
	E2E_CLUSTER_DIR="$dir" go test -count=1 -v -tags e2e -timeout 60m -parallel 32 -run "$pattern" ./tests/e2e/ || status=$?
	echo "$status" >.build/e2e.status
} | awk $live -v all=1 -f tests/e2e/failures.awk | tee .build/e2e.log
status=$(cat .build/e2e.status)
if [ "$pattern" = . ]; then
	# After the tests: it has its own time limit, which it would not keep beside them.
	make --no-print-directory gpu-bundle-simulated || status=$?
fi
exit "$status"
