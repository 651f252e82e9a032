// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

func TestModelIsChosenByCEL(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "mixed")
	ns := cluster.Namespace(t)
	ns.Template(t, "a10",
		harness.Requests(harness.Matching(harness.Exclusive("gpu", 1), `device.attributes["gpu.aliyun.com"].model == `+
			`"NVIDIA-A10"`)))
	ns.Template(t, "16g", harness.Requests(harness.Matching(harness.Exclusive("gpu", 1),
		`device.capacity["gpu.aliyun.com"].memory.compareTo(quantity("16Gi")) >= 0`)))
	ns.Run(t, harness.Pod("a", "mixed", harness.FromTemplate("a10")),
		harness.Pod("b", "mixed", harness.FromTemplate("a10")))
	ns.Create(t, harness.Pod("c", "mixed", harness.FromTemplate("a10")),
		harness.Pod("d", "mixed", harness.FromTemplate("16g")))

	for _, pod := range []string{"a", "b"} {
		grants := ns.Granted(t, pod)
		if len(grants) != 1 || grants[0].GPU.Model != "NVIDIA-A10" {
			t.Errorf("pod %s was granted %+v, want one A10", pod, grants)
		}
		ns.SeesItsGPUs(t, pod, "main", grants)
	}
	// The T4s are free, but neither A10s nor that large.
	ns.WaitUnschedulable(t, "c", noRoom)
	ns.WaitUnschedulable(t, "d", noRoom)
}
