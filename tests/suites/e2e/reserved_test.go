// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// The units of a GPU are those of all its memory, as on ACK, and its limits parts of what programs
// can allocate: of the 15360 MiB of this node's T4 the driver keeps 450.
func TestLimitsOnAGPUWhoseDriverKeepsMemory(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "switch")
	setMode := cluster.Label(t, "switch", modeLabel)
	ns := cluster.Namespace(t)
	ns.Template(t, "share", harness.Requests(harness.Capped("mps", -1, "memory", "3Gi")))
	setMode("mps")
	cluster.Publishes(t, "switch", "gpu-0-mps")
	ns.Run(t, harness.Pod("share", "switch", harness.FromTemplate("share")))
	ns.HasEnv(t, "share", "main", harness.WithEnv(harness.LegacyEnv(3, 15, 3, 0),
		"CUDA_MPS_PIPE_DIRECTORY", pipeDir, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=2982M"))
	ns.Delete(t, "share")
	setMode("share")
	cluster.Publishes(t, "switch", "gpu-0-share")
}
