// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package gang

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// ofClass are the members of a gang, with a priority.
func ofClass(class string, pods []*corev1.Pod) []*corev1.Pod {
	for _, pod := range pods {
		pod.Spec.PriorityClassName = class
	}
	return pods
}

// groupOf waits for the PodGroup of a gang.
func groupOf(t *testing.T, ns *harness.Namespace, gang string) *schedulingapi.PodGroup {
	t.Helper()
	var group *schedulingapi.PodGroup
	harness.Becomes(t, ns.Client.SchedulingV1beta1().PodGroups(ns.Name), gang, "PodGroup "+gang,
		func(made *schedulingapi.PodGroup) error {
			group = made
			return nil
		})
	return group
}

// The PodGroup of a gang has the priority of its pods, without which the scheduler places none
// of them. Of two gangs in its queue the one of higher priority comes first, and what is made
// again under its name has the priority of the new pods.
func TestPrioritiesOfGangs(t *testing.T) {
	ns := cluster.Namespace(t)
	low := priorityClass(t, ns, 10, corev1.PreemptLowerPriority)
	high := priorityClass(t, ns, 1000, corev1.PreemptLowerPriority)
	ns.Run(t, asks(high, "holds", "whole", "nvidia.com/gpu 4"))
	ns.Create(t, ofClass(low, members("low", 3, 3, "whole", "nvidia.com/gpu 1"))...)
	ns.Create(t, ofClass(high, members("high", 3, 3, "whole", "nvidia.com/gpu 1"))...)
	for gang, priority := range map[string]int32{"low": 10, "high": 1000} {
		if got := groupOf(t, ns, gang).Spec.Priority; ptr.Deref(got, 0) != priority {
			t.Errorf("PodGroup %s has priority %d, want %d", gang, ptr.Deref(got, 0), priority)
		}
	}
	// A scheduler that runs does not look at once at what it has just found no place for, and
	// takes what else waits. One that starts has all in its queue.
	cluster.RestartScheduler(t, func() {
		ns.Delete(t, "holds")
		ns.WaitNoClaims(t)
	})
	waitRuns(t, ns, "high-", 3)
	holdsNothing(t, ns, "low-")
	ns.Delete(t, "high-0", "high-1", "high-2")
	waitRuns(t, ns, "low-", 3)

	before := groupOf(t, ns, "low")
	ns.Delete(t, "low-0", "low-1", "low-2")
	ns.Create(t, ofClass(high, members("low", 3, 3, "whole", "nvidia.com/gpu 1"))...)
	waitRuns(t, ns, "low-", 3)
	if now := groupOf(t, ns, "low"); now.UID == before.UID || ptr.Deref(now.Spec.Priority, 0) != 1000 {
		t.Errorf("the PodGroup has priority %d, want that of the new pods", ptr.Deref(now.Spec.Priority, 0))
	}
	// Pods of a running gang keep theirs, and one that cannot join them is told.
	ns.Create(t, ofClass(low, []*corev1.Pod{member("low", 3, 3, "whole", "nvidia.com/gpu 1")})...)
	ns.WaitPodEvent(t, "low-3", "GPUGangNotHeld", "the gang's PodGroup has priority class "+high+", the pod has "+
		"priority class "+low)
}

// While the replica of gpu-compat-controller that leads dies in the midst of it, gangs come up
// as ever: what they need is made once, and goes with them.
func TestGangsWhileTheLeaderDies(t *testing.T) {
	ns := cluster.Namespace(t)
	const mostSeconds = 180
	first, second := members("first", 4, 4, "share", "mem 3"), members("second", 4, 4, "share", "mem 4")
	ns.Create(t, first[:2]...)
	before := groupOf(t, ns, "first")
	died := cluster.KillLeaderForGood(t)
	ns.Create(t, first[2:]...)
	ns.Create(t, second...)
	// The other replica has to find out that nobody leads, and makes what the second needs.
	if err := harness.Poll(t.Context(), mostSeconds*time.Second, func(ctx context.Context) error {
		for _, gang := range []string{"first", "second"} {
			n, err := runs(ctx, ns, gang+"-")
			if err == nil && n != 4 {
				err = fmt.Errorf("%d run of the pods of gang %s", n, gang)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatalf("the gangs do not come up: %v", err)
	}
	lease, err := cluster.Lease(t.Context())
	expect.NoError(t, err)
	if ptr.Deref(lease.Spec.HolderIdentity, "") == ptr.Deref(died.Spec.HolderIdentity, "") {
		t.Errorf("replica %s leads, which died", *died.Spec.HolderIdentity)
	}
	if now := groupOf(t, ns, "first"); now.UID != before.UID {
		t.Error("the PodGroup was made twice")
	}
	isMadeOnce(t, ns)

	ns.Delete(t, append(names(first), names(second)...)...)
	waitNoGroup(t, ns, "first")
	waitNoGroup(t, ns, "second")
	harness.Eventually(t, "the replicas to be there again", func(ctx context.Context) error {
		deployment, err := cluster.Client.AppsV1().Deployments(harness.PluginNamespace).Get(ctx, "gpu-compat-controller",
			metav1.GetOptions{})
		if err == nil && deployment.Status.ReadyReplicas != *deployment.Spec.Replicas {
			err = fmt.Errorf("%d are ready", deployment.Status.ReadyReplicas)
		}
		return err
	})
}

// isMadeOnce checks that two gangs of four pods have two PodGroups, two templates, and a claim
// for each pod.
func isMadeOnce(t *testing.T, ns *harness.Namespace) {
	t.Helper()
	groups, err := ns.Client.SchedulingV1beta1().PodGroups(ns.Name).List(t.Context(), metav1.ListOptions{})
	expect.NoError(t, err)
	templates, err := ns.Client.ResourceV1().ResourceClaimTemplates(ns.Name).List(t.Context(), metav1.ListOptions{})
	expect.NoError(t, err)
	claims, err := ns.Client.ResourceV1().ResourceClaims(ns.Name).List(t.Context(), metav1.ListOptions{})
	expect.NoError(t, err)
	if len(groups.Items) != 2 || len(templates.Items) != 2 || len(claims.Items) != 8 {
		t.Errorf("there are %d PodGroups, %d templates and %d claims, want 2, 2 and 8", len(groups.Items),
			len(templates.Items), len(claims.Items))
	}
}
