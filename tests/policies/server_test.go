// SPDX-License-Identifier: Apache-2.0

// Package admission tests the admission policies of deployments/manifests and of its
// options, by the code with which the API server evaluates them (k8s.io/apiserver). It
// is a module of its own, for that code needs much that the driver does not.
package admission

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/discovery"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi/openapitest"
	"k8s.io/utils/ptr"
)

// Namespaces of the server.
const (
	team     = "team"
	optedOut = "opted-out"
	// These have the label of the option share-limit, with 8 and with 8Gi.
	bounded     = "bounded"
	boundedTypo = "bounded-typo"
	// These bound compute, to half of a GPU: one nothing else, the other memory as well.
	boundedCores = "bounded-cores"
	boundedBoth  = "bounded-both"
	// This one has the label that keeps limits, and that one lets variables through.
	limitsKept = "limits-kept"
	watching   = "watching"
	// These have the label of the option grace-limit, with 7200, with 120 and with 2h.
	patient     = "patient"
	hasty       = "hasty"
	patientTypo = "patient-typo"
	// These have one, and two, ResourceQuotas of amounts of GPUs.
	counted      = "counted"
	countedTwice = "counted-twice"
	// This one has a ResourceQuota as on ACK.
	countedAsOnACK = "counted-as-on-ack"
)

// server is as much of an API server as comes between a pod and its storage here.
type server struct {
	mutating   *mutating.Plugin
	validating *validating.Plugin
}

// withSchemas has the schemas that the mutating plugin wants to know of, which the
// fake client does not have.
type withSchemas struct{ *fake.Clientset }

func (c withSchemas) Discovery() discovery.DiscoveryInterfaces {
	return schemas{c.Clientset.Discovery()}
}

type schemas struct{ discovery.DiscoveryInterfaces }

func (schemas) OpenAPIV3() openapi.Client { return withClaims{openapitest.NewEmbeddedFileClient()} }

// withClaims has a schema of claims, too, as far as JSON patches need one: there has to be
// one.
type withClaims struct{ openapi.Client }

func (c withClaims) Paths() (map[string]openapi.GroupVersion, error) {
	paths, err := c.Client.Paths()
	if err != nil {
		return nil, err
	}
	paths["apis/"+resourceapi.SchemeGroupVersion.String()] = claimSchema{}
	return paths, nil
}

type claimSchema struct{}

func (claimSchema) ServerRelativeURL() string { return "claims" }

func (claimSchema) Schema(string) ([]byte, error) {
	return []byte(`{"openapi":"3.0.0","components":{"schemas":{"io.k8s.api.resource.v1.ResourceClaim":{"type":"object",` +
		`"x-kubernetes-preserve-unknown-fields":true,"x-kubernetes-group-version-kind":[` +
		`{"group":"resource.k8s.io","kind":"ResourceClaim","version":"v1"}]}}}}`), nil
}

// servers are those that tests have shared, by what is particular about them.
var servers = map[string]*server{}

// shared is the server of this name, built once. Admission changes nothing of a server, and to
// compile its policies takes longer than what most tests do with it.
func shared(name string, build func() *server) *server {
	if servers[name] == nil {
		servers[name] = build()
	}
	return servers[name]
}

// newServer is the server with all these policies but those whose names are given.
func newServer(t testing.TB, without ...string) *server {
	t.Helper()
	return shared("without "+strings.Join(without, " "), func() *server { return newServerWith(t, nil, without...) })
}

