#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes the driver's container image, as an OCI archive, without a container
# engine. The Dockerfile beside it builds the same image with one:
#
#   build.sh OUT PACKER [ARCH]    writes OUT/driver-image.tar, or OUT/driver-image-ARCH.tar for
#                                 another architecture than this machine's; PACKER is the
#                                 built tests/cluster
#
# DRIVER_IMAGE_NAME is the image's name if it is to have another. files.sh builds what is in the
# image, and says more.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/pack.sh" "$here/files.sh" driver-image "$1" "$2" "${3:-}" \
	--name "${DRIVER_IMAGE_NAME:-localhost/dra-driver-gpushare:dev}" \
	--entrypoint /usr/bin/gpu-kubelet-plugin --env PATH=/usr/bin --directory /tmp:0777
