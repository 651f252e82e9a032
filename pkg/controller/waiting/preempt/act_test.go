// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"cmp"
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// Replicas that name one claim have one place to go to: where it is allocated.
func TestPodsThatWaitForOneClaimCostVictimsOnOneNode(t *testing.T) {
	run(t, func(s *site) {
		s.waits(podOf("p", 9), 1)
		s.waits(podOf("q", 8), 1)
		s.change("q", func(pod *corev1.Pod) { pod.Spec.ResourceClaims[0].ResourceClaimName = ptr.To("p-gpu") })
		s.after(30*time.Second, "b")
		s.change("b", terminating(time.Now().Add(30*time.Second)))
		s.after(time.Minute, "b")
	}, "n2")
}

// The last look at the pod is right before the evictions.
func TestNobodyGoesForAPodThatWaitsNoMore(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"it is placed":           func(pod *corev1.Pod) { pod.Spec.NodeName = "n1" },
		"the scheduler preempts": func(pod *corev1.Pod) { pod.Status.NominatedNodeName = "n1" },
		"it is another pod":      func(pod *corev1.Pod) { pod.UID = "another" },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				s.onTry = func() { s.change("p", change) }
				s.waits(podOf("p", 9), 1)
				s.after(11 * time.Second)
				if len(s.tried) != 1 {
					t.Fatalf("tried to evict %q, want one dry run", s.tried)
				}
				s.told()
			})
		})
	}
}

// The dry run may have been right when it was made.
func TestNobodyIsEvictedAfterAll(t *testing.T) {
	run(t, func(s *site) {
		s.refuseLater = apierrors.NewTooManyRequests("budget", 10)
		s.waits(podOf("p", 9), 1)
		s.after(11 * time.Second)
		s.told("Warning GPUNotPreempted The API server does not let a pod of lower priority be evicted from node n1, whose " +
			"GPUs this pod could have: a PodDisruptionBudget keeps it")
		s.refuseLater = nil
		s.after(10*time.Second, "b")
		s.told("GPUPreempting", "GPUPreempted")
	})
}

// A conflict says that the pod is another, or only that it was changed meanwhile.
func TestConflict(t *testing.T) {
	conflict := apierrors.NewConflict(corev1.Resource("pods"), "a", nil)
	t.Run("the pod lives", func(t *testing.T) {
		run(t, func(s *site) {
			s.refuseLater = conflict
			s.waits(podOf("p", 9), 2)
			s.after(11 * time.Second)
			s.told("Warning GPUNotPreempted")
			s.refuseLater = nil
			s.after(10*time.Second, "a", "b")
		})
	})
	t.Run("the pods end by themselves", func(t *testing.T) {
		run(t, func(s *site) {
			s.refuseLater = conflict
			s.onTry = func() {
				for _, name := range []string{"a", "b"} {
					s.change(name, terminating(time.Now().Add(30*time.Second)))
				}
			}
			s.waits(podOf("p", 9), 2)
			s.after(time.Minute)
			s.told()
		})
	})
}

// silent does not answer evictions until nobody waits any longer, and then with says.
type silent struct {
	Client
	says   error
	waited *time.Duration
}

func (s silent) Pods(namespace string) typedcorev1.PodInterface {
	return silentPods{s.Client.Pods(namespace), s}
}

type silentPods struct {
	typedcorev1.PodInterface
	of silent
}

func (s silentPods) EvictV1(ctx context.Context, _ *policyv1.Eviction) error {
	began := time.Now()
	<-ctx.Done()
	*s.of.waited += time.Since(began)
	return cmp.Or(s.of.says, ctx.Err())
}

// However many victims there are, the others that wait have their turn soon.
func TestEvictionsAreNotWaitedForForLongTogether(t *testing.T) {
	run(t, func(s *site) {
		s.stop()
		var waited time.Duration
		s.pods = silent{s.client.CoreV1(), denied(403, metav1.StatusReasonForbidden,
			`admission webhook "x" denied the request: no`), &waited}
		s.start()
		s.waits(podOf("p", 9), 2)
		s.after(20 * time.Second)
		expect.Equal(t, evictingMost, waited, "the evictions of two pods took")
	})
}

// client-go tries evictions again for minutes that a budget keeps.
func TestEvictionIsNotWaitedForForLong(t *testing.T) {
	run(t, func(s *site) {
		s.stop()
		s.pods = silent{s.client.CoreV1(), nil, new(time.Duration)}
		s.start()
		s.waits(podOf("p", 9), 1)
		s.after(20 * time.Second)
		s.told("Warning GPUNotPreempted The API server does not let a pod of lower priority be evicted from node n1, whose " +
			"GPUs this pod could have: it did not answer")
	})
}

// Somebody deleted b, whose GPU and CPUs are enough. That n2 lacks nothing but GPUs costs
// nobody his place there, and neither does a new leader.
func TestCPUsOfAPodThatLeaves(t *testing.T) {
	run(t, func(s *site) {
		s.change("b", cpus("6"))
		s.change("b", terminating(time.Now().Add(2*time.Minute)))
		s.waits(podOf("p", 9, cpus("4")), 1)
		s.after(30 * time.Second)
		s.stop()
		s.start()
		s.after(30 * time.Second)
		s.told()
	}, "n2")
}
