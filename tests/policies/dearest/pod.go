// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// candidate is a pod, and all that its author writes for it.
type candidate struct {
	// Claims are what claims ask for, References the pod's list of them.
	Claims     []resourceapi.DeviceClaim
	References []reference
	Containers []container
	// Labels are those of the pod and of all that is written with it.
	Labels map[string]string
	// PodFirst says that the pod is there before its claims; Relabelled, that its author takes away what labels
	// policies have added as soon as there is an object.
	PodFirst, Relabelled bool
}

// reference is an entry of a pod's list of claims: a claim made of a template, for each entry another one, or
// one that is there by its name, which several entries can name.
type reference struct {
	Claim int
	Named bool
}

// container is a container with limits.
type container struct {
	// Kind is "", "init" or "sidecar".
	Kind   string
	Limits map[string]int64
}

func (c *candidate) clone() *candidate {
	out := &candidate{References: slices.Clone(c.References), Labels: maps.Clone(c.Labels), PodFirst: c.PodFirst,
		Relabelled: c.Relabelled}
	for _, claim := range c.Claims {
		out.Claims = append(out.Claims, *claim.DeepCopy())
	}
	for _, k := range c.Containers {
		out.Containers = append(out.Containers, container{k.Kind, maps.Clone(k.Limits)})
	}
	return out
}

// key is the same for equal candidates.
func (c *candidate) key() string {
	text, err := json.Marshal(c)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func claimName(i int) string { return fmt.Sprintf("claim-%d", i) }

// pod is the pod as it is written.
func (c *candidate) pod() *corev1.Pod {
	p := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pod", Labels: maps.Clone(c.Labels)},
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways,
			SchedulerName: corev1.DefaultSchedulerName}}
	for i, r := range c.References {
		entry := corev1.PodResourceClaim{Name: fmt.Sprintf("c%d", i),
			ResourceClaimTemplateName: ptr.To(claimName(r.Claim))}
		if r.Named {
			entry.ResourceClaimName, entry.ResourceClaimTemplateName = entry.ResourceClaimTemplateName, nil
		}
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, entry)
	}
	for i, k := range c.Containers {
		out := corev1.Container{Name: fmt.Sprintf("k%d", i), Image: "registry.k8s.io/pause:3.10"}
		addLimits(&out, k.Limits)
		if k.Kind == "sidecar" {
			out.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		}
		if k.Kind != "" {
			p.Spec.InitContainers = append(p.Spec.InitContainers, out)
			continue
		}
		if len(p.Spec.Containers) == 0 {
			for _, entry := range p.Spec.ResourceClaims {
				out.Resources.Claims = append(out.Resources.Claims, corev1.ResourceClaim{Name: entry.Name})
			}
		}
		p.Spec.Containers = append(p.Spec.Containers, out)
	}
	return p
}

func addLimits(to *corev1.Container, limits map[string]int64) {
	if len(limits) == 0 {
		return
	}
	to.Resources.Limits = corev1.ResourceList{}
	for name, amount := range limits {
		to.Resources.Limits[corev1.ResourceName(name)] = *resource.NewQuantity(amount, resource.DecimalSI)
	}
	// As the API server sets it.
	to.Resources.Requests = to.Resources.Limits.DeepCopy()
}

func (c *candidate) template(i int) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaimTemplate"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: claimName(i), Labels: maps.Clone(c.Labels)},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: c.Claims[i]}},
	}
}

func (c *candidate) claim(i int) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: claimName(i), Labels: maps.Clone(c.Labels)},
		Spec:       resourceapi.ResourceClaimSpec{Devices: c.Claims[i]},
	}
}

// claims are those that the scheduler allocates for a candidate as it is written; nil where policies make some of
// them.
func (c *candidate) claims(classes *extendedresourcecache.ExtendedResourceCache) []*resourceapi.ResourceClaim {
	var all []*resourceapi.ResourceClaim
	for _, k := range c.Containers {
		for name := range k.Limits {
			if ofACK(name) {
				return nil
			}
		}
	}
	for i, r := range c.References {
		claim := c.claim(r.Claim)
		if !r.Named {
			claim.Name = fmt.Sprintf("%s-%d", claim.Name, i)
		}
		claim.UID = types.UID(claim.Name)
		all = append(all, claim)
	}
	if extended := extendedClaim(c.pod(), classes); extended != nil {
		all = append(all, extended)
	}
	return all
}

// admitted are the claims that the scheduler allocates for a candidate, or why it is refused.
func (s *server) admitted(c *candidate, classes *extendedresourcecache.ExtendedResourceCache,
) (all []*resourceapi.ResourceClaim, err error) {
	defer func() { err = errors.Join(err, s.forget()) }()
	w := &writing{server: s, candidate: c, templates: map[string]*resourceapi.ResourceClaimTemplate{},
		named: map[string]*resourceapi.ResourceClaim{}}
	if !c.PodFirst {
		if err := w.claims(); err != nil {
			return nil, err
		}
	}
	pod, err := write[*corev1.Pod](w, tenant, c.pod(), pods)
	if err != nil {
		return nil, err
	}
	if c.PodFirst {
		if err := w.claims(); err != nil {
			return nil, err
		}
	}
	for i, entry := range pod.Spec.ResourceClaims {
		claim, err := w.claimOf(pod, i, entry)
		if err != nil {
			return nil, err
		}
		all = append(all, claim)
	}
	if extended := extendedClaim(pod, classes); extended != nil {
		all = append(all, extended)
	}
	return all, nil
}

