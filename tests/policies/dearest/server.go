// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
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

// Who writes what.
const (
	tenant          = "somebody"
	claimController = "system:serviceaccount:kube-system:resource-claim-controller"
	ourController   = "system:serviceaccount:kube-system:gpu-compat-controller"
)

// The namespace of all pods; it has no labels but what --namespace-labels gives it.
const namespace = "team"

// server is as much of an API server as comes between an object and its storage.
type server struct {
	mutating   *mutating.Plugin
	validating *validating.Plugin
	objects    admission.ObjectInterfaces
	// informers are what policies read their parameters from; stored is what was put there.
	informers informers.SharedInformerFactory
	stored    []stored
}

// stored is an object that policies can have as a parameter.
type stored struct {
	resource schema.GroupVersionResource
	object   runtime.Object
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

// shippedPolicies are the files of the policies that are installed without options.
func shippedPolicies(deployments string) ([]string, error) {
	var files []string
	for _, pattern := range []string{"manifests/admission/*.yaml", "manifests/policy-*.yaml"} {
		found, err := filepath.Glob(filepath.Join(deployments, pattern))
		if err != nil || len(found) == 0 {
			return nil, fmt.Errorf("no policies in %s/%s (%w)", deployments, pattern, err)
		}
		files = append(files, found...)
	}
	return slices.DeleteFunc(files, func(f string) bool { return filepath.Base(f) == "kustomization.yaml" }), nil
}

// newServer is the server with the policies of the files, and a namespace with the labels.
func newServer(ctx context.Context, files []string, labels map[string]string,
	classes []*resourceapi.DeviceClass) (*server,
	error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace,
		Labels: map[string]string{corev1.LabelMetadataName: namespace}}}
	for k, v := range labels {
		ns.Labels[k] = v
	}
	objects := []runtime.Object{ns}
	for _, c := range classes {
		objects = append(objects, c)
	}
	for _, file := range files {
		read, err := decode(file)
		if err != nil {
			return nil, err
		}
		objects = append(objects, read...)
	}
	client := withSchemas{fake.NewClientset(objects...)}
	factory := informers.NewSharedInformerFactory(client, 0)
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"Pod", "Event", "ConfigMap", "ResourceQuota"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	for _, kind := range []string{"ResourceClaim", "ResourceClaimTemplate"} {
		mapper.Add(resourceapi.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	for _, kind := range []string{"ResourceSlice", "DeviceClass"} {
		mapper.Add(resourceapi.SchemeGroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	s := &server{informers: factory, objects: admission.NewObjectInterfacesFromScheme(scheme.Scheme)}
	var err error
	if s.mutating, err = mutating.NewPlugin(nil); err != nil {
		return nil, fmt.Errorf("make the plugin of mutating policies: %w", err)
	}
	if s.validating, err = validating.NewPlugin(nil); err != nil {
		return nil, fmt.Errorf("make the plugin of validating policies: %w", err)
	}
	dynamic := dynamicfake.NewSimpleDynamicClient(scheme.Scheme)
	s.mutating.SetDynamicClient(dynamic)
	s.validating.SetDynamicClient(dynamic)
	nobody := authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision,
		string, error) {
		return authorizer.DecisionNoOpinion, "", nil
	})
	s.mutating.SetUnconditionalAuthorizer(nobody)
	s.validating.SetUnconditionalAuthorizer(nobody)
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
		plugin.SetDrainedNotification(ctx.Done())
		plugin.SetEnabled(true)
		if err := plugin.ValidateInitialization(); err != nil {
			return nil, fmt.Errorf("initialize the plugins of policies: %w", err)
		}
	}
	for resource := range kindOf {
		if _, err := factory.ForResource(resource); err != nil {
			return nil, fmt.Errorf("watch %s: %w", resource.Resource, err)
		}
	}
	factory.Start(ctx.Done())
	return s, s.await(ctx)
}

// await waits until the policies are compiled and the schemas read, which happens in the background.
func (s *server) await(ctx context.Context) error {
	var last error
	probe := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "probe"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	addLimits(&probe.Spec.Containers[0], map[string]int64{"aliyun.com/gpu-mem": 1})
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 5*time.Minute, true,
		func(context.Context) (bool, error) {
			if !s.mutating.WaitForReady() || !s.validating.WaitForReady() {
				return false, nil
			}
			_, last = s.create(tenant, probe, pods)
			return last == nil || !strings.Contains(last.Error(), "type converter"), nil
		})
	if err != nil {
		return fmt.Errorf("the policies cannot be evaluated within five minutes: %w", errors.Join(err, last))
	}
	return nil
}

// Resources of what is written.
var (
	pods      = corev1.SchemeGroupVersion.WithResource("pods")
	claims    = resourceapi.SchemeGroupVersion.WithResource("resourceclaims")
	templates = resourceapi.SchemeGroupVersion.WithResource("resourceclaimtemplates")
	kindOf    = map[schema.GroupVersionResource]string{pods: "Pod", claims: "ResourceClaim",
		templates: "ResourceClaimTemplate"}
)

// create is what becomes of a new object. It is there then for policies that look at it.
func (s *server) create(who string, object runtime.Object,
	resource schema.GroupVersionResource) (runtime.Object, error) {
	return s.admit(who, object.DeepCopyObject(), nil, resource, admission.Create)
}

// relabel is what becomes of an object from which a tenant takes all labels and annotations.
func (s *server) relabel(object runtime.Object, resource schema.GroupVersionResource) (runtime.Object, error) {
	without := object.DeepCopyObject()
	accessor, err := meta.Accessor(without)
	if err != nil {
		return nil, err
	}
	accessor.SetLabels(nil)
	accessor.SetAnnotations(nil)
	return s.admit(tenant, without, object, resource, admission.Update)
}

func (s *server) admit(who string, object, old runtime.Object, resource schema.GroupVersionResource,
	operation admission.Operation) (runtime.Object, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	attributes := admission.NewAttributesRecord(object, old, resource.GroupVersion().WithKind(kindOf[resource]),
		accessor.GetNamespace(), accessor.GetName(), resource, "", operation, nil, false, &user.DefaultInfo{Name: who})
	if err := s.mutating.Admit(context.Background(), attributes, s.objects); err != nil {
		return nil, err
	}
	if err := s.validating.Validate(context.Background(), attributes, s.objects); err != nil {
		return nil, err
	}
	object = attributes.GetObject()
	if accessor, err = meta.Accessor(object); err != nil || accessor.GetName() == "" {
		return object, err
	}
	accessor.SetUID(types.UID("uid-" + accessor.GetName()))
	informer, err := s.informers.ForResource(resource)
	if err != nil {
		return nil, err
	}
	s.stored = append(s.stored, stored{resource, object})
	return object, informer.Informer().GetIndexer().Update(object)
}

// forget has nothing there any more.
func (s *server) forget() error {
	for _, of := range s.stored {
		informer, err := s.informers.ForResource(of.resource)
		if err != nil {
			return err
		}
		if err := informer.Informer().GetIndexer().Delete(of.object); err != nil {
			return err
		}
	}
	s.stored = nil
	return nil
}

// decode reads the objects of a file, as they are stored.
func decode(file string) ([]runtime.Object, error) {
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
