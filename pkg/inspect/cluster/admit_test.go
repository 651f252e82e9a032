// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
)

// reviewed reports whether the user may create pods.
func reviewed(client *fake.Clientset, allowed bool) {
	answer(client, "create", "selfsubjectaccessreviews", &authorizationv1.SelfSubjectAccessReview{
		Status: authorizationv1.SubjectAccessReviewStatus{Allowed: allowed}}, nil)
}

// admits has admission change pods, or refuse them. Nothing may be created but in dry runs.
func admits(t *testing.T, client *fake.Clientset, admission func(*corev1.Pod) error) {
	reviewed(client, true)
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create := action.(clienttesting.CreateActionImpl)
		expect.Equal(t, []string{metav1.DryRunAll}, create.CreateOptions.DryRun, "the dry run of %+v", create.CreateOptions)
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
				pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1alpha1.GateBestNode}, {Name: "other"}}
				return test.says
			})
			in, err := cluster.Reader{Client: client}.PlanInput(t.Context(), plan.Manifests{Namespaces: test.manifest,
				Workloads: []plan.Workload{{Source: plan.Source{File: "m.yaml", Document: 1}, Kind: "deployment", Pods: 3,
					Namespace: "team", Name: "train", Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
						ServiceAccountName: "new", PriorityClassName: "new"}}}}})
			expect.NoError(t, err)
			w := in.Workloads[0]
			if (w.Admitted != nil) != test.admitted || test.admitted && w.Created().Annotations["changed"] != "yes" {
				t.Errorf("it is planned as %+v", w.Created())
			}
			// The controller takes its own gate off.
			if gates := w.Created().Spec.SchedulingGates; test.admitted && (len(gates) != 1 || gates[0].Name != "other") {
				t.Errorf("it is planned at the gates %v", gates)
			}
			expect.Equal(t, test.refused, w.Refused, "refused")
			noted := strings.Join(in.Notes, "\n")
			if !strings.HasSuffix(noted, test.note) || test.note == "" && strings.Contains(noted, "policies make") {
				t.Errorf("notes %q, want %q", noted, test.note)
			}
		})
	}
}

