# SPDX-License-Identifier: Apache-2.0
# Prints what each failed test of a "go test -v" said when it failed, without what it shows of
# the cluster: at the end of a run whose tests run side by side, where it is found. With
# -v all=1 every line is printed as it comes, and that after the line which says that the test
# failed: whoever sees only the lines around that one sees why.

all { print; fflush() }
/^=== (RUN|CONT|NAME) / { test = $3; next }
/^ *--- FAIL: / {
	if (!all) printf "%s\n", $0
	printf "%s", said[$3]
	delete said[$3]
	next
}
/^ *--- / { test = ""; next }
/^ +[a-z_0-9]+\.go:[0-9]+: / && !/: --- namespace / { said[test] = said[test] (all ? "| " : "") $0 "\n" }
