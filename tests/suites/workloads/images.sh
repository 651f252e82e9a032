#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# images.sh OUT CLUSTER [MANIFEST…]: for each of these manifests, or of those in demo/workloads, an archive in OUT,
# NAME.tar, of the image that it names, with the stand-in instead of the program. CLUSTER is the program that builds
# images.
set -eu
out=$1 cluster=$2
shift 2
here=$(dirname "$0")
[ $# -gt 0 ] || set -- "$here"/../../../demo/workloads/*.yaml
manifests=$*
# One that is linked dynamically would need more of the image.
if ! command -v busybox >/dev/null || ldd "$(command -v busybox)" >/dev/null 2>&1; then
	apt-get install --yes --no-install-recommends busybox-static
fi
mkdir -p "$out"
for manifest in $manifests; do
	set --
	for command in sh awk basename dirname env httpd mkdir sleep; do
		set -- "$@" --file "$(command -v busybox)=/bin/$command:0755"
	done
	for program in bash python ray start-notebook.py tritonserver vllm; do
		set -- "$@" --file "$here/standin.sh=/bin/$program:0755"
	done
	"$cluster" image build --name "$(sed -n 's/^ *image: //p' "$manifest" | head -n 1)" \
		--out "$out/$(basename "$manifest" .yaml).tar" --env PATH=/bin "$@"
done
