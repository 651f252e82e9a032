// SPDX-License-Identifier: Apache-2.0

package steps

import "fmt"

// What the answers mean for this driver, from what was measured to what follows. Pure.

// contextMiB is more than a CUDA context was seen to take (560 to 816 MiB), and less than what tells limits apart.
const contextMiB = 1024

// near says whether what was filled is a limit, less a CUDA context.
func near(filled, limit int64) bool { return filled <= limit && filled >= limit-contextMiB }

func meansCapacity(dmem bool) string {
	if dmem {
		return "dmem: the kernel counts, limits nest"
	}
	return "no line: misc, or off; only the nearest limit counts"
}

func meansControllers(leaf, root []string, dmem bool) string {
	switch {
	case !dmem && len(leaf) == len(root):
		return "kubelet and runc hand down all: dmem would be among them"
	case !dmem:
		return "not all are handed down: with dmem, look again"
	case len(leaf) == len(root):
		return "dmem reaches the containers"
	}
	return "dmem may be missing in containers: the plugin must enable it"
}

func meansLeaf(f filled, limit int64) string {
	held := "held"
	if !near(f.mib, limit) {
		held = "NOT HELD as set"
	}
	if f.total == limit {
		return held + "; programs that go by the total fit"
	}
	return held + "; sizing by the total breaks"
}

func meansPod(sum, limit int64) string {
	if sum <= limit {
		return "one budget for the pod"
	}
	return "NO common budget: limit each container"
}

func meansNesting(f filled, pod int64) string {
	if f.mib > pod {
		return "a leaf hides its pod: limit one or the other (misc)"
	}
	return "they nest: one rule for both back ends will do"
}

func meansManaged(f filled, limit int64, counted int64) string {
	switch {
	case f.mib > limit && counted <= limit:
		return "managed memory passes: keep the exception"
	case f.mib > limit:
		return "paged to the host, or counted and not refused"
	}
	return "refused: the level is \"kernel\" plainly"
}

func meansImport(answer string, before, after int64) string {
	switch {
	case answer != "imported":
		return "not shown: the import failed"
	case after-before < contextMiB:
		return "an import is not charged: write it down"
	}
	return "an import is charged to who imports"
}

func meansMPS(client, daemon int64) string {
	if client > daemon {
		return "the client pays: combine with mps"
	}
	return "the daemon pays: useless under MPS v2"
}

func meansTighter(refused error, more string) string {
	switch {
	case refused != nil:
		return "the checker cannot tighten a running container"
	case more == "CUDA_SUCCESS":
		return "accepted and NOT applied to new blocks"
	}
	return "only new blocks fail"
}

func meansSoftLeft(mib int64) string {
	if mib > 0 {
		return "the leak is real: soft stays 0"
	}
	return "no leak"
}

func meansStale(found, tried int) string {
	if found > 0 {
		return "stale entries are real: each start on the GPU must write its limit"
	}
	return fmt.Sprintf("none in %d new groups", tried)
}

func meansKept(kept bool) string {
	if kept {
		return "limits stay"
	}
	return "limits go: the checker sets them again"
}

func meansWrite(plain, privileged string) string {
	if plain == "written" {
		return "an ORDINARY pod lifts its own limit"
	}
	if privileged == "written" {
		return "only privileged pods win"
	}
	return "neither wins by the file"
}

func meansFull(filled, published int64, programs int) string {
	if filled < published-int64(programs)*contextMiB {
		return "one fails early: publish less than total - reserved"
	}
	return "what is published can be had, less contexts"
}