// newServerWith is a server of its own that has these objects, too.
func newServerWith(t testing.TB, with []runtime.Object, without ...string) *server {
	t.Helper()
	objects := append(slices.Clone(with),
		&corev1.Namespace{ObjectMeta: named(team)},
		&corev1.Namespace{ObjectMeta: named(metav1.NamespaceSystem)},
		&corev1.Namespace{ObjectMeta: named(metav1.NamespaceDefault)},
		namespace(optedOut, "gpu.aliyun.com/legacy", "false"),
		namespace(bounded, "gpu.aliyun.com/max-share-gib", "8"),
		namespace(boundedTypo, "gpu.aliyun.com/max-share-gib", "8Gi"),
		namespace(boundedCores, "gpu.aliyun.com/max-share-cores", "50"),
		namespace(boundedBoth, "gpu.aliyun.com/max-share-cores", "50", "gpu.aliyun.com/max-share-gib", "8"),
		namespace(limitsKept, "gpu.aliyun.com/lift-limits", "false"),
		namespace(watching, "gpu.aliyun.com/visible-devices", "any"),
		namespace(patient, "gpu.aliyun.com/max-grace-seconds", "7200"),
		namespace(hasty, "gpu.aliyun.com/max-grace-seconds", "120"),
		namespace(patientTypo, "gpu.aliyun.com/max-grace-seconds", "2h"),
		namespace(counted, "gpu.aliyun.com/costly-claims", "allowed"), namespace(countedTwice,
			"gpu.aliyun.com/costly-claims", "allowed"),
		namespace(countedAsOnACK),
		quotaFor(counted, "gpu", "gib.quota.gpu.aliyun.com.deviceclass.resource.k8s.io/devices"),
		quotaFor(countedTwice, "gib", "requests.deviceclass.resource.kubernetes.io/gib.quota.gpu.aliyun.com"),
		quotaFor(countedTwice, "percent", "percent.quota.gpu.aliyun.com.deviceclass.resource.k8s.io/devices"),
		quotaFor(countedAsOnACK, "gpu", "requests.aliyun.com/gpu-mem"),
		quotaFor(team, "gpu", "memory.gpu.aliyun.com.deviceclass.resource.k8s.io/devices"),
	)
	for _, policy := range policies(t) {
		accessor, err := meta.Accessor(policy)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(without, accessor.GetName()) {
			objects = append(objects, policy)
		}
	}
	// A shared server outlives the test that asks for it first.
	never := make(chan struct{})
	client := withSchemas{fake.NewClientset(objects...)}
	factory := informers.NewSharedInformerFactory(client, 0)
	dynamic := dynamicfake.NewSimpleDynamicClient(scheme.Scheme)
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Event"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("ResourceQuota"), meta.RESTScopeNamespace)
	mapper.Add(resourceapi.SchemeGroupVersion.WithKind("ResourceClaim"), meta.RESTScopeNamespace)
	mapper.Add(resourceapi.SchemeGroupVersion.WithKind("ResourceClaimTemplate"), meta.RESTScopeNamespace)
	mapper.Add(resourceapi.SchemeGroupVersion.WithKind("ResourceSlice"), meta.RESTScopeRoot)
	mapper.Add(resourceapi.SchemeGroupVersion.WithKind("DeviceClass"), meta.RESTScopeRoot)
	s := &server{}
	var err error
	if s.mutating, err = mutating.NewPlugin(nil); err != nil {
		t.Fatal(err)
	}
	if s.validating, err = validating.NewPlugin(nil); err != nil {
		t.Fatal(err)
	}
	for _, plugin := range []interface {
		SetExternalKubeClientSet(kubernetes.Interface)
		SetExternalKubeInformerFactory(informers.SharedInformerFactory)
		SetRESTMapper(meta.RESTMapper)
		SetDrainedNotification(<-chan struct{})
		SetEnabled(bool)
		ValidateInitialization() error
	}{s.mutating, s.validating} {
		plugin.SetExternalKubeClientSet(client)
		plugin.SetExternalKubeInformerFactory(factory)
		plugin.SetRESTMapper(mapper)
		plugin.SetDrainedNotification(never)
		plugin.SetEnabled(true)
	}
	s.mutating.SetDynamicClient(dynamic)
	s.validating.SetDynamicClient(dynamic)
	s.mutating.SetUnconditionalAuthorizer(authorizer.AuthorizerFunc(authorize))
	s.validating.SetUnconditionalAuthorizer(authorizer.AuthorizerFunc(authorize))
	for _, plugin := range []admission.InitializationValidator{s.mutating, s.validating} {
		if err := plugin.ValidateInitialization(); err != nil {
			t.Fatal(err)
		}
	}
	factory.Start(never)
	s.await(t)
	return s
}

// await waits until both plugins have compiled the policies and the mutating one has read its
// schemas, which they do in the background: on a slow machine for longer than a request waits.
func (s *server) await(t testing.TB) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 5*time.Minute, true,
		func(context.Context) (bool, error) {
			if !s.mutating.WaitForReady() || !s.validating.WaitForReady() {
				return false, nil
			}
			_, last = s.create(pod("probe", nil, limited("c", "mem 1")))
			return last == nil || !strings.Contains(last.Error(), "type converter"), nil
		})
	if err != nil {
		t.Fatalf("the policies cannot be evaluated within five minutes: %v", last)
	}
}

// policies are the policies and bindings as they are installed. Tests read deployments through a
// link within this module: what lies outside of it Go does not look at when it decides whether a
// test's last result still holds.
func policies(t testing.TB) []runtime.Object {
	t.Helper()
	files, err := filepath.Glob("testdata/deployments/manifests/admission/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	bounds, err := filepath.Glob("testdata/deployments/manifests/policy-*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files = append(append(files, bounds...),
		// It is for namespaces with its label alone.
		"testdata/deployments/options/share-limit/policy.yaml",
		// It is for namespaces with a ResourceQuota of amounts.
		"testdata/deployments/options/quota/policy.yaml",
		"testdata/deployments/options/quota/policy-refuse.yaml",
		// It is about what the plugin deletes.
		"testdata/deployments/options/audit-evicts/policy.yaml",
		// It is about a variable that no other test sets.
		"testdata/deployments/options/visible-devices/policy.yaml",
		// It is about grace periods that no other test has.
		"testdata/deployments/options/grace-limit/policy.yaml",
	)
	return decoded(t, files...)
}

// decoded are the objects of files, as they are stored.
func decoded(t testing.TB, files ...string) []runtime.Object {
	t.Helper()
	var objects []runtime.Object
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, document := range strings.Split(string(content), "\n---\n") {
			object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
			if err != nil {
				t.Fatalf("%s, document %d: %v", file, i, err)
			}
			setDefaults(object)
			objects = append(objects, object)
		}
	}
	return objects
}

