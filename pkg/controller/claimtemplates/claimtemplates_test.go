// SPDX-License-Identifier: Apache-2.0

package claimtemplates

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

const (
	grace = 200 * time.Millisecond
	three = "gpushare.mem.main.3"
)

// site is an API server with the controller running at it.
type site struct {
	t        *testing.T
	client   *fake.Clientset
	recorder *record.FakeRecorder
	stop     func()
	workers  int
	grace    time.Duration
}

func newSite(t *testing.T, objects ...runtime.Object) *site {
	t.Helper()
	s := &site{t: t, client: fake.NewClientset(objects...), recorder: record.NewFakeRecorder(10), workers: 2, grace: grace}
	apitest.Answer(s.client, "list", "pods", s.listUnbound)
	t.Cleanup(func() { s.stop() })
	return s
}

// listUnbound does what the fake client does not: it minds a field selector.
func (s *site) listUnbound(action k8stesting.Action) (bool, runtime.Object, error) {
	list, ok := action.(k8stesting.ListAction)
	if !ok || list.GetListRestrictions().Fields.Empty() {
		return false, nil, nil
	}
	object, err := s.client.Tracker().List(action.GetResource(), corev1.SchemeGroupVersion.WithKind("Pod"),
		action.GetNamespace())
	pods, ok := object.(*corev1.PodList)
	if !ok {
		return true, nil, fmt.Errorf("pods are a %T: %w", object, err)
	}
	pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName != "" })
	return true, pods, nil
}

// start runs the controller as a process that remembers nothing.
func (s *site) start() {
	s.t.Helper()
	_, ctx := ktesting.NewTestContext(s.t)
	ctx, cancel := context.WithCancel(ctx)
	known := cache.New(cache.Options{Client: s.client})
	reader := known.Reader()
	work := New(Config{
		Cache: reader, Client: s.client.ResourceV1(), Live: s.client.CoreV1(),
		Events: report.New(s.recorder, clock.RealClock{}), Grace: s.grace, Clock: clock.RealClock{},
	})
	go known.Run(ctx)
	if synced, err := reader.WaitForSync(ctx, "claimtemplates", 0); err != nil || !synced {
		s.t.Fatalf("the caches do not fill: %v", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		work.Run(ctx, s.workers)
	}()
	s.stop = func() {
		cancel()
		<-done
	}
}

// pod refers to a template, as the policy leaves it.
func pod(namespace, name, template string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name),
			Labels: map[string]string{v1alpha1.LabelLegacy: "true"}},
		Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: legacy.ClaimName,
			ResourceClaimTemplateName: ptr.To(template)}}},
	}
}

func (s *site) create(pods ...*corev1.Pod) {
	s.t.Helper()
	for _, pod := range pods {
		apitest.Create(s.t, s.client, pod)
	}
}

