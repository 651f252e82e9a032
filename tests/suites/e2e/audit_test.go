// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// later has another pod do what was told of others before, and waits until that is told of it:
// by then the plugin has read twice again what all of them hold, and has told what it found.
func later(t *testing.T, ns *harness.Namespace, node, pod, reason string, now ...harness.GPUProcess) {
	t.Helper()
	ns.SetGPUProcesses(t, node, now...)
	ns.WaitPodEvent(t, pod, reason, "")
}

// Who holds more of a GPU than it was granted, is on one that it was not granted, or is no
// pod at all, is told within seconds; who keeps to its share is not.
func TestAuditTellsWhatIsNotAsGranted(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "bad")
	cluster.Publishes(t, "bad", harness.DevicesIn("share")...)
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Share("gpu", "1Gi")))
	ns.Run(t, harness.Pod("over", "bad", harness.FromTemplate("one")),
		harness.Pod("fair", "bad", harness.FromTemplate("one")), harness.Pod("stranger", "bad"),
		harness.Pod("later", "bad", harness.FromTemplate("one")))
	began := time.Now()
	// A share of 1 of 15 units of 16130 MiB.
	processes := []harness.GPUProcess{{GPU: 0, Pod: "over", MemoryMiB: 5000}, {GPU: 0, Pod: "fair", MemoryMiB: 1075},
		{GPU: 1, Pod: "stranger", MemoryMiB: 300}, {GPU: 1, MemoryMiB: 100}}
	ns.SetGPUProcesses(t, "bad", processes...)
	ns.WaitPodEvent(t, "over", v1alpha1.ReasonShareExceeded,
		`Container "main" holds 5000 MiB of GPU 0 in 1 process; it was granted 1075 MiB of it`)
	t.Logf("a pod over its share was told after %s", time.Since(began).Round(time.Millisecond))
	ns.WaitPodEvent(t, "stranger", v1alpha1.ReasonUsedWithoutGrant,
		`Container "main" has 1 process on GPU 1, of which no claim grants it anything; it holds 300 MiB`)
	cluster.WaitNodeEvent(t, "bad", began, v1alpha1.ReasonUsedByNoPod, "(kubelet) on GPU 1 belongs to no pod")

	later(t, ns, "bad", "later", v1alpha1.ReasonShareExceeded,
		append(processes, harness.GPUProcess{GPU: 0, Pod: "later", MemoryMiB: 5000})...)
	for _, reason := range []string{v1alpha1.ReasonShareExceeded, v1alpha1.ReasonUsedWithoutGrant} {
		if err := ns.CheckPodEvent(t.Context(), "fair", reason, ""); err == nil {
			t.Errorf("the pod that kept to its share was told %s", reason)
		}
	}

	// The share's own GPU is not the other one.
	ns.SetGPUProcesses(t, "bad", harness.GPUProcess{GPU: 2, Pod: "fair", MemoryMiB: 10})
	ns.WaitPodEvent(t, "fair", v1alpha1.ReasonUsedWithoutGrant, `on GPU 2, of which no claim grants it anything`)
}

// A process that is no client of MPS, on a GPU of which its container has a share by MPS,
// is told.
func TestAuditTellsWhatIsBesideMPS(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, modesNode)
	cluster.Publishes(t, modesNode, harness.DevicesIn("mps")...)
	ns := cluster.Namespace(t)
	ns.Template(t, "two", harness.Requests(harness.Capped("mps", 0, "memory", "2Gi")))
	ns.Run(t, harness.Pod("client", modesNode, harness.FromTemplate("two")),
		harness.Pod("beside", modesNode, harness.FromTemplate("two")),
		harness.Pod("later", modesNode, harness.FromTemplate("two")))
	processes := []harness.GPUProcess{{Pod: "client", MemoryMiB: 500, MPS: true}, {Pod: "beside", MemoryMiB: 500}}
	ns.SetGPUProcesses(t, modesNode, processes...)
	ns.WaitPodEvent(t, "beside", v1alpha1.ReasonUsedBesideMPS, "on GPU 0 beside MPS, where nothing limits it")
	later(t, ns, modesNode, "later", v1alpha1.ReasonUsedBesideMPS,
		append(processes, harness.GPUProcess{Pod: "later", MemoryMiB: 500})...)
	if err := ns.CheckPodEvent(t.Context(), "client", v1alpha1.ReasonUsedBesideMPS, ""); err == nil {
		t.Error("a client of MPS was taken for a process beside it")
	}
}

// Where an administrator chooses, a pod is evicted after the grace time, as far as
// PodDisruptionBudgets allow, or without regard to them.
func TestAuditEvicts(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "bad")
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Share("gpu", "1Gi")))
	ns.Keep(t, "kept")
	ns.Run(t, harness.Pod("evicted", "bad", harness.FromTemplate("one")), harness.Pod("kept", "bad",
		harness.FromTemplate("one"), func(p *corev1.Pod) { p.Labels = map[string]string{"app": "kept"} }))
	ns.Option(t, "audit-evicts")
	set := pluginWith(t, "bad", map[string]string{"AUDIT_EVICT": "over-share", "AUDIT_EVICT_AFTER": "6s"})
	ns.SetGPUProcesses(t, "bad", harness.GPUProcess{GPU: 0, Pod: "evicted", MemoryMiB: 5000},
		harness.GPUProcess{GPU: 0, Pod: "kept", MemoryMiB: 5000})
	ns.WaitPodEvent(t, "evicted", v1alpha1.ReasonShareExceeded, "The pod is evicted if this lasts for 6s.")
	told := time.Now()
	ns.WaitPodEvent(t, "evicted", v1alpha1.ReasonEvicted, "its use of GPUs")
	t.Logf("evicted %s after it was told", time.Since(told).Round(time.Millisecond))
	ns.WaitGone(t, "evicted")
	ns.WaitPodEvent(t, "kept", v1alpha1.ReasonNotEvicted, "PodDisruptionBudget")
	ns.WaitRunning(t, "kept")
	set("AUDIT_EVICT_OVER_BUDGETS", "true")
	ns.WaitGone(t, "kept")
}
