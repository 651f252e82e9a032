package templates

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	coreinformers "k8s.io/client-go/informers/core/v1"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/compat"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

const (
	grace = 200 * time.Millisecond
	three = "gpushare.mem.main.3"
)

// site is an API server with the loop running at it.
type site struct {
	t        *testing.T
	client   *fake.Clientset
	recorder *record.FakeRecorder
	stop     func()
	workers  int
}

func newSite(t *testing.T, objects ...runtime.Object) *site {
	t.Helper()
	s := &site{t: t, client: fake.NewClientset(objects...), recorder: record.NewFakeRecorder(10), workers: 2}
	t.Cleanup(func() { s.stop() })
	return s
}

// start runs the loop as a process that remembers nothing.
func (s *site) start() {
	s.t.Helper()
	_, ctx := ktesting.NewTestContext(s.t)
	ctx, cancel := context.WithCancel(ctx)
	selected := func(o *metav1.ListOptions) { o.LabelSelector = Selector }
	pods := coreinformers.NewFilteredPodInformer(s.client, "", 0, cache.Indexers{}, selected)
	templates := resourceinformers.NewFilteredResourceClaimTemplateInformer(s.client, "", 0, cache.Indexers{}, selected)
	if err := pods.SetTransform(Slim); err != nil {
		s.t.Fatal(err)
	}
	work, err := New(Config{
		Pods: pods, Templates: templates, Client: s.client.ResourceV1(), Events: report.New(s.recorder, clock.RealClock{}),
		Grace: grace, Clock: clock.RealClock{},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	go pods.RunWithContext(ctx)
	go templates.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced, templates.HasSynced) {
		s.t.Fatal("the caches do not fill")
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
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), Labels: map[string]string{legacy.Label: "true"}},
		Spec:       corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: legacy.ClaimName, ResourceClaimTemplateName: ptr.To(template)}}},
	}
}

func (s *site) create(pods ...*corev1.Pod) {
	s.t.Helper()
	for _, pod := range pods {
		if _, err := s.client.CoreV1().Pods(pod.Namespace).Create(s.t.Context(), pod, metav1.CreateOptions{}); err != nil {
			s.t.Fatal(err)
		}
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
	var diff string
	if err := wait.PollUntilContextTimeout(s.t.Context(), 5*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		got, err := s.names()
		diff = cmp.Diff(want, got)
		return diff == "", err
	}); err != nil {
		s.t.Fatalf("%v; templates (-want +got):\n%s", err, diff)
	}
}

func TestTemplatesComeAndGoWithThePods(t *testing.T) {
	s := newSite(t)
	s.start()
	s.create(pod("a", "one", three), pod("a", "two", three), pod("b", "one", "gpushare.gpu.main.2"), pod("b", "other", "of-a-user"))
	s.comesToHave("a/"+three, "b/gpushare.gpu.main.2")

	// One of two pods has ended, the other still needs it.
	ended := pod("a", "one", three)
	ended.Status.Phase = corev1.PodSucceeded
	if _, err := s.client.CoreV1().Pods("a").UpdateStatus(t.Context(), ended, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.client.CoreV1().Pods("b").Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.comesToHave("a/" + three)
	if err := s.client.CoreV1().Pods("a").Delete(t.Context(), "two", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.comesToHave()
	s.create(pod("a", "three", three))
	s.comesToHave("a/" + three)
}

func TestTemplateThatSomebodyRemovesComesBack(t *testing.T) {
	s := newSite(t)
	s.start()
	s.create(pod("a", "one", three))
	s.comesToHave("a/" + three)
	made, err := s.client.ResourceV1().ResourceClaimTemplates("a").Get(t.Context(), three, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.client.ResourceV1().ResourceClaimTemplates("a").Delete(t.Context(), three, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.comesToHave("a/" + three)
	again, err := s.client.ResourceV1().ResourceClaimTemplates("a").Get(t.Context(), three, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(made.Spec, again.Spec); diff != "" {
		t.Errorf("it came back as another (-first +second):\n%s", diff)
	}
}

func TestRestartLosesNothing(t *testing.T) {
	orphan := mustTemplate(t, "a", "gpushare.mem.main.9")
	orphan.Labels[compat.ManagedByLabel] = compat.Name
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
	if err != nil {
		t.Fatal(err)
	}
	return request.Template(namespace)
}

func TestPodsAreToldWhyTheyWait(t *testing.T) {
	for name, test := range map[string]struct {
		template string
		refusal  error
		want     string
	}{
		"a name of another version":   {"gpushare.tflops.main.3", nil, `Warning GPUClaimTemplateUnknown The pod's claim cannot be made: template name "gpushare.tflops.main.3"`},
		"the API server says no":      {three, errors.New("quota exceeded"), "Warning GPUClaimTemplateNotMade ResourceClaimTemplate gpushare.mem.main.3 could not be made, it is tried again: quota exceeded"},
		"a template that is not ours": {"gpushare-of-a-user", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			if test.refusal != nil {
				s.client.PrependReactor("create", "resourceclaimtemplates", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, test.refusal })
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

// isTold waits for the next Event.
func (s *site) isTold(want string) {
	s.t.Helper()
	select {
	case event := <-s.recorder.Events:
		if !strings.Contains(event, want) {
			s.t.Errorf("Event %q, want %q", event, want)
		}
	case <-time.After(30 * time.Second):
		s.t.Fatalf("no Event, want %q", want)
	}
}
