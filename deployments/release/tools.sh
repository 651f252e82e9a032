#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what a release takes of Debian's packages, where it is missing: the compiler for the
# architecture that this machine is not of, and the emulator that starts programs for arm64.
set -eu
case $(go env GOHOSTARCH) in
arm64) compiler=x86_64-linux-gnu-gcc packages="gcc-x86-64-linux-gnu libc6-dev-amd64-cross" ;;
*) compiler=aarch64-linux-gnu-gcc packages="gcc-aarch64-linux-gnu libc6-dev-arm64-cross" ;;
esac
# The compiler comes without its C library, too.
! echo '#include <stdlib.h>' | "$compiler" -E - >/dev/null 2>&1 || packages=
command -v qemu-aarch64-static >/dev/null || packages="$packages qemu-user-static"
[ -z "$packages" ] || apt-get install --yes --no-install-recommends $packages
