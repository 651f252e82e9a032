// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metadatafake "k8s.io/client-go/metadata/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/waiting/preempt"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// preempts has pods evicted in namespace ns, and returns whose evictions were tried.
func (s *site) preempts() *[]string {
	s.Helper()
	scheme := metadatafake.NewTestScheme()
	expect.NoError(s, metav1.AddMetaToScheme(scheme))
	s.metadata = metadatafake.NewSimpleMetadataClient(scheme, &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{v1alpha1.LabelPreemption: "true"}}})
	s.preemptions = func(c *cache.Cache) *preempt.Config {
		return &preempt.Config{Cache: c.Reader(), Client: s.client.CoreV1(), ClaimsOf: s.client.ResourceV1(),
			Rules: s.client.ResourceV1(), Groups: s.client.SchedulingV1beta1(), Engine: scheduling.NewEngine(100),
			Events: report.New(record.NewFakeRecorder(1000), clock.RealClock{}), Clock: clock.RealClock{}}
	}
	var evicted []string
	apitest.Answer(s.client, "create", "pods", func(action k8stesting.Action) (bool, runtime.Object, error) {
		create, is := action.(k8stesting.CreateAction)
		if !is || action.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		if eviction, is := create.GetObject().(*policyv1.Eviction); is {
			evicted = append(evicted, eviction.Name)
		}
		return true, nil, nil
	})
	return &evicted
}

// Others go for a pod that waits for what they have, and for none that has no use for it.
func TestPreemption(t *testing.T) {
	for name, tc := range map[string]struct {
		gpus int64
		want []string
	}{
		"for what others have":   {1, []string{"old", "old"}}, // a dry run comes first
		"for what no node has":   {9, nil},
		"for all that they have": {2, []string{"old", "old"}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, mode.Exclusive, func(s *site) {
				s.stop()
				evicted := s.preempts()
				s.holds("a", "old", "gpu-0", "gpu-1")
				s.start()
				s.waits("p", claimOf(whole, "", tc.gpus), refused, func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](9) })
				time.Sleep(15 * time.Second)
				synctest.Wait()
				expect.Equal(t, tc.want, *evicted, "evictions")
			}, "a")
		})
	}
}

// Without the permissions of the option nobody is evicted, and pods are told why they wait all the same.
func TestPreemptionWithoutItsPermissions(t *testing.T) {
	run(t, mode.Exclusive, func(s *site) {
		s.stop()
		evicted := s.preempts()
		apitest.Answer(s.client, "list", "poddisruptionbudgets", func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(policyv1.Resource("poddisruptionbudgets"), "", errors.New("no"))
		})
		s.holds("a", "old", "gpu-0", "gpu-1")
		s.start()
		s.waits("p", claimOf(whole, "", 1), refused, func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](9) })
		s.change("p", func(p *corev1.Pod) { p.Status.Conditions[0].Message = podstate.NoDevices })
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if len(*evicted) > 0 || len(s.recorder.Events) != 1 {
			t.Errorf("evicted %q, with %d Events of pods that wait, want none, with one", *evicted, len(s.recorder.Events))
		}
	}, "a")
}