func (s *site) names() ([]string, error) {
	list, err := s.client.ResourceV1().ResourceClaimTemplates("").List(s.t.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, template := range list.Items {
		names = append(names, template.Namespace+"/"+template.Name)
	}
	return names, nil
}

// comesToHave waits until there are these templates and no others.
func (s *site) comesToHave(want ...string) {
	s.t.Helper()
	want = append([]string{}, want...)
	var diff error
	if err := wait.PollUntilContextTimeout(s.t.Context(), 5*time.Millisecond, 30*time.Second, true,
		func(context.Context) (bool, error) {
			got, err := s.names()
			diff = expect.Diff(want, got)
			return diff == nil, err
		}); err != nil {
		s.t.Fatalf("%v; templates %v", err, diff)
	}
}

func TestTemplatesComeAndGoWithThePods(t *testing.T) {
	s := newSite(t)
	s.start()
	s.create(pod("a", "one", three), pod("a", "two", three), pod("b", "one", "gpushare.gpu.main.2"),
		pod("b", "other", "of-a-user"))
	s.comesToHave("a/"+three, "b/gpushare.gpu.main.2")

	// One of two pods has ended, the other still needs it.
	ended := pod("a", "one", three)
	ended.Status.Phase = corev1.PodSucceeded
	apitest.Update(t, s.client, ended)
	apitest.Delete[*corev1.Pod](t, s.client, "b", "one")
	s.comesToHave("a/" + three)
	apitest.Delete[*corev1.Pod](t, s.client, "a", "two")
	s.comesToHave()
	s.create(pod("a", "three", three))
	s.comesToHave("a/" + three)
}

func TestTemplateThatSomebodyRemovesComesBack(t *testing.T) {
	s := newSite(t)
	s.start()
	s.create(pod("a", "one", three))
	s.comesToHave("a/" + three)
	made := apitest.Get[*resourceapi.ResourceClaimTemplate](t, s.client, "a", three)
	apitest.Delete[*resourceapi.ResourceClaimTemplate](t, s.client, "a", three)
	s.comesToHave("a/" + three)
	again := apitest.Get[*resourceapi.ResourceClaimTemplate](t, s.client, "a", three)
	expect.Equal(t, made.Spec, again.Spec, "the one that came back")
}

func TestRestartLosesNothing(t *testing.T) {
	orphan := mustTemplate(t, "a", "gpushare.mem.main.9")
	orphan.Labels[v1alpha1.LabelManagedBy] = v1alpha1.ControllerName
	foreign := mustTemplate(t, "a", "gpushare.mem.main.8")
	s := newSite(t, orphan, foreign, pod("b", "waits", three))
	s.start()
	// What nobody needs goes, unless somebody else made it; what a pod waits for comes.
	s.comesToHave("a/gpushare.mem.main.8", "b/"+three)
	s.stop()
	s.start()
	s.create(pod("c", "waits", three))
	s.comesToHave("a/gpushare.mem.main.8", "b/"+three, "c/"+three)
}

func mustTemplate(t *testing.T, namespace, name string) *resourceapi.ResourceClaimTemplate {
	t.Helper()
	request, err := legacy.ParseName(name)
	expect.NoError(t, err)
	return request.Template(namespace)
}

func TestTemplatesThatAreNotWhatTheirNamesSay(t *testing.T) {
	asksForOne := func(own bool) *resourceapi.ResourceClaimTemplate {
		template := mustTemplate(t, "a", "gpushare.mem.main.1")
		template.Name, template.UID = three, "old"
		if own {
			template.Labels[v1alpha1.LabelManagedBy] = v1alpha1.ControllerName
		}
		return template
	}
	t.Run("an own one is created again", func(t *testing.T) {
		s := newSite(t, asksForOne(true), pod("a", "waits", three))
		s.start()
		s.comesToAskFor(three)
	})
	t.Run("an own one that nobody needs goes at once", func(t *testing.T) {
		s := newSite(t, asksForOne(true))
		s.grace = time.Hour
		s.start()
		s.comesToHave()
	})
	t.Run("somebody else's stays, and the pod is told", func(t *testing.T) {
		s := newSite(t, asksForOne(false), pod("a", "waits", three))
		s.start()
		s.isTold("Warning GPUClaimTemplateNotOurs ResourceClaimTemplate " + three + " was made by somebody else and is " +
			"not what the pod asks for")
		s.comesToHave("a/" + three)
		apitest.Delete[*resourceapi.ResourceClaimTemplate](t, s.client, "a", three)
		s.comesToAskFor(three)
	})
	t.Run("one that the cache does not have", func(t *testing.T) {
		unlabelled := asksForOne(false)
		unlabelled.Labels = nil
		s := newSite(t, unlabelled, pod("a", "waits", three))
		s.start()
		s.isTold("Warning GPUClaimTemplateNotOurs")
	})
}

// comesToAskFor waits until the template of a name in namespace a is what it says.
func (s *site) comesToAskFor(name string) {
	s.t.Helper()
	want := mustTemplate(s.t, "a", name)
	var diff error
	if err := wait.PollUntilContextTimeout(s.t.Context(), 5*time.Millisecond, 30*time.Second, true,
		func(ctx context.Context) (bool, error) {
			got, err := s.client.ResourceV1().ResourceClaimTemplates("a").Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				if apierrors.IsNotFound(err) {
					err = nil
				}
				return false, err
			}
			diff = expect.Diff(want.Spec, got.Spec)
			return diff == nil, nil
		}); err != nil {
		s.t.Fatalf("%v; template %s %v", err, name, diff)
	}
}

// What an admission policy of the cluster makes of a template is not undone for ever.
func TestTemplateThatTheAPIServerChangesStays(t *testing.T) {
	s := newSite(t, pod("a", "one", three))
	made := 0
	apitest.Answer(s.client, "create", "resourceclaimtemplates",
		func(action k8stesting.Action) (bool, runtime.Object, error) {
			create, ok := action.(k8stesting.CreateAction)
			if !ok {
				return false, nil, nil
			}
			if template, ok := create.GetObject().(*resourceapi.ResourceClaimTemplate); ok {
				changed := template.DeepCopy()
				changed.UID, changed.Spec.Labels["team"] = types.UID(fmt.Sprint(made+1)), "ml"
				err := s.client.Tracker().Create(action.GetResource(), changed, action.GetNamespace())
				// A cache that is behind has it tried in vain.
				if err == nil {
					made++
				}
				return true, changed, err
			}
			return false, nil, nil
		})
	s.workers = 1
	s.start()
	s.comesToHave("a/" + three)
	s.create(pod("a", "two", three), pod("b", "last", "gpushare.unknown"))
	s.isTold(`"gpushare.unknown"`)
	s.stop()
	expect.Equal(t, 1, made, "times the template was made")
}

func TestSameTemplatesHoweverTheyAreWritten(t *testing.T) {
	const name = "gpushare.mem-x2.a.2.b.4"
	other := mustTemplate(t, "a", name)
	for i := range other.Spec.Spec.Devices.Requests {
		memory := other.Spec.Spec.Devices.Requests[i].Exactly.Capacity.Requests
		for name, amount := range memory {
			memory[name] = resource.MustParse(fmt.Sprintf("%dMi", amount.Value()>>20))
		}
	}
	parameters := &other.Spec.Spec.Devices.Config[0].Opaque.Parameters
	parameters.Raw = []byte(strings.ReplaceAll(string(parameters.Raw), ",", " ,\n"))
	expect.Equal(t, true, same(mustTemplate(t, "a", name), other), "parameters in another order are the same")
	parameters.Raw = []byte(strings.Replace(string(parameters.Raw), `"container":"a"`, `"container":"b"`, 1))
	expect.Equal(t, false, same(mustTemplate(t, "a", name), other), "other parameters are the same")
}
