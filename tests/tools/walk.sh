#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints what somebody walks through who follows the code from one function, as far as a test goes: the files in the
# order in which they are come to, the calls of methods that climb to a package which imports the caller's, the
# function-typed fields that are called, and the arrows from function to function in another file of the first one's
# package that run up, to a file from before.
#
#	tests/tools/walk.sh ./pkg/node/prepare TestPrepareShare '(*pkg/node/prepare.Preparer).Prepare'
#
# Which calls there are, callgraph of golang.org/x/tools says of the node's plugin. ALGO is how, by default vta.
set -eu
cd "$(dirname "$0")/../.."
out=$(mktemp -d)
trap 'rm -r "$out"' EXIT
go test -run "^$2\$" -coverpkg ./pkg/...,./cdi/... -coverprofile "$out/profile" "$1" >&2
go list -f '{{.ImportPath}} {{join .Deps " "}}' ./pkg/... ./cdi/... >"$out/imports"
go build -C tests/tools -o "$out/callgraph" golang.org/x/tools/cmd/callgraph
"$out/callgraph" -algo "${ALGO:-vta}" -format '{{(posn .Caller).Filename}}	{{.Caller}}	{{.Filename}}	{{.Line}}	{{.Column}}	'\
'{{(posn .Callee).Filename}}	{{.Callee}}	{{.Description}}' ./cmd/gpu-kubelet-plugin | sort -t '	' -k 2,2 -k 4,4n -k 5,5n >"$out/graph"

awk -F '\t' -v module="$(go list -m)/" -v root="$PWD/" -v start="$3" '
function dir(file) { sub("/[^/]*$", "", file); return file }
function ran(file, line, column,    i, b) {
	for (i = 1; i <= blocks[file]; i++) {
		split(block[file, i], b, "[.,]")
		if ((line > b[1] || line == b[1] && column >= b[2]) && (line < b[3] || line == b[3] && column < b[4])) return 1
	}
	return 0
}
# called is what is called at a place: a selector, as of a field, or a name.
function called(at, column,    p, n, line) {
	split(at, p, ":")
	for (n = 0; n < p[2] && (getline line < p[1]) > 0; n++);
	close(p[1])
	line = substr(line, 1, column - 1)
	return match(line, /[A-Za-z0-9_.]+$/) ? substr(line, RSTART) : ""
}
function once(text) { if (!(text in told)) { told[text]; print "  " text; return 1 } return 0 }
function read(f,    i, e, to, at) {
	at = file[f]
	seen[f]
	if (!(at in order)) { order[at] = ++files; print at }
	for (i = 1; i <= calls[f]; i++) {
		split(call[f, i], e, "\t")
		to = e[1]
		if (e[2] ~ /dynamic function/) {
			if (called(e[3], e[4]) ~ /\./ && once("field: " called(e[3], e[4]) " in " e[3])) fields++
			# Others pass functions, too: they are not of this walk.
			if (dir(file[to]) != dir(at) && !index(deps[dir(at)], " " dir(file[to]) " ")) continue
		} else if (index(deps[dir(file[to])], " " dir(at) " ") && once("climb: " f " to " to)) climbs++
		if (dir(at) == dir(file[start]) && dir(file[to]) == dir(at) && file[to] != at && !((f, to) in arrow)) {
			arrow[f, to]
			arrows++
			if (file[to] in order && order[file[to]] < order[at]) {
				print "  up: " f " to " to " in " file[to]
				up++
				if (!(file[to] in back)) { back[file[to]]; backs++ }
			}
		}
		if (!(to in seen)) read(to)
	}
}
FILENAME ~ /profile$/ && / [1-9][0-9]*$/ {
	split(substr($0, length(module) + 1), p, "[: ]")
	block[p[1], ++blocks[p[1]]] = p[2]
}
FILENAME ~ /imports$/ { gsub(module, ""); split($0, p, " "); deps[p[1]] = $0 " " }
FILENAME ~ /graph$/ && index($1, root) == 1 && index($6, root) == 1 {
	gsub(module, "")
	gsub(root, "")
	file[$2] = $1
	file[$7] = $6
	if ($2 ~ /\$(bound|thunk)/ || $4 == 0 || ran($3, $4, $5)) call[$2, ++calls[$2]] = $7 "\t" $8 "\t" $3 ":" $4 "\t" $5
}
END {
	if (!(start in file)) { print start " is not called"; exit 1 }
	read(start)
	printf "%d files, %d climbs, %d function-typed fields\n", files, climbs, fields
	printf "of %d arrows from file to file of %s %d run up, to %d files\n", arrows, dir(file[start]), up, backs
}' "$out/profile" "$out/imports" "$out/graph"
