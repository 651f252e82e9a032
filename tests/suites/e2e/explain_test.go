// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// Who asks why a pod waits is told the node, the GPU with the most free, and how much was
// asked; of a pod that runs, its GPU and by which claim it has it.
func TestExplainSaysWhatAPodLacksAndWhatItHas(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "old")
	packedNode(t, "old", 4)
	ns := cluster.Namespace(t)
	ns.Template(t, "twelve", harness.Requests(harness.Share("gpu", "12Gi")))
	ns.Template(t, "nine", harness.Requests(harness.Share("gpu", "9Gi")))
	ns.Template(t, "eight", harness.Requests(harness.Share("gpu", "8Gi")))
	ns.Run(t, harness.Pod("a", "old", harness.FromTemplate("twelve")),
		harness.Pod("b", "old", harness.FromTemplate("twelve")), harness.Pod("c", "old", harness.FromTemplate("twelve")),
		harness.Pod("nine", "old", harness.FromTemplate("nine")))
	// Of 15 GiB of each GPU, 3 are free, and 6 of the one of which 9 are held.
	gpu := ns.Granted(t, "nine")[0].GPU.Index

	ns.Create(t, harness.Pod("waits", "old", harness.FromTemplate("eight")))
	claim := ns.ClaimOf(t, "waits")
	explained(t, ns, "pod/waits",
		"Pod "+ns.Name+"/waits waits: no node has room for its GPUs now.",
		"Asked: claim "+claim.Name+", request gpu: 1 of class share.gpu.aliyun.com, memory 8Gi",
		fmt.Sprintf("memory: asked 8Gi, largest free 6Gi on gpu-%d", gpu),
		fmt.Sprintf("- 2Gi more memory free of gpu-%d-share on node old; held by pod %s/nine (9Gi)", gpu, ns.Name))
	explained(t, ns, "claim/"+claim.Name, "Claim "+ns.Name+"/"+claim.Name+", for which pod waits waits, waits: no node "+
		"has "+
		"room", fmt.Sprintf("memory: asked 8Gi, largest free 6Gi on gpu-%d", gpu))

	// For programs, and in the pod's Events, it is the same.
	explained(t, ns, "pod/waits -o json", `"fits": false`,
		fmt.Sprintf(`"memory: asked 8Gi, largest free 6Gi on gpu-%d"`, gpu))
	ns.IsTold(t, "waits", fmt.Sprintf("Nearest: node old (memory: asked 8Gi, largest free 6Gi on gpu-%d)", gpu))

	held := ns.ClaimOf(t, "nine")
	explained(t, ns, "pod/nine", "Pod "+ns.Name+"/nine runs on node old.", fmt.Sprintf("\ngpu-%d (", gpu),
		"claim:     "+held.Name+", request gpu", "has:       9Gi of memory", "isolation: none", "uses:      nothing at "+
			"the moment: no process of the pod is on the GPU")

	ns.Delete(t, "nine")
	ns.WaitRunning(t, "waits")
	explained(t, ns, "pod/waits", "Pod "+ns.Name+"/waits runs on node old.", "has:       8Gi of memory")
}

// explained waits until explain says all of it: what it reads follows what happened.
func explained(t *testing.T, ns *harness.Namespace, object string, texts ...string) {
	t.Helper()
	harness.Eventually(t, "kubectl inspect cgpu to explain "+object, func(context.Context) error {
		out, notes, err := cluster.TryInspect(t, slices.Concat([]string{"explain", "-n", ns.Name}, strings.Fields(object))...)
		if err != nil {
			return err
		}
		for _, text := range texts {
			if !strings.Contains(out, text) {
				return fmt.Errorf("it does not say %q:\n%s%s", text, out, notes)
			}
		}
		if notes != "" {
			return fmt.Errorf("beside the answer it says %q", notes)
		}
		return nil
	})
}
