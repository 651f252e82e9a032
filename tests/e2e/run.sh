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
#
# K8S is the Kubernetes, the newest if none is named. For an older one, LEFTOUT-$K8S here has the
# tests that are left out, and why; and what is on clusters of its own is the rehearsal, the
# driver in a namespace of its own, and the demonstration, whose cluster `doctor` then looks at.
set -eu
cd "$(dirname "$0")/../.."
dir=$(realpath -m "$1")
pattern=${2:-.}
beside=
began=$(date +%s)
lane=e2e${K8S:+-$K8S}
log=.build/$lane.log
alone="migration elsewhere gang"
leftout=tests/e2e/LEFTOUT-${K8S:-}
if [ -e "$leftout" ]; then
	alone="migration elsewhere"
else
	leftout=
fi
rm -f "$log" ".build/$lane.status"

down() {
	status=$?
	trap - EXIT
	for process in $beside; do
		wait "$process" || status=$?
	done
	for what in ${beside:+$alone}; do
		cat ".build/$what${K8S:+-$K8S}.log"
	done
	[ ! -e "$log" ] || awk -f tests/e2e/failures.awk "$log"
	[ -z "$leftout" ] || {
		echo "Left out on Kubernetes $K8S:"
		sed -e '/^#/d' -e 's/^/  /' "$leftout"
	}
	if [ -n "${KEEP:-}" ]; then
		echo "The cluster is still up (KEEP): KUBECONFIG=$dir/kubeconfig; make cluster-down CLUSTER_DIR=$dir ends it"
	else
		make --no-print-directory cluster-down CLUSTER_DIR="$dir" || status=$?
	fi
	tests/took.sh "$lane" "$began" "$status"
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
# Each node is to offer GPUs: an older Kubernetes does not serve mode dynamic.
make --no-print-directory cluster CLUSTER_DIR="$dir" \
	NODES="$(sed -e '/^#/d' ${leftout:+-e s/:dynamic/:share/} tests/e2e/NODES | tr '\n' ' ')"
make --no-print-directory kubectl-inspect-cgpu
if [ "$pattern" = . ]; then
	# Beside the tests that run side by side, which wait most of the time. Those before them have the
	# cluster to themselves, and are the ones that take all of the machine.
	for what in $alone; do
		{
			until grep -q '^=== CONT' "$log" 2>/dev/null || [ -e ".build/$lane.status" ]; do
				sleep 5
			done
			exec env KEEP= "tests/$what/run.sh" .build "$dir-$what"
		} >".build/$what${K8S:+-$K8S}.log" 2>&1 &
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
	E2E_CLUSTER_DIR="$dir" go test -vet=off -count=1 -v -tags e2e -timeout 120m -parallel 32 -run "$pattern" \
		-skip "$(awk '!/^#/ {printf "%s^%s$", sep, $1; sep = "|"}' "${leftout:-/dev/null}")" ./tests/e2e/ || status=$?
	echo "$status" >".build/$lane.status"
} | awk $live -v all=1 -f tests/e2e/failures.awk | tee "$log"
status=$(cat ".build/$lane.status")
if [ "$pattern" = . ] && [ -n "$leftout" ]; then
	demo/demo.sh "$dir-demo" || status=$?
	KUBECONFIG="$dir-demo/kubeconfig" .build/bin/kubectl-inspect-cgpu doctor || status=$?
	make --no-print-directory cluster-down CLUSTER_DIR="$dir-demo" || status=$?
elif [ "$pattern" = . ]; then
	# After the tests: it has its own time limit, which it would not keep beside them.
	make --no-print-directory gpu-bundle-simulated || status=$?
fi
exit "$status"
