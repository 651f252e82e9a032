#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The driver on a cluster of kind whose nodes have simulated GPUs: builds the images with docker,
# creates the cluster, installs the driver by its chart, and runs a pod with a claim and a pod as
# on ACK.
#
#   demo/kind.sh
#   kind delete cluster --name gpushare      # removes the cluster
#
# Run again, it keeps what is there and rolls out what has changed. kubectl's own configuration
# stays as it is: the cluster's is .build/kind/kubeconfig. Variables:
#
#   KIND_IMAGE    the nodes' image, where it is not to be kind's default
#   MACHINE       the GPUs of a node: a file of demo/machines without .yaml (v100x4)
#   GO_IMAGE      what the images are built in (see deployments/container/Dockerfile)
set -eu
cd "$(dirname "$0")/.."

cluster=gpushare
machine=${MACHINE:-v100x4}
out=.build/kind
log=$out/log
started=$(date +%s)
step=
mkdir -p "$out"
: >"$log"
export KUBECONFIG="$PWD/$out/kubeconfig"
# The archive that kind loads has the image alone, without a record of how it was built.
export BUILDX_NO_DEFAULT_ATTESTATIONS=1

fail() {
	[ "$1" -ne 0 ] && [ -n "$step" ] || return 0
	echo
	echo "demo/kind.sh failed in step \"$step\". The last lines of $log:"
	tail -n 15 "$log" | sed 's/^/    /'
	echo "After a repair, demo/kind.sh goes on from here; kind delete cluster --name $cluster removes the cluster."
}
trap 'fail $?' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# run STEP COMMAND… keeps in the log what a step prints.
run() {
	step=$1
	shift
	printf '[%3ss] %s\n' "$(($(date +%s) - started))" "$step"
	"$@" >>"$log" 2>&1
}

missing=
lack() {
	missing="$missing
- $1"
}

# at_least VERSION MAJOR MINOR reports whether a version such as v1.37.2 is not older.
at_least() {
	version=${1#v}
	minor=${version#*.}
	minor=${minor%%[!0-9]*}
	[ "${version%%.*}" -gt "$2" ] 2>>"$log" || { [ "${version%%.*}" -eq "$2" ] && [ "$minor" -ge "$3" ]; } 2>>"$log"
}

check_docker() {
	if ! command -v docker >/dev/null; then
		lack "docker is missing: https://docs.docker.com/engine/install"
		return
	fi
	if ! arch=$(docker version --format '{{.Server.Arch}}' 2>>"$log"); then
		lack "docker does not answer: does its daemon run, and may you use it? \`docker version\` shows the reason"
		return
	fi
	case $arch in
	amd64 | arm64) ;;
	*) lack "docker runs on $arch: the images are for amd64 and arm64" ;;
	esac
	case $(docker info --format '{{.SecurityOptions}}' 2>>"$log") in
	*rootless*) lack "docker is rootless, so its containers can make no device nodes: use one that runs as root" ;;
	esac
}

# check PROGRAM MAJOR MINOR WHERE COMMAND… checks the version that a command prints.
check() {
	program=$1 major=$2 least=$3 where=$4
	shift 4
	if ! command -v "$program" >/dev/null; then
		lack "$program is missing: $where"
	elif ! has=$("$@" 2>>"$log") || ! at_least "$has" "$major" "$least"; then
		lack "$program ${has:-without a version} is too old, $major.$least or newer is needed: $where"
	fi
}

check_all() {
	check_docker
	# Older ones cannot load images into nodes of Kubernetes 1.36.
	check kind 0 32 https://kind.sigs.k8s.io/docs/user/quick-start/#installation kind version -q
	check helm 3 0 https://helm.sh/docs/intro/install helm version --template '{{.Version}}'
	command -v kubectl >/dev/null || lack "kubectl is missing: https://kubernetes.io/docs/tasks/tools"
	[ -e "demo/machines/$machine.yaml" ] ||
		lack "MACHINE=$machine: there is no demo/machines/$machine.yaml"
	[ -z "$missing" ] || {
		echo "demo/kind.sh has done nothing yet:$missing" >&2
		exit 2
	}
}

