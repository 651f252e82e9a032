// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package gang

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// explains waits until `kubectl inspect cgpu explain` says all of it of a pod.
func explains(t *testing.T, ns *harness.Namespace, pod string, texts ...string) {
	t.Helper()
	harness.Eventually(t, "pod "+pod+" to be explained", func(context.Context) error {
		out, notes, err := cluster.TryInspect(t, "explain", "pod/"+pod, "-n", ns.Name)
		if err != nil {
			return err
		}
		if !harness.ContainsAll(out, texts) || notes != "" {
			return fmt.Errorf("of %q it says\n%s%s", texts, out, notes)
		}
		return nil
	})
}

// Who asks why a pod of a gang waits is told how many of its pods have to have room at once, how
// many find it, and that the pod's own GPUs are not what lacks. What it says follows what is free.
func TestExplainOfAGang(t *testing.T) {
	ns := cluster.Namespace(t)
	ns.Create(t, members("train", 5, 5, "share", "mem 15")...)
	waitsWhole(t, ns, "train-", "train-0")
	explains(t, ns, "train-0",
		"Pod "+ns.Name+"/train-0 waits for its gang: its own GPUs are free on node share (gpu-0-share), those of the "+
			"others that are needed at once are not.",
		"Gang: PodGroup train has 5 pods, of which 0 have a node; 5 are needed at once.",
		"Of the 5 that wait, placed one after the other, 4 find their GPUs now (4 on node share): the gang waits for room "+
			"for 1 more.")

	// A pod that is no gang takes one GPU of the four: the gang lacks one more.
	ns.Run(t, harness.GoingTo(harness.Asking("mem 15"), "other", "share"))
	explains(t, ns, "train-4", "waits for its gang", "3 find their GPUs now (3 on node share): the gang waits for room "+
		"for 2 more.")
	out, _ := cluster.Inspect(t, "explain", "pod/train-0", "-n", ns.Name, "-o", "json")
	var answer struct {
		Fits bool
		Gang struct {
			Members, Placed, Needed int
			Fits                    *bool
			FindRoom                []struct{ Pod, Node string }
			NoRoom                  []string
		}
	}
	expect.NoError(t, json.Unmarshal([]byte(out), &answer))
	if g := answer.Gang; !answer.Fits || g.Members != 5 || g.Placed != 0 || g.Needed != 5 || g.Fits == nil || *g.Fits ||
		len(g.FindRoom) != 3 || len(g.NoRoom) != 2 {
		t.Errorf("for programs it is\n%s", out)
	}

	// Two of its pods go, and with them what lacks; what asks for three runs.
	ns.Delete(t, "train-3", "train-4")
	ns.Create(t, members("small", 3, 3, "share", "mem 15")...)
	waitRuns(t, ns, "small-", 3)
	explains(t, ns, "train-0", "Pod "+ns.Name+"/train-0 waits",
		"Gang: PodGroup train has 3 pods, of which 0 have a node; 5 are needed at once.",
		"Of the 3 that wait, placed one after the other, 0 find their GPUs now: the gang waits for room for 5 more.")
	explains(t, ns, "small-0", "Pod "+ns.Name+"/small-0 runs on node share.", "has:       15Gi of memory")
}
