// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// pod is a pod of the namespace team, as a decoder that sets defaults leaves it.
func pod(name string, labels map[string]string, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name, Labels: labels},
		Spec:       corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName, Containers: containers},
	}
}

// podFor is a pod with one container, c, that has such limits.
func podFor(amounts string) *corev1.Pod { return pod("p", nil, limited("c", amounts)) }

// podOf is a pod of a namespace.
func podOf(namespace string, containers ...corev1.Container) *corev1.Pod {
	return in(namespace, pod("p", nil, containers...))
}

// in has the pod be of a namespace.
func in(namespace string, p *corev1.Pod) *corev1.Pod {
	p.Namespace = namespace
	return p
}

// optingOut has the pod opt out by its label.
func optingOut(p *corev1.Pod) *corev1.Pod {
	p.Labels = map[string]string{v1alpha1.LabelLegacy: "false"}
	return p
}

// newPod is a pod, and what its refusal says: nothing if it is admitted.
type newPod struct {
	pod     *corev1.Pod
	refused string
}

// createEach checks which of the pods are refused.
func (s *server) createEach(t *testing.T, pods map[string]newPod) {
	t.Helper()
	for name, test := range pods {
		t.Run("a pod: "+name, func(t *testing.T) {
			_, err := s.create(test.pod)
			expect.Error(t, err, test.refused)
		})
	}
}

// limited is a container with such limits and the equal requests that the API server
// gives it, written as in "mem 3 core 20".
func limited(name, amounts string) corev1.Container {
	c := corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
		"cpu": resource.MustParse("1")}}}
	resources := map[string]corev1.ResourceName{"mem": ack.ResourceMemory, "core": ack.ResourceCores,
		"gpu": ack.ResourceGPUs, "count": ack.ResourceCount}
	fields := strings.Fields(amounts)
	for i := 0; i+1 < len(fields); i += 2 {
		name, short := resources[fields[i]]
		if !short {
			name = corev1.ResourceName(fields[i])
		}
		c.Resources.Limits[name] = resource.MustParse(fields[i+1])
	}
	c.Resources.Requests = c.Resources.Limits.DeepCopy()
	return c
}

// requested is a container that requests what limited has for limits, and limits nothing.
func requested(name, amounts string) corev1.Container {
	c := limited(name, amounts)
	c.Resources = corev1.ResourceRequirements{Requests: c.Resources.Limits}
	return c
}

func sidecar(c corev1.Container) corev1.Container {
	c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	return c
}

func withInit(p *corev1.Pod, containers ...corev1.Container) *corev1.Pod {
	p.Spec.InitContainers = containers
	return p
}

func changed(p *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
	change(p)
	return p
}

// template is the template of the claim that a converted pod refers to; empty where it
// has none.
func template(p *corev1.Pod) string {
	for _, claim := range p.Spec.ResourceClaims {
		if claim.Name == legacy.ClaimName {
			return ptr.Deref(claim.ResourceClaimTemplateName, "")
		}
	}
	return ""
}

// uses lists "container:request" of the claim's requests, in the pod's order.
func uses(p *corev1.Pod) string {
	var out []string
	for _, c := range members(p) {
		for _, claim := range c.Resources.Claims {
			if claim.Name == legacy.ClaimName {
				out = append(out, c.Name+":"+claim.Request)
			}
		}
	}
	return strings.Join(out, " ")
}

func members(p *corev1.Pod) []corev1.Container {
	return append(append([]corev1.Container{}, p.Spec.Containers...), p.Spec.InitContainers...)
}