# build NAME DIRECTORY builds an image, and names it by its content: a changed one is rolled out.
build() {
	docker build --iidfile "$out/$1.id" --file "$2/Dockerfile" ${GO_IMAGE:+--build-arg "GO_IMAGE=$GO_IMAGE"} .
	docker tag "$(cat "$out/$1.id")" "localhost/$1:$(tag "$1")"
}
tag() { cut -d : -f 2 "$out/$1.id" | cut -c 1-12; }

create() {
	if kind get clusters | grep -qx "$cluster"; then
		kind export kubeconfig --name "$cluster"
	else
		kind create cluster --name "$cluster" --wait 5m ${KIND_IMAGE:+--image "$KIND_IMAGE"}
	fi
}

check_kubernetes() {
	served=$(kubectl get nodes --output 'jsonpath={.items[0].status.nodeInfo.kubeletVersion}')
	at_least "$served" 1 36 || {
		echo "The nodes run Kubernetes $served, and the driver needs 1.36 or newer. Remove the cluster, and name another image:"
		echo "kind delete cluster --name $cluster; KIND_IMAGE=kindest/node:v1.37.0 demo/kind.sh"
		return 1
	}
}

simulate() {
	sed -e "s#localhost/simulated-gpus:dev#$simulated#" -e "s#value: v100x4#value: $machine#" \
		demo/kind/simulated-gpus.yaml | kubectl apply --filename -
	kubectl --namespace kube-system rollout status daemonset/simulated-gpus --timeout=180s
	kubectl label node --all --overwrite ack.node.gpu.schedule=share
}

install() {
	# A tag may have nothing but digits.
	helm upgrade --install dra-driver-gpushare deployments/helm/dra-driver-gpushare --namespace kube-system \
		--values demo/kind/values.yaml --set-string "image.tag=${driver##*:}"
	kubectl --namespace kube-system rollout status daemonset/gpu-kubelet-plugin --timeout=180s
	kubectl --namespace kube-system rollout status deployment/gpu-compat-controller --timeout=180s
}

# pod FILE NAMESPACE runs the pod of a file, with the driver's image.
pod() {
	kubectl create namespace "$2" --dry-run=client --output yaml | kubectl apply --filename -
	sed "s#your-image#$driver#" "$1" | kubectl --namespace "$2" apply --filename -
	kubectl --namespace "$2" wait pod/first --for=condition=Ready --timeout=180s
	kubectl --namespace "$2" logs first >"$out/$2.given"
}

check_all
run "build the driver's image; the first time that takes minutes" build dra-driver-gpushare deployments/container
run "build the image of simulated GPUs" build simulated-gpus tests/standins/image
driver=localhost/dra-driver-gpushare:$(tag dra-driver-gpushare)
simulated=localhost/simulated-gpus:$(tag simulated-gpus)
run "create the cluster $cluster of kind, or go on with it" create
run "look which Kubernetes it is" check_kubernetes
run "load the images" kind load docker-image "$driver" "$simulated" --name "$cluster"
run "simulate the GPUs of machine $machine" simulate
run "install the driver, by its Helm chart" install
run "apply demo/first-claim.yaml" pod demo/first-claim.yaml claims
run "apply demo/first-legacy.yaml, a pod as on ACK" pod demo/first-legacy.yaml ack
for namespace in claims ack; do
	printf '\nPod first of namespace %s was given:\n' "$namespace"
	sed 's/^/  /' "$out/$namespace.given"
done

cat <<EOF_NEXT

Done in $(($(date +%s) - started)) s. Look around:
  export KUBECONFIG=$KUBECONFIG
  kubectl get resourceslices,deviceclasses
  kubectl get pods,resourceclaims -A
  make kubectl-inspect-cgpu && .build/bin/kubectl-inspect-cgpu      # with Go: which pod has what of which GPU
Break a GPU, and read the Events of its node:
  kubectl -n kube-system exec daemonset/simulated-gpus -- simnode fault --root /var/lib/simulated-gpus gpu-2 xid=79
  kubectl describe nodes
Remove the cluster:
  kind delete cluster --name $cluster
EOF_NEXT
