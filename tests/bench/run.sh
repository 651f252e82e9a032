#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Brings a cluster up, measures the driver on it, prints the table, and takes the
# cluster down again:
#
#   run.sh BUILD DIRECTORY [ARGUMENT…]
#
# BUILD is where `make images` left its results, DIRECTORY the cluster's; the
# arguments go to tests/bench (see its --help). With KEEP=1 the cluster stays, and
# the next run is on the same one. MACHINE, of demo/machines, is the node's.
# NVIDIA is a checkout of kubernetes-sigs/dra-driver-nvidia-gpu: its driver is built there,
# runs on the same node, and is measured in turn with the others.
set -eu

checkout=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$1" && pwd)
directory=$2
shift 2
bench=$checkout/tests/bench
machine=${MACHINE:-dgx1}

# As the chart has them by default, where the settings of the tests are others; and only on the
# node that is real.
helm_args="--set kubeletPlugin.settings.GPU_READ_INTERVAL=1m --set controller.settings.LEADER_ELECT_LEASE_DURATION=15s"
for daemons in kubeletPlugin mpsSupervisor; do
	helm_args="$helm_args --set $daemons.nodeSelector.kubernetes\.io/hostname=n1"
done

cluster() { "$build/bin/cluster" --dir "$directory" "$@"; }

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
echo "bench: building" >&2
# It runs on the machine and, from an image of nothing else, on the nodes.
CGO_ENABLED=0 go build -C "$checkout" -buildvcs=false -ldflags '-s -w' -o "$build/bench/trivial" ./tests/bench/trivial
go build -C "$checkout" -buildvcs=false -o "$build/bench/bench" ./tests/bench
cluster image build --name localhost/bench-trivial:dev --out "$build/bench/trivial.tar" \
	--entrypoint /trivial --file "$build/bench/trivial=/trivial:0755" --directory /tmp:0777
[ -z "${NVIDIA:-}" ] || "$bench/nvidia/image.sh" "$NVIDIA" "$build"

{
	# shellcheck disable=SC2086
	cluster up --nodes "n1=$machine:share" --image "$build/driver-image.tar" --image "$build/bench/trivial.tar" \
		${NVIDIA:+--image "$build/bench/nvidia.tar"}
	HELM_ARGS=$helm_args "$checkout/tests/cluster/install-driver.sh" "$build/driver-image.tar" "$build/bin/cluster" --dir "$directory"
	cluster kubectl apply -f "$bench/trivial/daemonset.yaml"
	cluster kubectl --namespace kube-system rollout status daemonset/trivial --timeout=120s
	if [ -n "${NVIDIA:-}" ]; then
		# Or this driver would offer no GPU that the other one offers, too.
		cluster kubectl label --overwrite node n1 gpu.aliyun.com/gpu-driver=gpu.aliyun.com
		cluster kubectl apply -f "$bench/nvidia/daemonset.yaml"
		cluster kubectl --namespace kube-system rollout status daemonset/nvidia --timeout=120s
	fi
} >&2

"$build/bench/bench" --kubeconfig "$(cd "$directory" && pwd)/kubeconfig" --node n1 \
	--plugin "$build/image/gpu-kubelet-plugin" --hook "$build/image/gpu-cdi-hook" --trivial "$build/bench/trivial" \
	${NVIDIA:+--nvidia "$build/bench/nvidia-gpu-kubelet-plugin"} \
	--machine "$checkout/demo/machines/$machine.yaml" --nvml "$directory/bin/libnvidia-ml.so" --dir "$build/bench" "$@"
