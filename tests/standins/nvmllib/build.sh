#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the NVML library of simulated nodes:
#
#   build.sh OUT    writes the shared library OUT
#
# What it has to look like to its callers is NVIDIA's nvml.h, which go-nvml brings along.
set -eu

mkdir -p "$(dirname "$1")"
out=$(realpath "$1")
cd "$(dirname "$0")"
# NVIDIA's header is of the version that go.mod names.
[ ! -e "$out" ] || [ -n "$(find src build.sh ../../../go.mod -newer "$out")" ] || exit 0
header=$(GOWORK=off go list -m -f '{{.Dir}}' github.com/NVIDIA/go-nvml)/pkg/nvml
[ -e "$header/nvml.h" ] || (GOWORK=off go mod download github.com/NVIDIA/go-nvml)

touch "$out.start"
# Its functions call each other also where the library lacks one for all others.
#
# Under another name first: a library must not change under those who have it open.
"${CC:-cc}" -std=gnu11 -O2 -g0 -Wall -Wextra -Werror -Wno-deprecated-declarations -fPIC -shared -fvisibility=hidden \
	-Wl,-soname,libnvidia-ml.so.1 -Wl,-z,defs -Wl,-Bsymbolic -DNVML_NO_UNVERSIONED_FUNC_DEFS -isystem "$header" \
	-o "$out.new" src/*.c -lpthread
# Sources that were saved meanwhile are newer.
touch -r "$out.start" "$out.new"
rm "$out.start"
mv "$out.new" "$out"
