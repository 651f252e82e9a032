// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package gang

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// What a ResourceQuota counts the shares of a namespace by.
const (
	quotaOfGiB     corev1.ResourceName = "gib.quota.gpu.aliyun.com.deviceclass.resource.k8s.io/devices"
	quotaOfPercent corev1.ResourceName = "percent.quota.gpu.aliyun.com.deviceclass.resource.k8s.io/devices"
	// The same as on ACK.
	quotaOfMemory corev1.ResourceName = "requests.aliyun.com/gpu-mem"
	quotaOfCores  corev1.ResourceName = "requests.aliyun.com/gpu-core.percentage"
)

// ofShares returns amounts of memory and of compute, each by both of its lines.
func ofShares(gib, percent int64) map[corev1.ResourceName]int64 {
	return map[corev1.ResourceName]int64{quotaOfGiB: gib, quotaOfMemory: gib, quotaOfPercent: percent,
		quotaOfCores: percent}
}

// uses waits until so much of the quota is used.
func uses(t *testing.T, ns *harness.Namespace, gib, percent int64) {
	t.Helper()
	ns.QuotaUses(t, ofShares(gib, percent))
}

// says waits until kubectl inspect cgpu says all of it, and beside it nothing of what the quota
// counts by.
func says(t *testing.T, ns *harness.Namespace, texts []string, arguments ...string) {
	t.Helper()
	harness.Eventually(t, fmt.Sprintf("kubectl inspect cgpu %v to say %q", arguments, texts),
		func(context.Context) error {
			out, notes, err := cluster.TryInspect(t, append(arguments, "-n", ns.Name)...)
			if err != nil {
				return err
			}
			for _, text := range texts {
				if !strings.Contains(out, text) {
					return fmt.Errorf("it does not say %q:\n%s%s", text, out, notes)
				}
			}
			if strings.Contains(out, "quota.gpu.aliyun.com") || strings.Contains(out, "quota-") {
				return fmt.Errorf("it tells of what quotas count by:\n%s", out)
			}
			return nil
		})
}

// A quota of memory and of compute counts the shares of a gang, of pods that wait and of those
// that are preempted; tools show such claims as any others.
func TestSharesThatAQuotaCounts(t *testing.T) {
	setMode := cluster.Label(t, "whole", ack.NodeLabelSchedule)
	setMode("core_mem")
	ns := cluster.Namespace(t, harness.Preemption)
	cluster.Publishes(t, "whole", harness.DeviceNames(4, "gpu-%d-core-mem")...)
	ns.Quota(t, ofShares(60, 100))
	high := priorityClass(t, ns, 1000, corev1.PreemptLowerPriority)

	// Three times 30 percent of 100: a gang of four has claims for three, and waits whole.
	four := members("four", 4, 4, "whole", "mem 4 core 30")
	ns.Create(t, four...)
	uses(t, ns, 12, 90)
	harness.Eventually(t, "the pod without a claim to be told", func(ctx context.Context) error {
		var errs []error
		for _, pod := range four {
			err := ns.CheckPodEvent(ctx, pod.Name, "GPUQuotaExceeded",
				"ResourceQuota gpu allows the namespace 100 percent of GPUs' compute, of which 90 are used")
			if err == nil {
				return nil
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	holdsNothing(t, ns, "four-")
	ns.Delete(t, names(four)...)
	uses(t, ns, 0, 0)

	// A gang of three, one GPU for all of them. The fourth goes on when one of them has ended.
	three := members("three", 3, 3, "whole", "mem 5 core 30")
	ns.Create(t, three...)
	waitRuns(t, ns, "three-", 3)
	uses(t, ns, 15, 90)
	grants := ns.Granted(t, "three-0")
	if len(grants) != 1 || grants[0].Units != 5 {
		t.Fatalf("granted %+v, want 5 GiB of one GPU", grants)
	}
	gpu := grants[0].GPU.Index
	ns.SeesItsGPUs(t, "three-0", "c0", grants)
	says(t, ns, []string{"three-0", "Allocated :       15 (25%)", "Core Allocated :  90 (22%)"}, "whole")
	says(t, ns, []string{"three-0 runs on node whole.", fmt.Sprintf("\ngpu-%d (", gpu), "has:       5Gi of memory",
		"30 %"}, "explain", "pod/three-0")
	next := harness.GoingTo(harness.Asking("mem 5 core 20"), "next", "whole")
	ns.Create(t, next)
	ns.WaitPodEvent(t, "next", "GPUQuotaExceeded", "90 are used, and the pod asks for 20")
	ns.Delete(t, "three-2")
	ns.WaitRunning(t, "next")
	uses(t, ns, 15, 80)

	// More than any GPU has is what it is told, and not of classes that select nothing.
	ns.Create(t, harness.GoingTo(harness.Asking("mem 16 core 5"), "large", "whole"))
	ns.WaitPodEvent(t, "large", "GPUClaimWaiting", "16Gi of memory asked for; the largest GPU that matches has 15Gi")
	says(t, ns, []string{"large waits", "16Gi of memory asked for; the largest GPU that matches has 15Gi",
		"memory: asked 16Gi, the largest GPU has 15Gi"}, "explain", "pod/large")
	ns.Delete(t, "large", "three-0", "three-1", "next")
	uses(t, ns, 0, 0)

	// Counted claims are victims, and have them.
	for i := range 4 {
		ns.Run(t, asks("", fmt.Sprintf("low-%d", i), "whole", "mem 14 core 15"))
	}
	ns.Run(t, asks(high, "high", "whole", "mem 2 core 20"))
	uses(t, ns, 44, 65)
	ns.Delete(t, "low-0", "low-1", "low-2", "low-3", "high")
	// Without the label a node keeps its mode.
	setMode("default")
	cluster.Publishes(t, "whole", harness.DeviceNames(4, "gpu-%d")...)
}
