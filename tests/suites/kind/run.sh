#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs demo/kind.sh as it is, with stand-ins for docker and kind (bin): the cluster is one of the
# tests, whose node gets its GPUs from the DaemonSet of demo/kind alone:
#
#   run.sh BUILD CLUSTER_DIR
#
# BUILD has the cluster tool, Helm and what is in the driver's image.
set -eu
cd "$(dirname "$0")/../../.."
build=$(realpath "$1")
dir=$(realpath -m "$2")
cluster=$build/bin/cluster
root=/var/lib/simulated-gpus

work=$(mktemp -d)
down() {
	status=$?
	trap - EXIT
	if [ "$status" -ne 0 ]; then
		cat .build/kind/log || true
		kubectl get pods,resourceclaims,resourceslices --all-namespaces --output wide || true
		kubectl describe pods --all-namespaces | tail -n 60 || true
	fi >&2
	"$cluster" --dir "$dir" down || status=$?
	rm -rf "$work"
	exit "$status"
}
trap down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# wants TEXT LINE-BEGINNING… fails unless each begins a line of the file.
wants() {
	file=$1
	shift
	for line; do
		grep -q "^ *$line" "$file" || {
			cat "$file" >&2
			echo "test-kind: no line begins with $line" >&2
			exit 1
		}
	done
}
pods() { kubectl get pods --all-namespaces --output 'jsonpath={.items[*].metadata.uid}'; }

printf '#!/bin/sh\nexec "%s" --dir "%s" kubectl "$@"\n' "$cluster" "$dir" >"$work/kubectl"
chmod +x "$work/kubectl"
PATH=$PWD/tests/suites/kind/bin:$work:$build/bin:$PATH
export PATH STANDIN_DIR="$work" STANDIN_PACKER="$cluster" STANDIN_CLUSTER="$dir"
# What was built is not linked again.
mkdir "$work/container"
cp -a "$build/image" "$work/container/"
"$cluster" --dir "$dir" down

demo/kind.sh | tee "$work/said"
wants .build/kind/claims.given ALIYUN_COM_GPU_MEM_CONTAINER=3 /dev/nvidia0
wants .build/kind/ack.given ALIYUN_COM_GPU_MEM_CONTAINER=3 /dev/nvidia0
wants "$work/said" 'Done in'

echo "test-kind: again, with what is there"
before=$(pods)
demo/kind.sh >"$work/said"
wants "$work/said" 'Done in'
[ "$(pods)" = "$before" ] || {
	echo "test-kind: pods were replaced though nothing has changed" >&2
	exit 1
}

echo "test-kind: a GPU that is broken as the script tells"
sed -n 's/^ *\(kubectl .* fault .*\)/\1/p' "$work/said" >"$work/fault"
wants "$work/fault" 'kubectl .*gpu-2 xid=79'
sh -e "$work/fault"
kubectl wait resourceslices --all --timeout=60s \
	--for='jsonpath={.spec.devices[?(@.name=="gpu-2-share")].taints[0].effect}'

echo "test-kind: the pod of simulated GPUs is replaced, and the mode becomes mps"
kubectl --namespace kube-system delete pods --selector app=simulated-gpus
kubectl --namespace kube-system rollout status daemonset/simulated-gpus --timeout=180s
kubectl delete namespace claims ack
kubectl label node --all --overwrite ack.node.gpu.schedule=mps
driver=$(kubectl --namespace kube-system get daemonset/gpu-kubelet-plugin \
	--output 'jsonpath={.spec.template.spec.containers[0].image}')
sed "s#your-image#$driver#; s/share.gpu.aliyun.com/mps.gpu.aliyun.com/" demo/first-claim.yaml | kubectl apply --filename -
kubectl wait pod/first --for=condition=Ready --timeout=180s
kubectl logs first >"$work/said"
wants "$work/said" CUDA_MPS_PIPE_DIRECTORY= /dev/nvidia
# The plugin sees the node read-only, and has set the compute mode all the same.
[ -n "$(find "$dir/nodes/gpushare-control-plane$root/state" -name '*.compute-mode')" ] || {
	echo "test-kind: no compute mode was set in $root/state" >&2
	exit 1
}
echo "test-kind: demo/kind.sh led to running pods on simulated GPUs, with stand-ins for docker and kind"
