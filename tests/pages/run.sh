#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the commands of README.md and docs on a new cluster:
#
#   run.sh BUILD CLUSTER_DIR [PATTERN]
#
# BUILD has the image of the driver, the cluster tool and Helm. The driver is installed by the
# commands of docs/install.md. With KEEP=1 the cluster stays up afterwards.
set -eu
cd "$(dirname "$0")/../.."
build=$1
dir=$(realpath -m "$2")
began=$(date +%s)
cluster=$build/bin/cluster

. tests/ownedcluster.sh
afterwards() { tests/took.sh test-pages "$began" "$1"; }

# Commands of the documents need it.
command -v jq >/dev/null || apt-get install --yes --no-install-recommends jq
"$cluster" --dir "$dir" down
# n1 to n3 are those of docs/gpu-models.md.
"$cluster" --dir "$dir" up --nodes "n1=mixed n2=t4x1:share n3=a10x4 n4=dgx1" --image "$build/driver-image.tar"
E2E_CLUSTER_DIR="$dir" go test -count=1 -v -tags e2e -timeout 30m -run "${3:-.}" ./tests/pages
