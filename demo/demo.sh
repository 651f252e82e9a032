#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The demonstration behind `make demo`: a real Kubernetes with two nodes of
# simulated GPUs, a Job as ACK runs it before the driver is there and after it has
# been installed as a user would, and demo/quickstart.
#
#   demo/demo.sh CLUSTER_DIR
#
# It may be run again at any time; what is there already is kept.
set -eu

cluster_dir=$1
cd "$(dirname "$0")/.."
log=.build/demo.log
started=$(date +%s)
step=starting
mkdir -p .build
: >"$log"

nodes="n1=v100x4:share n2=a100x8"
legacy=demo/legacy/binpack.yaml

cluster() { .build/bin/cluster --dir "$cluster_dir" "$@"; }
kubectl() { cluster kubectl "$@"; }

fail() {
	[ "$1" -eq 0 ] && return
	kill ${building:+"$building"} ${loading:+"$loading"} 2>>"$log" || true
	echo
	echo "The demo failed in step \"$step\". Its last lines:"
	tail -n 15 "$log" | sed 's/^/    /'
	echo "All of its output: $log"
	echo "Logs of Kubernetes and of the nodes: $cluster_dir/logs"
	echo "After a repair, \`make demo\` goes on from here; \`make demo-down\` removes everything."
}
trap 'fail $?' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# run NAME COMMAND… shows and keeps what a step prints.
run() {
	step=$1
	shift
	printf '[%3ss] %s\n' "$(($(date +%s) - started))" "$step"
	# The exit status is the command's, not tee's.
	status=$({ { "$@" 2>&1 || echo $? >&3; } | tee -a "$log" | sed 's/^/         /' >&4; } 3>&1) 4>&1
	[ -z "$status" ] || exit "$status"
}

# quiet NAME COMMAND… keeps what a step prints and shows none of it.
quiet() {
	step=$1
	shift
	printf '[%3ss] %s\n' "$(($(date +%s) - started))" "$step"
	"$@" >>"$log" 2>&1
}

pods_ready() {
	kubectl wait pod --all --for=condition=Ready --timeout=120s && return
	kubectl describe pods
	return 1
}

# To wait for pods by their label is an error while there are none.
pods_made() { kubectl wait job/binpack --for='jsonpath={.status.active}=8' --timeout=60s; }

# What comes next is to find the GPUs free.
claims_gone() {
	tries=300
	while [ -n "$(kubectl get resourceclaims -l gpu.aliyun.com/legacy=true -o name)" ]; do
		tries=$((tries - 1))
		[ "$tries" -gt 0 ] || return 1
		sleep 0.1
	done
}

heading() { printf '\n%s\n' "$1"; }

# inside POD… prints what a container was given: its environment, and its GPUs.
inside() { kubectl exec "$@" -- gpu-probe once | sed -nE '/^(ALIYUN_COM_|NVIDIA_VISIBLE|\/dev\/)/s/^/  /p'; }

