// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/gpushare/dra-driver-gpushare/tests/policies/apiserver"
)

// Who writes what.
const (
	tenant          = "somebody"
	claimController = "system:serviceaccount:kube-system:resource-claim-controller"
	ourController   = "system:serviceaccount:kube-system:gpu-compat-controller"
)

// The namespace of all pods.
const namespace = "team"

// server is as much of an API server as comes between an object and its storage.
type server struct {
	*apiserver.Plugins
	// stored is what was put into the informers.
	stored []stored
}

// stored is an object that policies can have as a parameter.
type stored struct {
	resource schema.GroupVersionResource
	object   runtime.Object
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

// newServer is the server with the policies of the files.
func newServer(ctx context.Context, files []string, classes []*resourceapi.DeviceClass) (*server, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace,
		Labels: map[string]string{corev1.LabelMetadataName: namespace}}}
	objects := []runtime.Object{ns}
	for _, c := range classes {
		objects = append(objects, c)
	}
	for _, file := range files {
		read, err := apiserver.Decode(file)
		if err != nil {
			return nil, err
		}
		objects = append(objects, read...)
	}
	nobody := authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision,
		string, error) {
		return authorizer.DecisionNoOpinion, "", nil
	})
	plugins, err := apiserver.New(ctx.Done(), objects, nobody, slices.Collect(maps.Keys(kindOf))...)
	if err != nil {
		return nil, err
	}
	s := &server{Plugins: plugins}
	return s, s.await(ctx)
}

// await waits until the policies can be evaluated.
func (s *server) await(ctx context.Context) error {
	probe := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "probe"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	addLimits(&probe.Spec.Containers[0], map[string]int64{"aliyun.com/gpu-mem": 1})
	return s.Await(ctx, func() error {
		_, err := s.create(tenant, probe, pods)
		return err
	})
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
	if err := s.Admit(context.Background(), attributes); err != nil {
		return nil, err
	}
	object = attributes.GetObject()
	if accessor, err = meta.Accessor(object); err != nil || accessor.GetName() == "" {
		return object, err
	}
	accessor.SetUID(types.UID("uid-" + accessor.GetName()))
	informer, err := s.Informers.ForResource(resource)
	if err != nil {
		return nil, err
	}
	s.stored = append(s.stored, stored{resource, object})
	return object, informer.Informer().GetIndexer().Update(object)
}

// forget has nothing there any more.
func (s *server) forget() error {
	for _, of := range s.stored {
		informer, err := s.Informers.ForResource(of.resource)
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
