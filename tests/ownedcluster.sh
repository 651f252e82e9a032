# SPDX-License-Identifier: Apache-2.0
# For scripts that bring a cluster of their own up: sourced, it ends the cluster in $dir with
# the cluster tool $cluster when the script ends, however it does. With KEEP=1 the cluster
# stays, and it is said how to end it. The script may define afterwards, which is then called
# with the exit status.
down() {
	status=$?
	trap - EXIT
	if [ -n "${KEEP:-}" ]; then
		echo "The cluster is still up (KEEP): KUBECONFIG=$dir/kubeconfig; make cluster-down CLUSTER_DIR=$dir ends it"
	else
		"$cluster" --dir "$dir" down || status=$?
	fi
	afterwards "$status"
	exit "$status"
}
afterwards() { :; }
trap down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
