#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes the image that makes a node one with simulated GPUs, as an OCI archive, without a
# container engine. The Dockerfile beside it builds the same image with one:
#
#   build.sh OUT PACKER [ARCH]    writes OUT/simulated-gpus.tar, or OUT/simulated-gpus-ARCH.tar for
#                                 another architecture than this machine's; PACKER is the built
#                                 tests/cluster
#
# SIMULATED_IMAGE_NAME is the image's name if it is to have another. files.sh says what is in it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/../../../deployments/container/pack.sh" "$here/files.sh" simulated-gpus "$1" "$2" "${3:-}" \
	--name "${SIMULATED_IMAGE_NAME:-localhost/simulated-gpus:dev}" \
	--entrypoint /usr/bin/simnode --env PATH=/usr/bin
