#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the driver in a running cluster, the way a user would, with the image
# and the simulated cards of the cluster's nodes:
#
#   install-driver.sh ARCHIVE CLUSTER [ARGUMENT…]
#
# CLUSTER and its arguments are the command that speaks to the cluster. Pods that
# run another build of the image are replaced; with KEEP_SUPERVISORS=1 not those of
# gpu-mps-supervisor, as in an update by a user. Beside the archive it writes what it
# applies, in install/.
set -eu

archive=$1
shift
checkout=$(cd "$(dirname "$0")/../.." && pwd)
manifests=$checkout/deployments/manifests
overlay=$(dirname "$archive")/install
mkdir -p "$overlay"

# The image's name stays when its content changes. With the annotation the change is
# one of the DaemonSet, which replaces its pods in turn.
digest=$(sha256sum "$archive" | cut -d ' ' -f 1)
# As a label's value, which takes 63 characters.
build=$(printf %s "$digest" | cut -c 1-32)

cat >"$overlay/kustomization.yaml" <<EOF
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- $(realpath --relative-to "$overlay" "$manifests")
- settings.yaml
patches:
- target: {kind: DaemonSet, name: gpu-kubelet-plugin}
  patch: |
    apiVersion: apps/v1
    kind: DaemonSet
    metadata: {name: gpu-kubelet-plugin}
    spec:
      template:
        metadata: {annotations: {gpu.aliyun.com/image-archive: "sha256:$digest"}}
- target: {kind: Deployment, name: gpu-compat-controller}
  patch: |
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: gpu-compat-controller}
    spec:
      template:
        metadata: {annotations: {gpu.aliyun.com/image-archive: "sha256:$digest"}}
- target: {kind: DaemonSet, name: gpu-mps-supervisor}
  patch: |
    apiVersion: apps/v1
    kind: DaemonSet
    metadata: {name: gpu-mps-supervisor}
    spec:
      template:
        metadata: {labels: {gpu.aliyun.com/image-archive: "$build"}}
EOF

# The nodes' cards are simulated: where their driver lies and what they are.
cat >"$overlay/settings.yaml" <<'EOF'
apiVersion: v1
kind: ConfigMap
metadata:
  name: gpu-kubelet-plugin
  namespace: kube-system
data:
  NVIDIA_DRIVER_ROOT: /run/nvidia/driver
  SYSFS_ROOT: /host/run/nvidia/driver/sys
  GPU_READ_INTERVAL: 2s
---
# Nodes and pods come and go by the minute here.
apiVersion: v1
kind: ConfigMap
metadata:
  name: gpu-compat-controller
  namespace: kube-system
data:
  CLASS_GRACE: 5s
  TEMPLATE_GRACE: 5s
  # Off by default: so that they are tried.
  POD_ANNOTATIONS_V1: "true"
EOF

"$@" kubectl apply -k "$overlay"
# The supervisor's pods are replaced when somebody deletes them: here that is us.
[ -n "${KEEP_SUPERVISORS:-}" ] ||
	"$@" kubectl --namespace kube-system delete pods --selector "app.kubernetes.io/component=gpu-mps-supervisor,gpu.aliyun.com/image-archive!=$build"
"$@" kubectl --namespace kube-system rollout status daemonset/gpu-kubelet-plugin --timeout=120s
"$@" kubectl --namespace kube-system rollout status deployment/gpu-compat-controller --timeout=120s
nodes=$("$@" kubectl --namespace kube-system get daemonset/gpu-mps-supervisor --output 'jsonpath={.status.desiredNumberScheduled}')
"$@" kubectl --namespace kube-system wait daemonset/gpu-mps-supervisor --for "jsonpath={.status.numberAvailable}=$nodes" --timeout=120s
