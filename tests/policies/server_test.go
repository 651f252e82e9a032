// SPDX-License-Identifier: Apache-2.0

// Package admission tests the admission policies of deployments/manifests and of its
// options, by the code with which the API server evaluates them (k8s.io/apiserver). It
// is a module of its own, for that code needs much that the driver does not.
package admission

import (
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/policies/apiserver"
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
type server struct{ *apiserver.Plugins }

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
		expect.NoError(t, err)
		if !slices.Contains(without, accessor.GetName()) {
			objects = append(objects, policy)
		}
	}
	// A shared server outlives the test that asks for it first.
	never := make(chan struct{})
	plugins, err := apiserver.New(never, objects, authorizer.AuthorizerFunc(authorize))
	expect.NoError(t, err)
	s := &server{plugins}
	expect.NoError(t, plugins.Await(t.Context(), func() error {
		_, err := s.create(podFor("mem 1"))
		return err
	}))
	return s
}

// policies are the policies and bindings as they are installed. Tests read deployments through a
// link within this module: what lies outside of it Go does not look at when it decides whether a
// test's last result still holds.
func policies(t testing.TB) []runtime.Object {
	t.Helper()
	files, err := filepath.Glob("testdata/deployments/manifests/admission/*.yaml")
	expect.NoError(t, err)
	bounds, err := filepath.Glob("testdata/deployments/manifests/policy-*.yaml")
	expect.NoError(t, err)
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
		read, err := apiserver.Decode(file)
		expect.NoError(t, err)
		objects = append(objects, read...)
	}
	return objects
}

// create is what becomes of a new pod.
func (s *server) create(p *corev1.Pod) (*corev1.Pod, error) {
	return s.createBy("somebody", p)
}

// createBy is what becomes of a new pod that a user writes.
func (s *server) createBy(username string, p *corev1.Pod) (*corev1.Pod, error) {
	return admitted(context.Background(), s, &user.DefaultInfo{Name: username}, p, nil)
}

// update is what becomes of a change of a pod.
func (s *server) update(old, p *corev1.Pod) (*corev1.Pod, error) {
	return admitted(context.Background(), s, somebody, p, old)
}

// admitted returns what admission makes of an object that a user creates, or writes over an old one.
func admitted[T runtime.Object](ctx context.Context, s *server, who user.Info, object, old T) (T, error) {
	var none T
	request := attributesOf(who, object.DeepCopyObject(), old, "")
	if err := s.Admit(ctx, request); err != nil {
		return none, err
	}
	admitted, ok := request.GetObject().(T)
	if !ok {
		return none, fmt.Errorf("a %T became a %T", none, request.GetObject())
	}
	return admitted, nil
}

// validate is what is said of an object that a user writes, over the old one if there is one. Without an object, the
// user deletes the old one.
func (s *server) validate(who user.Info, object, old runtime.Object) error {
	return s.validateSubresource(who, object, old, "")
}

func (s *server) validateSubresource(who user.Info, object, old runtime.Object, subresource string) error {
	return s.Validate(context.Background(), attributesOf(who, object, old, subresource))
}

// attributesOf are those of the request that validate is about.
func attributesOf(who user.Info, object, old runtime.Object, subresource string) admission.Attributes {
	of, operation := object, admission.Update
	switch {
	case absent(object):
		object, of, operation = nil, old, admission.Delete
	case absent(old):
		old, operation = nil, admission.Create
	}
	// All objects here have metadata, and a kind with which the scheme begins.
	accessor, _ := meta.Accessor(of)
	kinds, _, _ := scheme.Scheme.ObjectKinds(of)
	resource, _ := meta.UnsafeGuessKindToResource(kinds[0])
	return admission.NewAttributesRecord(object, old, kinds[0], accessor.GetNamespace(), accessor.GetName(), resource,
		subresource, operation, nil, false, who)
}

// absent reports whether there is no object, of whichever type.
func absent(object runtime.Object) bool { return object == nil || reflect.ValueOf(object).IsNil() }

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
