// SPDX-License-Identifier: Apache-2.0

// Package apiserver evaluates admission policies by the API server's own code (k8s.io/apiserver), without a server: for
// the tests of the policies, and for the search for what they let through.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
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
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/discovery"
	dynamicclient "k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi/openapitest"
	"k8s.io/utils/ptr"
)

// Plugins are as much of an API server as comes between an object and its storage here: its own code that evaluates
// admission policies.
type Plugins struct {
	Mutating   *mutating.Plugin
	Validating *validating.Plugin
	// Informers are what policies read their parameters from.
	Informers informers.SharedInformerFactory
}

// New returns the plugins with the policies, bindings, namespaces and further objects. They read until done is closed;
// resources are those of which informers are to be there from the start, beside those of the objects.
func New(done <-chan struct{}, objects []runtime.Object, who authorizer.Authorizer,
	resources ...schema.GroupVersionResource) (*Plugins, error) {
	client := withSchemas{fake.NewClientset(objects...)}
	factory := informers.NewSharedInformerFactory(client, 0)
	p := &Plugins{Informers: factory}
	var err error
	if p.Mutating, err = mutating.NewPlugin(nil); err != nil {
		return nil, fmt.Errorf("make the plugin of mutating policies: %w", err)
	}
	if p.Validating, err = validating.NewPlugin(nil); err != nil {
		return nil, fmt.Errorf("make the plugin of validating policies: %w", err)
	}
	dynamic := dynamicfake.NewSimpleDynamicClient(scheme.Scheme)
	for _, plugin := range []interface {
		SetDynamicClient(dynamicclient.Interface)
		SetUnconditionalAuthorizer(authorizer.UnconditionalAuthorizer)
		SetExternalKubeClientSet(kubernetes.Interface)
		SetExternalKubeInformerFactory(informers.SharedInformerFactory)
		SetRESTMapper(meta.RESTMapper)
		SetDrainedNotification(<-chan struct{})
		SetEnabled(bool)
		ValidateInitialization() error
	}{p.Mutating, p.Validating} {
		plugin.SetDynamicClient(dynamic)
		plugin.SetUnconditionalAuthorizer(who)
		plugin.SetExternalKubeClientSet(client)
		plugin.SetExternalKubeInformerFactory(factory)
		plugin.SetRESTMapper(mapper())
		plugin.SetDrainedNotification(done)
		plugin.SetEnabled(true)
		if err := plugin.ValidateInitialization(); err != nil {
			return nil, fmt.Errorf("initialize the plugins of policies: %w", err)
		}
	}
	for _, resource := range resources {
		if _, err := factory.ForResource(resource); err != nil {
			return nil, fmt.Errorf("watch %s: %w", resource.Resource, err)
		}
	}
	factory.Start(done)
	return p, nil
}

// Admit applies the mutating policies to the object of a request, and returns the error of the validating ones.
func (p *Plugins) Admit(ctx context.Context, request admission.Attributes) error {
	if err := p.Mutating.Admit(ctx, request, objects); err != nil {
		return err
	}
	return p.Validate(ctx, request)
}

// Validate returns the error of the validating policies for a request.
func (p *Plugins) Validate(ctx context.Context, request admission.Attributes) error {
	return p.Validating.Validate(ctx, request, objects)
}

// objects are the kinds that requests are of.
var objects = admission.NewObjectInterfacesFromScheme(scheme.Scheme)

func mapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"Pod", "Event", "ConfigMap", "ResourceQuota", "LimitRange"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	for _, kind := range []string{"ResourceClaim", "ResourceClaimTemplate"} {
		mapper.Add(resourceapi.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	for _, kind := range []string{"ResourceSlice", "DeviceClass"} {
		mapper.Add(resourceapi.SchemeGroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	return mapper
}

// Await waits until both plugins have compiled the policies and the mutating one has read its schemas, which they do in
// the background: on a slow machine for longer than a request waits. probe creates a pod that is mutated.
func (p *Plugins) Await(ctx context.Context, probe func() error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 5*time.Minute, true,
		func(context.Context) (bool, error) {
			if !p.Mutating.WaitForReady() || !p.Validating.WaitForReady() {
				return false, nil
			}
			last = probe()
			return last == nil || !strings.Contains(last.Error(), "type converter"), nil
		})
	if err != nil {
		return fmt.Errorf("the policies cannot be evaluated within five minutes: %w", errors.Join(err, last))
	}
	return nil
}

// withSchemas has the schemas that the mutating plugin wants to know of, which the fake client does not
// have; one of claims is empty.
type withSchemas struct{ *fake.Clientset }

func (c withSchemas) Discovery() discovery.DiscoveryInterfaces {
	return schemas{c.Clientset.Discovery()}
}

type schemas struct{ discovery.DiscoveryInterfaces }

func (schemas) OpenAPIV3() openapi.Client { return withClaims{openapitest.NewEmbeddedFileClient()} }

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
	object := func(kind string) string {
		return `"io.k8s.api.resource.v1.` + kind + `":{"type":"object","x-kubernetes-preserve-unknown-fields":true,` +
			`"x-kubernetes-group-version-kind":[{"group":"resource.k8s.io","kind":"` + kind + `","version":"v1"}]}`
	}
	return []byte(`{"openapi":"3.0.0","components":{"schemas":{` + object("ResourceClaim") + `,` +
		object("ResourceClaimTemplate") + `}}}`), nil
}

// Decode reads the objects of a file, as they are stored.
func Decode(file string) ([]runtime.Object, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var objects []runtime.Object
	for i, document := range strings.Split(string(content), "\n---\n") {
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
		if err != nil {
			return nil, fmt.Errorf("%s, document %d: %w", file, i, err)
		}
		setDefaults(object)
		objects = append(objects, object)
	}
	return objects, nil
}

// setDefaults does what the API server does when a policy or binding is stored.
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
	for _, selector := range []**metav1.LabelSelector{&resources.NamespaceSelector, &resources.ObjectSelector} {
		if *selector == nil {
			*selector = &metav1.LabelSelector{}
		}
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