// The claims of pods, and templates that the manifests bring along, are tried, too, where they are not there.
func TestClaimsAreTriedInDryRuns(t *testing.T) {
	const team = "team"
	spec := resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "share.gpu.aliyun.com"}}}}}
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "t",
		ResourceVersion: "1"}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec,
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"of": "template"},
			Annotations: map[string]string{"by": "template"}}}}
	own := claim(team, "own")
	own.Spec, own.ResourceVersion = spec, "1"
	ofTemplate := func(name string) corev1.PodResourceClaim {
		return corev1.PodResourceClaim{Name: "g", ResourceClaimTemplateName: &name}
	}
	named := corev1.PodResourceClaim{Name: "g", ResourceClaimName: ptr.To("own")}
	const quota, claims, templates = "exceeded quota: gpu", "resourceclaims", "resourceclaimtemplates"
	forbidden := func(resource string) error {
		return apierrors.NewForbidden(resourceapi.Resource(resource), "train-g-x7", errors.New(quota))
	}
	down := apierrors.NewInternalError(errors.New("the webhook is down"))
	for name, test := range map[string]struct {
		there   []runtime.Object
		wanted  plan.Manifests
		uses    corev1.PodResourceClaim
		says    map[string]error
		mayNot  string
		tried   string
		refused string
		note    string
	}{
		"of a template": {[]runtime.Object{template}, plan.Manifests{}, ofTemplate("t"), nil, "", "resourceclaims/train-g-",
			"", ""},
		"of a template, refused": {[]runtime.Object{template}, plan.Manifests{}, ofTemplate("t"),
			map[string]error{claims: forbidden(claims)}, "", "resourceclaims/train-g-",
			"its claim g would be refused: " + quota, ""},
		"of a template that the controller makes": {nil, plan.Manifests{}, ofTemplate("gpushare.mem.main.3"),
			map[string]error{claims: forbidden(claims)}, "", "resourceclaims/train-g-",
			"its claim g would be refused: " + quota, ""},
		"of a template of the manifests": {nil, plan.Manifests{Templates: []*resourceapi.ResourceClaimTemplate{template}},
			ofTemplate("t"), nil, "", "resourceclaimtemplates/t resourceclaims/train-g-", "", ""},
		"of a template that is refused": {nil, plan.Manifests{Templates: []*resourceapi.ResourceClaimTemplate{template}},
			ofTemplate("t"), map[string]error{templates: forbidden(templates)}, "", "resourceclaimtemplates/t",
			"the template of its claim g would be refused: " + quota, ""},
		// Quotas and policies would refuse a second one.
		"of a template that is there already": {[]runtime.Object{template}, plan.Manifests{
			Templates: []*resourceapi.ResourceClaimTemplate{template}}, ofTemplate("t"),
			map[string]error{templates: forbidden(templates)}, "", "resourceclaims/train-g-", "", ""},
		"of a template that is there already, without the right on templates": {[]runtime.Object{template}, plan.Manifests{
			Templates: []*resourceapi.ResourceClaimTemplate{template}}, ofTemplate("t"), nil, templates,
			"resourceclaims/train-g-", "", ""},
		"of a template that has just been made": {nil, plan.Manifests{
			Templates: []*resourceapi.ResourceClaimTemplate{template}}, ofTemplate("t"),
			map[string]error{templates: apierrors.NewAlreadyExists(resourceapi.Resource(templates), "t")}, "",
			"resourceclaimtemplates/t resourceclaims/train-g-", "", ""},
		"of no template": {nil, plan.Manifests{}, ofTemplate("t"), nil, "", "", "", ""},
		"of the manifests": {nil, plan.Manifests{Claims: []*resourceapi.ResourceClaim{own}}, named,
			map[string]error{claims: forbidden(claims)}, "", "resourceclaims/own", "its claim g would be refused: " + quota, ""},
		"that is there": {[]runtime.Object{own}, plan.Manifests{Claims: []*resourceapi.ResourceClaim{own}}, named, nil, "",
			"", "", ""},
		"without the right": {[]runtime.Object{template}, plan.Manifests{}, ofTemplate("t"), nil, claims, "", "",
			"Whether claims would be refused is not known: you may not create resourceclaims.resource.k8s.io in namespace " +
				"team."},
		"without that of templates": {nil, plan.Manifests{Templates: []*resourceapi.ResourceClaimTemplate{template}},
			ofTemplate("t"), nil, templates, "", "", "Whether claims would be refused is not known: you may not create " +
				"resourceclaimtemplates.resource.k8s.io in namespace team."},
		"a webhook that is down": {[]runtime.Object{template}, plan.Manifests{}, ofTemplate("t"),
			map[string]error{claims: down}, "", "resourceclaims/train-g-", "", "Whether claims would be refused is not known: " +
				"pod/train (m.yaml): Internal error occurred: the webhook is down."},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(append(test.there, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: team}})...)
			client.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
				create := action.(clienttesting.CreateActionImpl)
				made := create.Object.(metav1.Object)
				if !slices.Equal(create.CreateOptions.DryRun, []string{metav1.DryRunAll}) || made.GetResourceVersion() != "" ||
					made.GetGenerateName() == "train-g-" && create.Resource.Resource != claims {
					t.Errorf("it creates %+v with %+v", made, create.CreateOptions)
				}
				if c, is := made.(*resourceapi.ResourceClaim); is && test.uses.ResourceClaimTemplateName != nil &&
					(c.Annotations[resourceapi.PodResourceClaimAnnotation] != "g" ||
						*test.uses.ResourceClaimTemplateName == "t" && (c.Annotations["by"] != "template" ||
							c.Labels["of"] != "template" || !reflect.DeepEqual(c.Spec, spec))) {
					t.Errorf("kube-controller-manager makes no claim such as %+v", c)
				}
				return true, create.Object, test.says[create.Resource.Resource]
			})
			client.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object,
				error) {
				review := action.(clienttesting.CreateActionImpl).Object.(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
				review.Status.Allowed = review.Spec.ResourceAttributes.Resource != test.mayNot
				return true, review, nil
			})
			test.wanted.Workloads = []plan.Workload{{Source: plan.Source{File: "m.yaml"}, Kind: "pod", Pods: 1, Namespace: team,
				Name: "train", Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
					ResourceClaims: []corev1.PodResourceClaim{test.uses}}}}}
			in, err := cluster.Reader{Client: client}.PlanInput(t.Context(), test.wanted)
			expect.NoError(t, err)
			expect.Equal(t, 1, len(template.Spec.Annotations), "annotations of the template itself: %v",
				template.Spec.Annotations)
			expect.Equal(t, test.refused, in.Workloads[0].Refused, "refused")
			expect.Equal(t, test.note, strings.Join(in.Notes, "\n"), "notes")
			expect.Equal(t, test.tried, strings.Join(triedBeside(client, "pods", "selfsubjectaccessreviews"), " "), "it tries")
		})
	}
}