// setDefaults does what the API server does when a policy or binding is stored, as far
// as these leave anything open.
func setDefaults(object runtime.Object) {
	var resources *admissionv1.MatchResources
	switch o := object.(type) {
	case *admissionv1.MutatingAdmissionPolicy:
		resources = o.Spec.MatchConstraints
	case *admissionv1.ValidatingAdmissionPolicy:
		resources = o.Spec.MatchConstraints
	case *admissionv1.MutatingAdmissionPolicyBinding:
		resources = o.Spec.MatchResources
	case *admissionv1.ValidatingAdmissionPolicyBinding:
		resources = o.Spec.MatchResources
	}
	if resources == nil {
		return
	}
	if resources.NamespaceSelector == nil {
		resources.NamespaceSelector = &metav1.LabelSelector{}
	}
	if resources.ObjectSelector == nil {
		resources.ObjectSelector = &metav1.LabelSelector{}
	}
	if resources.MatchPolicy == nil {
		resources.MatchPolicy = ptr.To(admissionv1.Equivalent)
	}
	for i := range resources.ResourceRules {
		if resources.ResourceRules[i].Scope == nil {
			resources.ResourceRules[i].Scope = ptr.To(admissionv1.AllScopes)
		}
	}
}

// create is what becomes of a new pod.
func (s *server) create(p *corev1.Pod) (*corev1.Pod, error) {
	return s.createBy("somebody", p)
}

// createBy is what becomes of a new pod that a user writes.
func (s *server) createBy(username string, p *corev1.Pod) (*corev1.Pod, error) {
	return s.admit(username, p, nil, admission.Create)
}

// update is what becomes of a change of a pod.
func (s *server) update(old, p *corev1.Pod) (*corev1.Pod, error) {
	return s.admit("somebody", p, old, admission.Update)
}

func (s *server) admit(username string, p, old *corev1.Pod, operation admission.Operation) (*corev1.Pod, error) {
	var before runtime.Object
	if old != nil {
		before = old.DeepCopy()
	}
	attributes := admission.NewAttributesRecord(p.DeepCopy(), before, corev1.SchemeGroupVersion.WithKind("Pod"),
		p.Namespace, p.Name,
		corev1.SchemeGroupVersion.WithResource("pods"), "", operation, nil, false, &user.DefaultInfo{Name: username})
	objects := admission.NewObjectInterfacesFromScheme(scheme.Scheme)
	if err := s.mutating.Admit(context.Background(), attributes, objects); err != nil {
		return nil, err
	}
	if err := s.validating.Validate(context.Background(), attributes, objects); err != nil {
		return nil, err
	}
	admitted, ok := attributes.GetObject().(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("a pod became a %T", attributes.GetObject())
	}
	return admitted, nil
}

// validate is what is said of an object that a user writes.
func (s *server) validate(who user.Info, object, old runtime.Object, kind string,
	resource schema.GroupVersionResource,
	operation admission.Operation) error {
	return s.validateSubresource(who, object, old, kind, resource, "", operation)
}

func (s *server) validateSubresource(who user.Info, object, old runtime.Object, kind string,
	resource schema.GroupVersionResource, subresource string, operation admission.Operation) error {
	return s.validating.Validate(context.Background(),
		attributesOf(who, object, old, kind, resource, subresource, operation),
		admission.NewObjectInterfacesFromScheme(scheme.Scheme))
}

func attributesOf(who user.Info, object, old runtime.Object, kind string, resource schema.GroupVersionResource,
	subresource string, operation admission.Operation) admission.Attributes {
	// All objects here have metadata.
	accessor, _ := meta.Accessor(cmp.Or(object, old))
	return admission.NewAttributesRecord(object, old, resource.GroupVersion().WithKind(kind), accessor.GetNamespace(),
		accessor.GetName(),
		resource, subresource, operation, nil, false, who)
}

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}
}

// namespace is one with labels, given as key, value, key, …
func namespace(name string, labels ...string) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: named(name)}
	for i := 0; i < len(labels); i += 2 {
		ns.Labels[labels[i]] = labels[i+1]
	}
	return ns
}
