#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the driver's image of an earlier commit by that commit's own scripts:
#
#   old.sh DIRECTORY COMMIT
#
# DIRECTORY/old is then the earlier version's files, with .build/driver-image.tar. It is built once.
set -eu
commit=$(git rev-parse --verify --quiet "$2^{commit}") || {
	echo "upgrade: there is no commit $2 here. A shallow clone has only the last ones: git fetch --unshallow," >&2
	echo "or name one that is here: make lane LANE=upgrade UPGRADE_FROM=COMMIT" >&2
	exit 1
}
made=$1/$commit
if ! [ -e "$made/.build/driver-image.tar" ]; then
	# Its files, without a second working tree that somebody has to prune.
	rm -rf "$made"
	mkdir -p "$made"
	git archive "$commit" | tar -x -C "$made"
	VERSION=$(git describe --tags --always "$commit") make --no-print-directory -C "$made" images
fi
ln -sfn "$commit" "$1/old"