// A policy may change claims, as that of the option nvidia-dra does: plan places them as changed.
func TestClaimsArePlannedAsAdmitted(t *testing.T) {
	const team, theirs, ours = "team", "gpu.nvidia.com", "cgpu.gpu.aliyun.com"
	spec := resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: theirs}}}}}
	own := claim(team, "own")
	own.Spec = spec
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "t"},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec}}
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: team}})
	admits(t, client, func(*corev1.Pod) error { return nil })
	client.PrependReactor("create", "resourceclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		c := action.(clienttesting.CreateActionImpl).Object.(*resourceapi.ResourceClaim).DeepCopy()
		c.Spec.Devices.Requests[0].Exactly.DeviceClassName = ours
		return true, c, nil
	})
	in, err := cluster.Reader{Client: client}.PlanInput(t.Context(), plan.Manifests{
		Claims: []*resourceapi.ResourceClaim{own}, Templates: []*resourceapi.ResourceClaimTemplate{template},
		Workloads: []plan.Workload{{Kind: "pod", Pods: 1, Namespace: team, Name: "p", Template: corev1.PodTemplateSpec{
			Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{
				{Name: "a", ResourceClaimTemplateName: ptr.To("t")}, {Name: "b", ResourceClaimName: ptr.To("own")}}}}}}})
	expect.NoError(t, err)
	for _, key := range []string{"ResourceClaimTemplate/team/t", "ResourceClaim/team/own"} {
		if r := in.AdmittedClaims[key].Devices.Requests; len(r) != 1 || r[0].Exactly.DeviceClassName != ours {
			t.Errorf("%s asks for %+v", key, r)
		}
	}
	made, err := plan.Of(t.Context(), in)
	expect.NoError(t, err)
	if asked := strings.Join(made.Pods[0].Asked, "\n"); strings.Count(asked, "1 of class "+ours) != 2 {
		t.Errorf("planned are\n%s", asked)
	}
	expect.Equal(t, theirs, own.Spec.Devices.Requests[0].Exactly.DeviceClassName, "class in the manifest itself")
}

// triedBeside are the objects that were created, as in "resourceclaims/c", but for those of some resources.
func triedBeside(client *fake.Clientset, resources ...string) (out []string) {
	for _, action := range client.Actions() {
		create, is := action.(clienttesting.CreateActionImpl)
		if !is || slices.Contains(resources, create.Resource.Resource) {
			continue
		}
		made := create.Object.(metav1.Object)
		out = append(out, create.Resource.Resource+"/"+made.GetName()+made.GetGenerateName())
	}
	return out
}

func TestTryingPodsFails(t *testing.T) {
	down := errors.New("the network is down")
	for resource, want := range map[string]string{
		"selfsubjectaccessreviews": "ask whether you may create pods in namespace team-b: ",
		"pods":                     "try pod/p (m.yaml) in a dry run: ",
		"resourceclaims":           "try pod/p (m.yaml) in a dry run: "} {
		client := fake.NewClientset(append(objects(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-b"}},
			&resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: "there"}})...)
		admits(t, client, func(*corev1.Pod) error { return nil })
		answer(client, "create", resource, nil, down)
		m := wanted()
		m.Workloads[0].File = "m.yaml"
		if _, err := (cluster.Reader{Client: client}).PlanInput(t.Context(), m); !errors.Is(err, down) ||
			!strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", resource, err)
		}
	}
}
