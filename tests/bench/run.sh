#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Brings a cluster up, measures the driver on it, prints the table, and takes the
# cluster down again:
#
#   run.sh BUILD DIRECTORY [ARGUMENT…]
#
# BUILD is where `make images` left its results, DIRECTORY the cluster's; the
# arguments go to tests/bench (see its --help). With KEEP=1 the cluster stays, and
# the next run is on the same one. MACHINE, of demo/machines, is the node's; with THEN, arguments of
# `helm upgrade`, all of it is measured again with these settings, when devices say THEN_DEVICES.
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
go build -C "$checkout" -buildvcs=false -o "$build/bench/edits" ./tests/bench/edits
CGO_ENABLED=1 go build -C "$checkout/deployments/container/cdi-hook" -buildvcs=false -tags netgo,osusergo,grpcnotrace,urfave_cli_no_template -ldflags '-s -w -extldflags -static' \
	-o "$build/bench/nvidia-cdi-hook" github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook 2>/dev/null
cluster image build --name localhost/bench-trivial:dev --out "$build/bench/trivial.tar" \
	--entrypoint /trivial --file "$build/bench/trivial=/trivial:0755" --directory /tmp:0777
[ -z "${NVIDIA:-}" ] || "$bench/nvidia/image.sh" "$NVIDIA" "$build"

{
	# shellcheck disable=SC2086
	cluster up --nodes "n1=$machine:share" --image "$build/driver-image.tar" --image "$build/bench/trivial.tar" \
		${NVIDIA:+--image "$build/bench/nvidia.tar"}
	HELM_ARGS=$helm_args "$checkout/tests/cluster/install-driver.sh" "$build/driver-image.tar" "$build/bin/cluster" --dir "$directory"
	# The role of the option that bursts are measured with: the benchmark binds it.
	cluster kubectl apply -k "$checkout/deployments/options/node-reads-claims"
	cluster kubectl delete clusterrolebinding gpushare:node-reads-claims
	# What containers of the comparison get: the product's edits with the toolkit's hooks.
	node=$directory/nodes/n1
	hooked=/var/lib/kubelet/plugins/hooked.bench.test
	mkdir -p "$node$hooked"
	cp "$build/bench/nvidia-cdi-hook" "$node$hooked/"
	"$build/bench/edits" --node-root "$(realpath "$node")" --driver-root /run/nvidia/driver --hook "$hooked/nvidia-cdi-hook" >"$node$hooked/edits.json"
	cluster kubectl apply -f "$bench/trivial/daemonset.yaml"
	cluster kubectl --namespace kube-system rollout status daemonset/trivial --timeout=120s
	if [ -n "${NVIDIA:-}" ]; then
		# Or this driver would offer no GPU that the other one offers, too.
		cluster kubectl label --overwrite node n1 gpu.aliyun.com/gpu-driver=gpu.aliyun.com
		cluster kubectl apply -f "$bench/nvidia/daemonset.yaml"
		cluster kubectl --namespace kube-system rollout status daemonset/nvidia --timeout=120s
	fi
} >&2

measure() {
	"$build/bench/bench" \
		--kubeconfig "$(cd "$directory" && pwd)/kubeconfig" --node n1 --containerd-log "$directory/logs/n1-containerd.log" \
		--plugin "$build/image/gpu-kubelet-plugin" --hook "$build/image/gpu-cdi-hook" --trivial "$build/bench/trivial" \
		${NVIDIA:+--nvidia "$build/bench/nvidia-gpu-kubelet-plugin"} \
		--install "HELM_ARGS='$helm_args' '$checkout/tests/cluster/install-driver.sh' '$build/driver-image.tar' '$build/bin/cluster' --dir '$directory'" \
		--uninstall "'$build/bin/helm' --kubeconfig '$directory/kubeconfig' --namespace kube-system uninstall dra-driver-gpushare --wait" \
		--machine "$checkout/demo/machines/$machine.yaml" --nvml "$directory/bin/libnvidia-ml.so" --dir "$build/bench" "$@"
}

measure "$@"
[ -n "${THEN:-}" ] || exit 0
HELM_ARGS="$helm_args $THEN" "$checkout/tests/cluster/install-driver.sh" "$build/driver-image.tar" "$build/bin/cluster" --dir "$directory" >&2
tries=0
until cluster kubectl get resourceslices --output yaml | grep -q "$THEN_DEVICES"; do
	tries=$((tries + 1))
	[ "$tries" -lt 120 ] || { echo "bench: after two minutes no device says $THEN_DEVICES" >&2; exit 1; }
	sleep 1
done
printf '\nWith %s\n' "$THEN"
measure "$@"
