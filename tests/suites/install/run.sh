#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the three commands of README.md that lead from a cluster without the driver to a pod with
# a share of a GPU, with the chart and the image of a release, and prints how long they take:
#
#   run.sh BUILD CLUSTER_DIR RELEASE
#
# BUILD has the cluster tool, Helm, and release/RELEASE. The commands are run as they are
# written, but for what the reader puts in: the release, the registry and the node. The node's
# GPUs are simulated, which is why Helm is told where their driver lies. The image is on the
# node already: nothing is pulled.
set -eu
cd "$(dirname "$0")/../../.."
build=$(realpath "$1")
dir=$(realpath -m "$2")
release=$3
cluster=$build/bin/cluster
image=$build/release/$release/dra-driver-gpushare-image-$release.tar
[ -e "$image" ] || {
	echo "test-install: there is no $image: build the release with: make release-artifacts RELEASE=$release" >&2
	exit 1
}

work=$(mktemp -d)
started=$(date +%s)
down() {
	status=$?
	trap - EXIT
	"$cluster" --dir "$dir" down || status=$?
	rm -rf "$work"
	exit "$status"
}
trap down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

commands=$work/commands
sed -n '/^helm install /,/^```/p' README.md | grep -v '^```' >"$commands"
[ "$(wc -l <"$commands")" -eq 3 ] || {
	echo "test-install: README.md has other commands than three, from \"helm install\" to the end of the block:" >&2
	cat "$commands" >&2
	exit 1
}
cat >"$work/simulated.yaml" <<'EOF'
nvidiaDriverRoot: /run/nvidia/driver
kubeletPlugin: {settings: {SYSFS_ROOT: /host/run/nvidia/driver/sys}}
EOF
sed -i -e "s#\.build/dra-driver-gpushare-0\.0\.0-dev#.build/release/$release/dra-driver-gpushare-${release#v}#" \
	-e "s/REGISTRY/localhost/; s/ NODE / n1 /" \
	-e "1s|\$| --values $work/simulated.yaml|" "$commands"

"$cluster" --dir "$dir" down
"$cluster" --dir "$dir" up --nodes n1=v100x4 --image "$image" ${K8S:+--kubernetes "$K8S"}
echo "test-install: the cluster, without the driver, is up after $(($(date +%s) - started)) s"

# The reader's kubectl and helm.
printf '#!/bin/sh\nexec "%s" --dir "%s" kubectl "$@"\n' "$cluster" "$dir" >"$work/kubectl"
chmod +x "$work/kubectl"
PATH=$work:$build/bin:$PATH
export PATH KUBECONFIG="$dir/kubeconfig"
began=$(date +%s)
while read -r command; do
	echo "$ $command"
	step=$(date +%s)
	sh -c "$command" >"$work/said" 2>&1 </dev/null || {
		cat "$work/said" >&2
		kubectl get pods,resourceclaims,resourceslices --all-namespaces --output wide >&2
		exit 1
	}
	cat "$work/said"
	echo "# after $(($(date +%s) - step)) s"
done <"$commands"
took=$(($(date +%s) - began))
# What the last command printed is the share.
for part in ALIYUN_COM_GPU_MEM_CONTAINER=1 ALIYUN_COM_GPU_MEM_DEV= /dev/nvidia0; do
	grep -q "^$part" "$work/said" || {
		echo "test-install: the last command printed no line that begins with $part" >&2
		exit 1
	}
done
echo "test-install: three commands of README.md led from a cluster without the driver to a running share in $took s"
