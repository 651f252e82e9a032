#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints how long a lane of the tests took, and how it ended:
#
#   took.sh LANE BEGAN STATUS
#
# BEGAN is in seconds since 1970, STATUS the lane's exit status.
took=$(($(date +%s) - $2))
[ "$3" -eq 0 ] && verdict=passed || verdict="failed (exit status $3)"
printf 'make %s: %s after %d min %02d s\n' "$1" "$verdict" $((took / 60)) $((took % 60))
