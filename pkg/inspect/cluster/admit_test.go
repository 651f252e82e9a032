// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
)

// reviewed says whether the user may create pods.
func reviewed(client *fake.Clientset, allowed bool) {
	client.PrependReactor("create", "selfsubjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{
			Allowed: allowed}}, nil
	})
}

// admits has admission change pods, or refuse them. Nothing may be created but in dry runs.
func admits(t *testing.T, client *fake.Clientset, admission func(*corev1.Pod) error) {
	reviewed(client, true)
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create := action.(clienttesting.CreateActionImpl)
		if !slices.Equal(create.CreateOptions.DryRun, []string{metav1.DryRunAll}) {
			t.Errorf("a pod is created with %+v", create.CreateOptions)
		}
		pod := create.Object.(*corev1.Pod).DeepCopy()
		if err := admission(pod); err != nil {
			return true, nil, err
		}
		return true, pod, nil
	})
}

// What the cluster's admission says of pods is found out by dry runs; where it says nothing, a
// note says why.
func TestPodsAreTriedInDryRuns(t *testing.T) {
	team := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{"a": "b"}}}
	labelled := func(key, value string) []*corev1.Namespace {
		return []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{key: value}}}}
	}
	status := func(code int32, reason metav1.StatusReason, message string) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Reason: reason, Message: message,
			Details: &metav1.StatusDetails{Name: "train-x7"}}}
	}
	for name, test := range map[string]struct {
		there    []runtime.Object
		unread   bool
		manifest []*corev1.Namespace
		says     error
		admitted bool
		refused  string
		note     string
	}{
		"changed":             {[]runtime.Object{team}, false, nil, nil, true, "", ""},
		"namespace as it is":  {[]runtime.Object{team}, false, labelled("a", "b"), nil, true, "", ""},
		"namespace not known": {[]runtime.Object{team}, true, nil, nil, true, "", ""},
		"another label": {[]runtime.Object{team}, false, labelled("a", "c"), nil, false, "",
			"the manifests change labels of namespace team."},
		"perhaps another label": {[]runtime.Object{team}, true, labelled("a", "b"), nil, false, "",
			"the manifests change labels of namespace team."},
		"no namespace": {nil, false, nil, nil, false, "", "namespace team does not exist."},
		"forbidden": {[]runtime.Object{team}, false, nil, status(403, metav1.StatusReasonForbidden,
			`pods "train-x7" is forbidden: a policy denied request: no.`), false,
			"it would be refused: a policy denied request: no", ""},
		"invalid": {[]runtime.Object{team}, false, nil, status(422, metav1.StatusReasonInvalid, "spec: wrong\n line"), false,
			"it would be refused: spec: wrong line", ""},
		"webhook without dry run": {[]runtime.Object{team}, false, nil, status(400, metav1.StatusReasonBadRequest,
			`admission webhook "w" does not support dry run`), false, "", `admission webhook "w" does not support dry run.`},
		"webhook that is down": {[]runtime.Object{team}, false, nil, status(500, metav1.StatusReasonInternalError,
			`failed calling webhook "w"`), false, "", `deployment/train (m.yaml, document 1): failed calling webhook "w".`},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(append(objects(), test.there...)...)
			if test.unread {
				forbid(client, "get namespaces")
			}
			admits(t, client, func(pod *corev1.Pod) error {
				if s := pod.Spec; s.ServiceAccountName != "" || s.PriorityClassName != "" || pod.Name != "" ||
					pod.GenerateName != "train-" {
					t.Errorf("it tries %+v", pod)
				}
				pod.Annotations = map[string]string{"changed": "yes"}
				return test.says
			})
			in, err := cluster.Reader{Client: client}.PlanInput(t.Context(), plan.Manifests{Namespaces: test.manifest,
				Workloads: []plan.Workload{{Source: plan.Source{File: "m.yaml", Document: 1}, Kind: "deployment", Pods: 3,
					Namespace: "team", Name: "train", Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
						ServiceAccountName: "new", PriorityClassName: "new"}}}}})
			if err != nil {
				t.Fatal(err)
			}
			w := in.Workloads[0]
			if (w.Admitted != nil) != test.admitted || test.admitted && w.Created().Annotations["changed"] != "yes" {
				t.Errorf("it is planned as %+v", w.Created())
			}
			if w.Refused != test.refused {
				t.Errorf("refused: %q, want %q", w.Refused, test.refused)
			}
			noted := strings.Join(in.Notes, "\n")
			if !strings.HasSuffix(noted, test.note) || test.note == "" && strings.Contains(noted, "policies make") {
				t.Errorf("notes %q, want %q", noted, test.note)
			}
		})
	}
}

func TestTryingPodsFails(t *testing.T) {
	down := errors.New("the network is down")
	for resource, want := range map[string]string{
		"selfsubjectaccessreviews": "ask whether you may create pods in namespace team-b: ",
		"pods":                     "try pod/p (m.yaml) in a dry run: "} {
		client := fake.NewClientset(append(objects(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-b"}})...)
		reviewed(client, true)
		client.PrependReactor("create", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, down
		})
		m := wanted()
		m.Workloads[0].File = "m.yaml"
		if _, err := (cluster.Reader{Client: client}).PlanInput(t.Context(), m); !errors.Is(err, down) ||
			!strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", resource, err)
		}
	}
}
