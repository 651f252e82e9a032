// SPDX-License-Identifier: Apache-2.0

package claimtemplates

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	k8stesting "k8s.io/client-go/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// Anybody who may change a pod can take its labels off, and a webhook may.
func TestPodsWithoutTheLabel(t *testing.T) {
	waits, runs := pod("a", "waits", three), pod("a", "runs", "gpushare.mem.main.9")
	waits.Labels, runs.Labels, runs.Spec.NodeName = nil, nil, "n1"
	own := mustTemplate(t, "a", "gpushare.mem.main.9")
	unneeded := mustTemplate(t, "a", "gpushare.mem.main.8")
	for _, template := range []*resourceapi.ResourceClaimTemplate{own, unneeded} {
		template.Labels[v1alpha1.LabelManagedBy] = v1alpha1.ControllerName
	}
	s := newSite(t, waits, runs, own, unneeded)
	var looked atomic.Int64
	apitest.Answer(s.client, "list", "pods", func(action k8stesting.Action) (bool, runtime.Object, error) {
		if list, ok := action.(k8stesting.ListAction); ok && action.GetNamespace() == "a" &&
			list.GetListRestrictions().Fields.Empty() {
			looked.Add(1)
		}
		return false, nil, nil
	})
	s.start()
	s.comesToHave("a/"+three, "a/gpushare.mem.main.9")
	// Of the one that is needed the time is over again and again.
	expect.NoErrorf(t, wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 30*time.Second, true,
		func(context.Context) (bool, error) {
			return looked.Load() > 3, nil
		}), "the pods were looked at %d times", looked.Load())
	s.comesToHave("a/"+three, "a/gpushare.mem.main.9")
}

// Of a pod that is gone nothing is remembered: another is told what it was told.
func TestWhatPodsWereToldIsForgottenWithThem(t *testing.T) {
	s := newSite(t)
	apitest.Answer(s.client, "create", "resourceclaimtemplates",
		func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("quota exceeded") })
	s.start()
	for range 2 {
		s.create(pod("a", "waits", three))
		s.isTold("quota exceeded")
		apitest.Delete[*corev1.Pod](t, s.client, "a", "waits")
	}
}

func TestPodsAreToldWhyTheyWait(t *testing.T) {
	for name, test := range map[string]struct {
		template string
		refusal  error
		want     string
	}{
		"a name of another version": {"gpushare.tflops.main.3", nil, `Warning GPUClaimTemplateUnknown The pod's claim ` +
			`cannot be created: template name "gpushare.tflops.main.3"`},
		"the API server says no": {three, errors.New("quota exceeded"), "Warning GPUClaimTemplateNotMade " +
			"ResourceClaimTemplate gpushare.mem.main.3 could not be created, which is tried again: quota exceeded"},
		"a template that is not ours": {"gpushare-of-a-user", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			if test.refusal != nil {
				apitest.Answer(s.client, "create", "resourceclaimtemplates",
					func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, test.refusal })
			}
			s.workers = 1
			s.start()
			s.create(pod("a", "waits", test.template), pod("b", "last", "gpushare.unknown"))
			if test.want != "" {
				s.isTold(test.want)
			}
			// Workers take the templates in order: no other Event comes before this one.
			s.isTold(`"gpushare.unknown"`)
		})
	}
}

// A template that somebody else made under a name that says nothing is used as it is: the cache
// does not know it, as it has no label of this driver.
func TestPodsWithATemplateOfTheirOwn(t *testing.T) {
	s := newSite(t, &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "a",
		Name: "gpushare.train"}})
	s.workers = 1
	s.start()
	s.create(pod("a", "runs", "gpushare.train"), pod("b", "last", "gpushare.unknown"))
	// The worker takes the templates in order: no other Event comes before this one.
	s.isTold(`"gpushare.unknown"`)
}

// isTold waits for the next Event.
func (s *site) isTold(want string) {
	s.t.Helper()
	select {
	case event := <-s.recorder.Events:
		expect.Says(s.t, event, want)
	case <-time.After(30 * time.Second):
		s.t.Fatalf("no Event, want %q", want)
	}
}
