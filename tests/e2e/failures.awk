# SPDX-License-Identifier: Apache-2.0
# Prints what each failed test of a "go test -v" said when it failed, without what it shows of
# the cluster: at the end of a run whose tests run side by side, where it is found.

/^=== (RUN|CONT|NAME) / { test = $3; next }
/^ *--- FAIL: / {
	printf "%s\n", $0
	printf "%s", said[$3]
	delete said[$3]
	next
}
/^ *--- / { test = ""; next }
/^ +[a-z_0-9]+\.go:[0-9]+: / && !/: --- namespace / { said[test] = said[test] $0 "\n" }
