#!/bin/sh
# Installs the driver in a running cluster, the way a user would, with the image
# and the simulated cards of the cluster's nodes:
#
#   install-driver.sh ARCHIVE CLUSTER [ARGUMENT…]
#
# CLUSTER and its arguments are the command that speaks to the cluster. Pods that
# run another build of the image are replaced.
set -eu

archive=$1
shift
checkout=$(cd "$(dirname "$0")/../.." && pwd)
manifests=$checkout/deployments/manifests
daemonset=daemonset/gpu-kubelet-plugin

if [ ! -e "$manifests/kustomization.yaml" ]; then
	echo "no driver installed: $manifests has no kustomization.yaml" >&2
	exit 0
fi

# The nodes' cards are simulated: where their driver lies and what they are.
"$@" kubectl apply -f - <<'EOF'
apiVersion: v1
kind: ConfigMap
metadata:
  name: gpu-kubelet-plugin
  namespace: kube-system
data:
  NVIDIA_DRIVER_ROOT: /run/nvidia/driver
  GPU_SIMULATED_MACHINE: /run/nvidia/driver/machine.yaml
EOF
"$@" kubectl apply -k "$manifests"

# The image's name stays when its content changes; the annotation makes the
# change one of the DaemonSet, which replaces its pods in turn.
digest=$(sha256sum "$archive" | cut -d ' ' -f 1)
"$@" kubectl --namespace kube-system patch "$daemonset" --patch \
	"{\"spec\":{\"template\":{\"metadata\":{\"annotations\":{\"gpu.aliyun.com/image-archive\":\"sha256:$digest\"}}}}}"
"$@" kubectl --namespace kube-system rollout status "$daemonset" --timeout=120s
