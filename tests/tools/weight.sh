#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints what the repository weighs: lines of Go by room, and words in doc comments that were replaced.
set -eu
cd "$(dirname "$0")/../.."

lines() { # PATH…: those of all Go files below
	git ls-files -z -- "$@" | grep -z '\.go$' | xargs -0 -r cat | wc -l
}
product() { # PATH…: those of Go files that are no tests
	git ls-files -z -- "$@" | grep -z '\.go$' | grep -zv '_test\.go$' | xargs -0 -r cat | wc -l
}
row() { printf '%-52s %8s\n' "$1" "$2"; }

all=$(lines .)
own=$(product cmd pkg cdi deviceclasses internal deployments)
row 'product (Go, no tests)' "$own"
row 'tests and test code' $((all - own))
row 'deployments/hardware and tests/suites/hardware' "$(lines deployments/hardware tests/suites/hardware)"
row 'pkg/inspect/plan' "$(product pkg/inspect/plan)"
row 'pkg/controller' "$(product pkg/controller)"
row 'tests/bench' "$(lines tests/bench)"
row 'doc comments: "says whether"' "$(git grep -hE '^\s*//.*says whether' -- '*.go' | wc -l)"
row 'doc comments: "reports whether"' "$(git grep -hE '^\s*//.*reports whether' -- '*.go' | wc -l)"
echo
echo 'product by room:'
for room in cmd cdi deviceclasses internal deployments pkg/*/ pkg/node/*/ pkg/controller/*/ pkg/inspect/*/; do
	row "  ${room%/}" "$(product "$room")"
done | sort -k2,2nr
