#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the lanes that are too heavy for `make test`, one after the other, and prints at the end
# how long each took and how it ended:
#
#   checks.sh LANE…
#
# A lane is a target of the Makefile. One that fails does not keep the next from being run; the
# exit status says whether all passed.
set -eu
cd "$(dirname "$0")/../.."
trap 'exit 130' INT
trap 'exit 143' TERM
summary=
failed=0
for lane; do
	began=$(date +%s)
	status=0
	make --no-print-directory "$lane" || status=$?
	[ "$status" -eq 0 ] || failed=1
	summary="$summary$(tests/took.sh "$lane" "$began" "$status")
"
done
printf '\nThe checks of a release:\n%s' "$summary"
exit "$failed"
