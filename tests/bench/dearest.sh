#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures how long a pod without GPUs waits for the scheduler beside the dearest pods that the policies admit, on a
# cluster of its own:
#
#   [NODES="n1=a100x8:share …"] dearest.sh CLUSTER_DIR PODS
#
# PODS are manifests, as `make bench-dearest DEAREST_ARGS="--pods PODS"` writes them; three of each wait. It fails where
# the scheduler spends a second of CPU before such a pod has its node: seconds by the clock, which
# are printed, say more of what else runs on the machine.
set -eu
cd "$(dirname "$0")/../.."
dir=$1 pods=$2
trap 'make --no-print-directory cluster-down CLUSTER_DIR="$dir" >&2' EXIT
make --no-print-directory cluster CLUSTER_DIR="$dir" \
	NODES="${NODES:-n1=a100x8:share n2=a100x8:dynamic n3=dgx1:topology n4=a100x8}" >&2
kubectl() { .build/bin/cluster --dir "$dir" kubectl "$@"; }
# The control plane of a cluster with network K, but for its API server, is at 127.88.K.1.
network=$(sed -n 's|^ *"index": *\([0-9]*\).*|\1|p' "$dir/state.json")
cp "$dir/kubeconfig" "$dir/scheduler"
kubectl --kubeconfig "$dir/scheduler" config set-cluster \
	"$(kubectl config view -o 'jsonpath={.clusters[0].name}')" \
	--server="https://127.88.$network.1:10259" --insecure-skip-tls-verify=true >&2
metric() { kubectl --kubeconfig "$dir/scheduler" get --raw /metrics | awk -v name="$1" 'index($1, name) == 1 { sum += $2 } END { print sum + 0 }'; }
now() { date +%s.%N; }
less() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a - b }'; }

kubectl create namespace team >&2
plain() {
	begin=$(now) cpu=$(metric process_cpu_seconds_total)
	kubectl -n team apply -f - >&2 <<-POD
		{apiVersion: v1, kind: Pod, metadata: {name: $1}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: none, imagePullPolicy: Never}]}}
	POD
	kubectl -n team wait --for=condition=PodScheduled "pod/$1" --timeout=60s >&2
	used=$(less "$(metric process_cpu_seconds_total)" "$cpu") took=$(less "$(now)" "$begin")
	echo "| $1 | $took | $used |"
	case $used in 0.*) ;; *) failed=1 ;; esac
}

failed=
printf '| pod without GPUs | seconds until it has a node, kubectl included | CPU of the scheduler in them |\n|---|---|---|\n'
for i in 1 2 3; do plain "alone-$i"; done
for copy in a b c; do
	sed "s/dearest-/dearest-$copy-/g" "$pods" | kubectl -n team apply -f - >&2 || echo "some are refused" >&2
done
for i in 1 2 3 4 5 6 7 8 9 10; do
	sleep 2 # The tries of those that wait are spread over seconds.
	plain "beside-$i"
done
waiting=$(kubectl -n team get pods --field-selector spec.nodeName= -o name | grep -c dearest || true)
printf '\n%s dear pods wait; machine load %s\n' "$waiting" "$(cut -d' ' -f1-3 /proc/loadavg)"
tries=$(metric 'scheduler_scheduling_attempt_duration_seconds_count{profile="default-scheduler",result="unschedulable"}')
spent=$(metric 'scheduler_scheduling_attempt_duration_seconds_sum{profile="default-scheduler",result="unschedulable"}')
awk -v n="$tries" -v s="$spent" 'BEGIN { printf "%d tries of pods that wait, %.3f s each by the clock\n", n, n ? s / n : 0 }'
[ -z "$failed" ]
