// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// The DeviceClasses the driver comes with.
const (
	ExclusiveClass = "exclusive.gpu.aliyun.com"
	ShareClass     = "share.gpu.aliyun.com"
	TopologyClass  = "topology.gpu.aliyun.com"
)

// ProbeImage prints environment and devices and stays; `gpu-probe env` and the
// like work in its containers.
const ProbeImage = "localhost/gpu-probe:latest"

// Pod is a pod with one container "main" that runs the probe on a node, changed
// by the options.
func Pod(name, node string, options ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelHostname: node},
			// A volume with a token is one more thing to wait for, and to go wrong.
			AutomountServiceAccountToken:  ptr.To(false),
			DNSPolicy:                     corev1.DNSDefault,
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: ptr.To(int64(5)),
			Containers:                    []corev1.Container{probe("main")},
		},
	}
	for _, option := range options {
		option(pod)
	}
	return pod
}

// Pods returns n pods as Pod makes them. Their names end with their numbers.
func Pods(n int, name, node string, options ...func(*corev1.Pod)) []*corev1.Pod {
	var pods []*corev1.Pod
	for i := range n {
		pods = append(pods, Pod(name+strconv.Itoa(i), node, options...))
	}
	return pods
}

func probe(name string) corev1.Container {
	return corev1.Container{Name: name, Image: ProbeImage, ImagePullPolicy: corev1.PullNever}
}

// FromTemplate gives a pod's containers a claim of their own, made from a template.
func FromTemplate(template string) func(*corev1.Pod) {
	return claimed(corev1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: &template})
}

// FromClaim gives a pod's containers a claim that is there.
func FromClaim(claim string) func(*corev1.Pod) {
	return claimed(corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: &claim})
}

func claimed(claim corev1.PodResourceClaim) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, claim)
		for i := range pod.Spec.Containers {
			resources := &pod.Spec.Containers[i].Resources
			resources.Claims = append(resources.Claims, corev1.ResourceClaim{Name: claim.Name})
		}
	}
}

// PerRequest gives a pod one container for each of the requests of the claim
// named before, with the request's name and that request alone.
func PerRequest(requests ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Containers = nil
		for _, request := range requests {
			container := probe(request)
			container.Resources.Claims = []corev1.ResourceClaim{{Name: "gpu", Request: request}}
			pod.Spec.Containers = append(pod.Spec.Containers, container)
		}
	}
}

// Limit gives a pod's first container a limit on a plain resource.
func Limit(name corev1.ResourceName, amount string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		of := &pod.Spec.Containers[0].Resources
		if of.Limits == nil {
			of.Limits = corev1.ResourceList{}
		}
		of.Limits[name] = resource.MustParse(amount)
	}
}

// Requests is the spec of a claim with these requests.
func Requests(requests ...resourceapi.DeviceRequest) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}}
}

// Exclusive is a request for whole GPUs.
func Exclusive(name string, count int64) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: ExclusiveClass, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
	}}
}

// Linked is a request for sets of so many linked GPUs, or single ones, on a
// node in mode topology.
func Linked(name string, size int, count int64) resourceapi.DeviceRequest {
	class := "single." + TopologyClass
	if size > 1 {
		class = fmt.Sprintf("linked-%d.%s", size, TopologyClass)
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
	}}
}

// Share is a request for a share of one GPU. An empty memory leaves the amount
// to the driver.
func Share(name, memory string) resourceapi.DeviceRequest {
	request := &resourceapi.ExactDeviceRequest{DeviceClassName: ShareClass}
	if memory != "" {
		request.Capacity = Capacity(v1alpha1.CapMemory, memory)
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: request}
}

// Capacity is a request of one amount.
func Capacity(name resourceapi.QualifiedName, amount string) *resourceapi.CapacityRequirements {
	return &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
		name: resource.MustParse(amount)}}
}

// Matching narrows a request by a CEL expression.
func Matching(request resourceapi.DeviceRequest, expression string) resourceapi.DeviceRequest {
	request.Exactly.Selectors = append(request.Exactly.Selectors,
		resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
	return request
}

// Kind is the client of one kind of objects, as in client.AppsV1().Deployments("team").
type Kind[T any] interface {
	Create(ctx context.Context, object T, options metav1.CreateOptions) (T, error)
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
	Patch(ctx context.Context, name string, how types.PatchType, patch []byte, options metav1.PatchOptions,
		subresources ...string) (T, error)
}

// Make makes an object, and returns what the API server has made of it.
func Make[T metav1.Object](t *testing.T, kind Kind[T], object T) T {
	t.Helper()
	made, err := kind.Create(t.Context(), object, metav1.CreateOptions{})
	expect.NoErrorf(t, err, "make %T %s", object, object.GetName())
	return made
}

// Get reads an object.
func Get[T any](t *testing.T, kind Kind[T], name string) T {
	t.Helper()
	object, err := kind.Get(t.Context(), name, metav1.GetOptions{})
	expect.NoError(t, err)
	return object
}

// Becomes waits until a condition holds of an object, which may not be there at first. It says what it waits for as
// Eventually does.
func Becomes[T any](t *testing.T, kind Kind[T], name, what string, condition func(object T) error) {
	t.Helper()
	Eventually(t, what, func(ctx context.Context) error {
		object, err := kind.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return condition(object)
	})
}

// WaitNone waits until there is no object of a name, and says what it waits for as Eventually does.
func WaitNone[T any](t *testing.T, kind Kind[T], name, what string) {
	t.Helper()
	Eventually(t, what, func(ctx context.Context) error {
		_, err := kind.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
}

// Patch changes an object by a patch in JSON.
func Patch[T any](t *testing.T, kind Kind[T], name string, how types.PatchType, patch string, subresources ...string) {
	t.Helper()
	if _, err := kind.Patch(t.Context(), name, how, []byte(patch), metav1.PatchOptions{}, subresources...); err != nil {
		t.Fatalf("patch %s by %s: %v", name, patch, err)
	}
}
