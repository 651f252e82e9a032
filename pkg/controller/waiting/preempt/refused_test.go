// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"errors"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
)

var evictionsOfPods = schema.GroupResource{Group: policyv1.GroupName, Resource: "evictions"}

// denied is an error as the API server answers it.
func denied(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason,
		Message: message}}
}

// None goes where one may not.
func TestEvictionThatTheAPIServerRefuses(t *testing.T) {
	run(t, func(s *site) {
		s.refuse = apierrors.NewTooManyRequests("budget", 10)
		s.waits(podOf("p", 9), 2)
		s.after(15 * time.Second)
		s.told("Warning GPUNotPreempted The API server does not let a pod of lower priority be evicted from node n1, whose " +
			"GPUs this pod could have: a PodDisruptionBudget keeps it")
		if len(s.tried) == 0 {
			t.Error("it was not tried")
		}
		s.refuse = nil
		s.after(time.Minute, "a", "b")
	})
}

// A victim that a webhook or a policy keeps is remembered, and the next one goes. After a
// while it is one again.
func TestVictimThatTheClusterKeeps(t *testing.T) {
	run(t, func(s *site) {
		s.keep = map[string]error{"b": denied(403, metav1.StatusReasonForbidden,
			`admission webhook "keep.example.com" denied the request: b has work to do`)}
		s.waits(podOf("p", 9), 1)
		s.after(30*time.Second, "a")
		s.told("Warning GPUNotPreempted The API server does not let a pod of lower priority be evicted from node n1, whose "+
			"GPUs this pod could have: a webhook or an admission policy refuses it, or gpu-compat-controller has no "+
			"permission to evict pods. For 5m0s others are looked for in its place",
			"Normal GPUPreempting 1 pod of lower priority is evicted from node n1",
			"Warning GPUPreempted The pod was evicted to free GPUs of node n1 for pod p, whose priority is 9; this pod's is 5")
	})
	run(t, func(s *site) {
		keeps := denied(422, metav1.StatusReasonInvalid, "ValidatingAdmissionPolicy 'keep' with binding 'keep' denied "+
			"request: no")
		s.keep = map[string]error{"a": keeps, "b": keeps}
		s.waits(podOf("p", 9), 1)
		s.after(4 * time.Minute)
		s.keep = nil
		s.after(30 * time.Second)
		s.after(2*time.Minute, "b")
	})
}

// Where the cluster keeps all pods, a pod that waits is looked at less and less often, and is
// told once: an Event for each node would use up what a pod can be told.
func TestAllVictimsAreKept(t *testing.T) {
	nodes := []string{"n2", "n3", "n4", "n5", "n6", "n7"}
	run(t, func(s *site) {
		keeps := denied(422, metav1.StatusReasonInvalid, "ValidatingAdmissionPolicy 'keep' with binding 'keep' denied "+
			"request: no")
		s.keep = map[string]error{"a": keeps, "b": keeps}
		for _, name := range nodes {
			s.keep[name] = keeps
		}
		s.waits(podOf("p", 9), 1)
		s.after(40 * time.Second)
		if n := len(s.kept); n == 0 || n > 5 {
			t.Errorf("in 40 s the evictions of %q were tried, want of one to five", s.kept)
		}
		s.after(4 * time.Minute)
		expect.Equal(t, len(nodes)+2, len(s.kept), "evictions tried, one of each: %q", s.kept)
		s.told("Warning GPUNotPreempted The API server does not let a pod of lower priority be evicted")
		s.keep = nil
		s.after(3*time.Minute, "b")
	}, nodes...)
}

func TestWhoRefusesAnEviction(t *testing.T) {
	for text, test := range map[string]struct {
		err error
		is  bool
	}{
		"a webhook, with the code for a permission": {denied(403, metav1.StatusReasonForbidden,
			`admission webhook "x" denied the request: no`), true},
		"a webhook, with a code of its own": {denied(418, "", `admission webhook "x" denied the request without `+
			`explanation`), true},
		"a policy": {denied(422, metav1.StatusReasonInvalid,
			"pods \"b\" is forbidden: ValidatingAdmissionPolicy 'x' with binding 'x' denied request: no"), true},
		"a webhook that knows no dry runs": {apierrors.NewBadRequest(
			`admission webhook "x" does not support dry run`), true},
		"a webhook that does not answer": {apierrors.NewInternalError(errors.New("failed calling webhook x")), false},
		"a missing permission": {apierrors.NewForbidden(evictionsOfPods, "b", errors.New(
			`User "u" cannot create resource "pods/eviction"`)), true},
		"a budget":    {apierrors.NewTooManyRequests("budget", 10), false},
		"another pod": {apierrors.NewConflict(evictionsOfPods, "b", errors.New("uid")), false},
		"it is gone":  {apierrors.NewNotFound(evictionsOfPods, "b"), false},
		"no answer":   {context.DeadlineExceeded, false},
	} {
		expect.Equal(t, test.is, podstate.Refused(test.err), "%s is a refusal", text)
	}
}
