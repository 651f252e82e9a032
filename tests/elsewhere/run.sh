#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests the driver in another namespace than kube-system, with as few rights as it can
# have, on a new cluster:
#
#   run.sh BUILD CLUSTER_DIR
#
# BUILD has the image of the driver, and the cluster tool. With KEEP=1 the cluster stays
# up afterwards.
set -eu
cd "$(dirname "$0")/../.."
build=$1
dir=$(realpath -m "$2")
cluster=$build/bin/cluster

. tests/ownedcluster.sh

overlay=$build/elsewhere
mkdir -p "$overlay"
cat >"$overlay/kustomization.yaml" <<END
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: gpu-system
resources:
- $(realpath --relative-to "$overlay" deployments/options/no-device-plugins)
- settings.yaml
END
cat >"$overlay/settings.yaml" <<'END'
apiVersion: v1
kind: Namespace
metadata: {name: gpu-system}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: gpu-kubelet-plugin}
data:
  NVIDIA_DRIVER_ROOT: /run/nvidia/driver
  LIMITS_LIFTED_BY: classes
---
apiVersion: v1
kind: ConfigMap
metadata: {name: gpu-compat-controller}
data: {TEMPLATE_GRACE: 5s}
END

"$cluster" --dir "$dir" down
"$cluster" --dir "$dir" up --nodes "n1=v100x4:mps" --image "$build/driver-image.tar"
"$cluster" --dir "$dir" kubectl apply -k "$overlay"
"$cluster" --dir "$dir" kubectl --namespace gpu-system rollout status daemonset/gpu-kubelet-plugin --timeout=120s
"$cluster" --dir "$dir" kubectl --namespace gpu-system rollout status deployment/gpu-compat-controller --timeout=120s
E2E_CLUSTER_DIR="$dir" go test -count=1 -v -tags e2e -timeout 10m ./tests/elsewhere
