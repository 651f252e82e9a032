package claim

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestLeavesOrder(t *testing.T) {
	container := func(env string, claims ...string) corev1.Container {
		c := corev1.Container{Name: "main"}
		if env != "" {
			c.Env = []corev1.EnvVar{{Name: env, Value: "0"}}
		}
		for _, name := range claims {
			c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: name})
		}
		return c
	}
	pod := func(containers ...corev1.Container) *corev1.Pod {
		return &corev1.Pod{
			Spec: corev1.PodSpec{Containers: containers, ResourceClaims: []corev1.PodResourceClaim{
				{Name: "cards", ResourceClaimName: ptr.To("ours")}, {Name: "nic", ResourceClaimName: ptr.To("nic-1")},
			}},
		}
	}
	extended := pod(container("CUDA_VISIBLE_DEVICES"))
	extended.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
		ResourceClaimName: "ours", RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "main"}},
	}
	for name, tc := range map[string]struct {
		pod    *corev1.Pod
		leaves bool
		others []string
	}{
		"one claim":                        {pod(container("", "cards")), true, nil},
		"another variable":                 {pod(container("CUDA_HOME", "cards")), true, nil},
		"it sets its own":                  {pod(container("CUDA_VISIBLE_DEVICES", "cards")), false, nil},
		"one of two containers sets it":    {pod(container("", "cards"), container("CUDA_VISIBLE_DEVICES", "cards")), false, nil},
		"a container without the claim":    {pod(container("", "cards"), container("CUDA_VISIBLE_DEVICES")), true, nil},
		"a second claim":                   {pod(container("", "cards", "nic")), true, []string{"nic-1"}},
		"a second claim elsewhere":         {pod(container("", "cards"), container("", "nic")), true, nil},
		"a claim for an extended resource": {extended, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			leaves, others := LeavesOrder(tc.pod, "ours")
			if leaves != tc.leaves || !cmp.Equal(others, tc.others) {
				t.Errorf("%v, others %v; want %v, %v", leaves, others, tc.leaves, tc.others)
			}
		})
	}
}
