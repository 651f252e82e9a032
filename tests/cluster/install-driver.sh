#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the driver in a running cluster by its chart, the way a user would, with the image
# and the simulated cards of the cluster's nodes:
#
#   install-driver.sh ARCHIVE CLUSTER [ARGUMENT…]
#
# CLUSTER and its arguments are the command that speaks to the cluster. Helm is beside the
# archive of the image, in bin/. Pods that run another build of the image are replaced; with
# KEEP_SUPERVISORS=1 not those of gpu-mps-supervisor, as in an update by a user. HELM_ARGS are
# further arguments of `helm upgrade`, such as "--set options.preemption=true".
set -eu

archive=$1
shift
checkout=$(cd "$(dirname "$0")/../.." && pwd)
helm=$(dirname "$archive")/bin/helm
# Of each run its own: the script may install in several clusters at once.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Users install the chart's archive.
"$helm" package "$checkout/deployments/helm/dra-driver-gpushare" --destination "$work" >"$work/package.log" 2>&1 &
packaging=$!

# The image's name stays when its content changes. With the annotation the change is
# one of the DaemonSet, which replaces its pods in turn.
digest=$(sha256sum "$archive" | cut -d ' ' -f 1)
# As a label's value, which takes 63 characters.
build=$(printf %s "$digest" | cut -c 1-32)

# The nodes' cards are simulated: where their driver lies and what they are. Nodes and pods
# come and go by the minute here.
cat >"$work/values.yaml" <<EOF
nvidiaDriverRoot: /run/nvidia/driver
kubeletPlugin:
  podAnnotations: {gpu.aliyun.com/image-archive: "sha256:$digest"}
  settings:
    SYSFS_ROOT: /host/run/nvidia/driver/sys
    GPU_READ_INTERVAL: 5s
    # Where nodes have their control groups of version 2, whatever those of this machine are.
    CGROUP_ROOT: /run/nvidia/driver/cgroup
mpsSupervisor:
  podLabels: {gpu.aliyun.com/image-archive: "$build"}
controller:
  podAnnotations: {gpu.aliyun.com/image-archive: "sha256:$digest"}
  settings:
    CLASS_GRACE: 5s
    TEMPLATE_GRACE: 5s
    # The least: several tests kill the replica that leads.
    LEADER_ELECT_LEASE_DURATION: 5s
    # Off by default: so that they are tried.
    POD_ANNOTATIONS_V1: true
# What tests of both are about.
options: {devicePluginPods: true}
EOF

"$@" kubectl config view --raw --flatten >"$work/kubeconfig"
# A Helm that was killed leaves a release that is being installed, and nobody may touch that.
"$@" kubectl --namespace kube-system delete secrets --ignore-not-found \
	--selector 'owner=helm,name=dra-driver-gpushare,status in (pending-install,pending-upgrade,pending-rollback)'
# What kubectl installed in a cluster that is up is the release's from now on. Without --force Helm would leave in it
# what the chart does not say.
force=
"$helm" --kubeconfig "$work/kubeconfig" --namespace kube-system status dra-driver-gpushare >/dev/null 2>&1 || force=--force
# About the links in the chart's directory Helm says a line each, which nobody has to read.
wait "$packaging" || {
	cat "$work/package.log" >&2
	exit 1
}
# shellcheck disable=SC2086
"$helm" upgrade --install --take-ownership $force dra-driver-gpushare "$work"/dra-driver-gpushare-*.tgz \
	--kubeconfig "$work/kubeconfig" --namespace kube-system --values "$work/values.yaml" ${HELM_ARGS:-}
# The supervisor's pods are replaced when somebody deletes them: here that is us.
[ -n "${KEEP_SUPERVISORS:-}" ] ||
	"$@" kubectl --namespace kube-system delete pods --selector "app.kubernetes.io/component=gpu-mps-supervisor,gpu.aliyun.com/image-archive!=$build"
"$@" kubectl --namespace kube-system rollout status daemonset/gpu-kubelet-plugin --timeout=300s
"$@" kubectl --namespace kube-system rollout status deployment/gpu-compat-controller --timeout=300s
# How many there should be changes while a node goes or comes.
tries=0
until "$@" kubectl --namespace kube-system get daemonset/gpu-mps-supervisor \
	--output 'jsonpath={.status.desiredNumberScheduled}={.status.numberAvailable}' | grep -qx '\([1-9][0-9]*\)=\1'; do
	tries=$((tries + 1))
	[ "$tries" -lt 300 ] || { echo "install-driver: after five minutes gpu-mps-supervisor is not ready on each node" >&2; exit 1; }
	sleep 1
done