// writing is what is there while a candidate is written.
type writing struct {
	*server
	*candidate
	templates map[string]*resourceapi.ResourceClaimTemplate
	named     map[string]*resourceapi.ResourceClaim
}

// write is what becomes of an object of type T.
func write[T runtime.Object](w *writing, who string, object T, resource schema.GroupVersionResource) (T, error) {
	var none T
	out, err := w.create(who, object, resource)
	if err == nil && w.Relabelled && who == tenant {
		out, err = w.relabel(out, resource)
	}
	if err != nil {
		return none, err
	}
	written, ok := out.(T)
	if !ok {
		return none, fmt.Errorf("a %T became a %T", object, out)
	}
	return written, nil
}

// claims writes the templates, and the claims that have names.
func (w *writing) claims() error {
	var err error
	for i := range w.Claims {
		if w.refers(i, false) {
			if w.templates[claimName(i)], err = write(w, tenant, w.template(i), templates); err != nil {
				return err
			}
		}
		if w.refers(i, true) {
			if w.named[claimName(i)], err = write(w, tenant, w.claim(i), claims); err != nil {
				return err
			}
		}
	}
	return nil
}

// claimOf is the claim of an entry of the pod's list.
func (w *writing) claimOf(pod *corev1.Pod, i int,
	entry corev1.PodResourceClaim) (*resourceapi.ResourceClaim, error) {
	if entry.ResourceClaimName != nil {
		return w.named[*entry.ResourceClaimName], nil
	}
	name := ptr.Deref(entry.ResourceClaimTemplateName, "")
	if w.templates[name] == nil { // our controller's
		request, err := legacy.ParseName(name)
		if err != nil {
			return nil, err
		}
		template := request.Template(namespace)
		if template.Labels == nil {
			template.Labels = map[string]string{}
		}
		template.Labels["app.kubernetes.io/managed-by"] = "gpu-compat-controller"
		if w.templates[name], err = write(w, ourController, template, templates); err != nil {
			return nil, fmt.Errorf("the controller's template: %w", err)
		}
	}
	t := w.templates[name]
	annotations := maps.Clone(t.Spec.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations["resource.kubernetes.io/pod-claim-name"] = entry.Name
	claim, err := write(w, claimController, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "pod-" + entry.Name + "-",
			Labels:      t.Spec.Labels,
			Annotations: annotations, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod",
				Name: pod.Name,
				UID:  pod.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}}},
		Spec: t.Spec.Spec}, claims)
	if err != nil {
		return nil, err
	}
	claim.Name = fmt.Sprintf("pod-%s-%d", entry.Name, i)
	claim.UID = types.UID(claim.Name)
	return claim, nil
}

func (c *candidate) refers(claim int, named bool) bool {
	return slices.Contains(c.References, reference{Claim: claim, Named: named})
}

// classesByResource finds the class of an extended resource as the scheduler does.
func classesByResource(classes []*resourceapi.DeviceClass) *extendedresourcecache.ExtendedResourceCache {
	cache := extendedresourcecache.NewExtendedResourceCache(klog.Background())
	for _, c := range classes {
		cache.OnAdd(c, true)
	}
	return cache
}

// extendedClaim is the claim that the scheduler makes of containers' extended resources, and nil where there
// are none (createRequestsAndMappings of its plugin DynamicResources).
func extendedClaim(pod *corev1.Pod,
	classes *extendedresourcecache.ExtendedResourceCache) *resourceapi.ResourceClaim {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	names := map[corev1.ResourceName]bool{}
	for _, k := range containers {
		for name := range k.Resources.Requests {
			if classes.GetDeviceClass(name) != nil {
				names[name] = true
			}
		}
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
		Name: "<extended-resources>",
		UID:  "extended"}}
	request := func(i int, name corev1.ResourceName, count int64) *resourceapi.DeviceRequest {
		index := slices.Index(slices.Sorted(maps.Keys(containers[i].Resources.Requests)), name)
		return &resourceapi.DeviceRequest{Name: fmt.Sprintf("container-%d-request-%d", i, index),
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: classes.GetDeviceClass(name).Name,
				AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		// Containers that run as long as the pod have devices of their own, which init containers before them use.
		lasting := make([]int64, len(containers))
		var most *resourceapi.DeviceRequest
		for i, k := range containers {
			if i >= len(pod.Spec.InitContainers) || ptr.Deref(k.RestartPolicy,
				"") == corev1.ContainerRestartPolicyAlways {
				amount := k.Resources.Requests[name]
				if lasting[i] = amount.Value(); lasting[i] > 0 {
					claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, *request(i, name, lasting[i]))
				}
			}
		}
		for i := range pod.Spec.InitContainers {
			if lasting[i] > 0 {
				continue
			}
			amount := containers[i].Resources.Requests[name]
			left := amount.Value()
			for _, n := range lasting[i:] {
				left -= n
			}
			if left > 0 && (most == nil || most.Exactly.Count < left) {
				most = request(i, name, left)
			}
		}
		if most != nil {
			claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, *most)
		}
	}
	if len(claim.Spec.Devices.Requests) == 0 {
		return nil
	}
	slices.SortFunc(claim.Spec.Devices.Requests, func(a,
		b resourceapi.DeviceRequest) int {
		return strings.Compare(a.Name, b.Name)
	})
	return claim
}
