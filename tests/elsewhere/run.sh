#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests the driver in another namespace than kube-system, by its chart, with as few rights as
# it can have, on a new cluster:
#
#   run.sh BUILD CLUSTER_DIR
#
# BUILD has the image of the driver, the cluster tool and Helm. With KEEP=1 the cluster
# stays up afterwards.
set -eu
cd "$(dirname "$0")/../.."
build=$1
dir=$(realpath -m "$2")
cluster=$build/bin/cluster

. tests/ownedcluster.sh

"$cluster" --dir "$dir" down
"$cluster" --dir "$dir" up --nodes "n1=v100x4:mps" --image "$build/driver-image.tar" ${K8S:+--kubernetes "$K8S"}
"$build/bin/helm" install dra-driver-gpushare deployments/helm/dra-driver-gpushare --kubeconfig "$dir/kubeconfig" \
	--namespace gpu-system --create-namespace --set options.devicePluginPods=false \
	--set nvidiaDriverRoot=/run/nvidia/driver --set kubeletPlugin.settings.LIMITS_LIFTED_BY=classes \
	--set controller.settings.TEMPLATE_GRACE=5s --set test.deviceClass=mps.gpu.aliyun.com
"$cluster" --dir "$dir" kubectl --namespace gpu-system rollout status daemonset/gpu-kubelet-plugin --timeout=300s
"$cluster" --dir "$dir" kubectl --namespace gpu-system rollout status deployment/gpu-compat-controller --timeout=300s
E2E_CLUSTER_DIR="$dir" HELM="$(realpath "$build/bin/helm")" go test -vet=off -count=1 -v -tags e2e -timeout 60m ./tests/elsewhere