# beside HEADING COMMAND… runs a command while others do: kubectl mostly starts. shown prints what they did, in order.
parts=.build/demo.parts
pids=
beside() {
	{
		heading "$1"
		shift
		"$@"
	} >"$parts/$(echo "$pids" | wc -w)" 2>&1 &
	pids="$pids $!"
}
shown() {
	for pid in $pids; do
		wait "$pid" || {
			cat "$parts"/* >>"$log"
			return 1
		}
	done
	cat "$parts"/*
}

granted() {
	kubectl get resourceclaims -o go-template='{{range .items}}{{$pod := (index .status.reservedFor 0).name}}{{range .status.allocation.devices.results -}}
{{printf "%-24s %-9s" $pod .request}} {{printf "%-8s %-13s" .pool .device}} {{with .consumedCapacity}}{{.memory}}{{else}}the whole GPU{{end}}
{{end}}{{end}}' | sort
}

legacy_pod() { kubectl get pods -l app=binpack -o name | head -n 1; }

load_image() { cluster up --nodes "$nodes" --image .build/driver-image.tar ${K8S:+--kubernetes "$K8S"}; }

install() {
	wait "$building"
	if [ -n "${loading:-}" ]; then wait "$loading"; else load_image; fi
	tests/cluster/install-driver.sh .build/driver-image.tar .build/bin/cluster --dir "$cluster_dir"
	[ -z "${deleting:-}" ] || wait "$deleting"
}

exec 4>&1
# The first time there is all of Kubernetes to build; what was built is kept, in the
# cache of components and in Go's.
cache=${GPUSHARE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}}/gpushare-cluster
if ! ls -d "$cache"/kubernetes-*/ >>"$log" 2>&1; then
	cat <<'EOF_HEADING'
What this runs is built first, from Go modules, and only once. On 2 cores with nothing else to do that takes some 8 minutes,
and up to 20 on a busy machine or a slow network; the next demo takes up to a minute.
  1. the driver's image, kubectl inspect cgpu, Helm  2 to 3 minutes
  2. Kubernetes 1.37.2, all of it in one program     4 to 5 minutes
  3. containerd, runc, network plugins               1 minute

EOF_HEADING
	# Built as the driver is, the plugin of kubectl shares most of what is compiled for it.
	run "build what is missing" make --no-print-directory images kubectl-inspect-cgpu
else
	make --no-print-directory .build/bin/cluster >>"$log" 2>&1
fi
# The cluster needs none of it to start, and mostly waits.
make --no-print-directory images kubectl-inspect-cgpu helm >>"$log" 2>&1 &
building=$!
if kubectl get daemonset gpu-kubelet-plugin --namespace kube-system >>"$log" 2>&1; then
	echo "The driver is installed already: after \`make demo-down\` this shows $legacy without it, too."
else
	run "start the cluster, without the driver" cluster up --nodes "$nodes" ${K8S:+--kubernetes "$K8S"}
	# Nobody waits for the nodes to have the image while there is a look at the pods without it.
	{
		while kill -0 "$building" 2>>"$log"; do sleep 0.1; done
		[ ! -e .build/driver-image.tar ] || load_image
	} >>"$log" 2>&1 &
	loading=$!
	quiet "apply $legacy, eight pods with aliyun.com/gpu-mem: 3" kubectl apply -f "$legacy"
	quiet "wait for its pods" pods_made
	quiet "wait for the scheduler to look at them" kubectl wait pod -l app=binpack --timeout=60s \
		--for='jsonpath={.status.conditions[?(@.type=="PodScheduled")].reason}=Unschedulable'
	heading "Before, on a stock Kubernetes: one of them"
	kubectl get "$(legacy_pod)" -o go-template='{{.metadata.name}}: {{.status.phase}}
{{range .status.conditions}}{{if eq .type "PodScheduled"}}{{.message}}{{"\n"}}{{end}}{{end}}'
	echo
	kubectl delete -f "$legacy" >>"$log" 2>&1 &
	deleting=$!
fi
quiet "${deleting:+delete them, and }install the driver, by its Helm chart" install
quiet "apply the same file" kubectl apply -f "$legacy"
quiet "wait for its pods" pods_made
quiet "wait for them to run" kubectl wait pod -l app=binpack --for=condition=Ready --timeout=120s
heading "After, of the same file: one of them, what it was given, and kubectl inspect cgpu"
kubectl get "$(legacy_pod)" -o go-template='{{.metadata.name}}: {{.status.phase}}
'
inside "$(legacy_pod)"
KUBECONFIG="$cluster_dir/kubeconfig" .build/bin/kubectl-inspect-cgpu n1
echo
quiet "delete them" kubectl delete -f "$legacy"
quiet "wait for their claims to be gone" claims_gone
quiet "apply demo/quickstart" kubectl apply -f demo/quickstart
quiet "wait for its Deployment" kubectl rollout status deployment/share --timeout=120s
quiet "wait for its pods" pods_ready
step="show what happened"
rm -rf "$parts"
mkdir "$parts"
beside "Nodes and the mode of their GPUs" kubectl get nodes -L ack.node.gpu.schedule
beside "GPUs, as the ResourceSlices publish them" kubectl get resourceslices -o go-template='{{range .items}}{{$node := .spec.nodeName}}{{range .spec.devices -}}
{{printf "%-4s %-13s %-22s" $node .name .attributes.model.string}} memory {{printf "%-9s" .capacity.memory.value}} {{with .capacity.slots}}up to {{.value}} shares{{else}}one claim{{end}}
{{end}}{{end}}'
beside "Pods: the GPU and the memory that each was granted" granted
for target in "exclusive main" "two-containers model" "two-containers sidecar"; do
	pod=${target% *}
	container=${target#* }
	beside "Inside pod $pod, container $container" inside "$pod" -c "$container"
done
shown

cat <<EOF

Done in $(($(date +%s) - started)) s. Go on with kubectl (or with $PWD/.build/bin/cluster kubectl):
  export KUBECONFIG=$(cd "$cluster_dir" && pwd)/kubeconfig
  export PATH=\$PATH:$PWD/.build/bin      # for kubectl inspect cgpu
Stop it, and remove everything it made:
  make demo-down
EOF
