// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

func using(name string, uses ...Use) PodContainer {
	return PodContainer{Container: &corev1.Container{Name: name}, Uses: uses}
}

func withoutLimits(c PodContainer) PodContainer {
	c.Env = []corev1.EnvVar{{Name: "CGPU_DISABLE", Value: "1"}}
	return c
}

func TestContainers(t *testing.T) {
	claims := func(refs ...corev1.ResourceClaim) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Claims: refs}
	}
	pod := &corev1.Pod{
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{
				{Name: "named", ResourceClaimName: ptr.To("ours")}, {Name: "made", ResourceClaimTemplateName: ptr.To("t")},
				{Name: "not-yet", ResourceClaimTemplateName: ptr.To("t")},
			},
			InitContainers: []corev1.Container{
				{Name: "init", Resources: claims(corev1.ResourceClaim{Name: "named", Request: "a"})}},
			Containers: []corev1.Container{
				{Name: "main", Resources: claims(corev1.ResourceClaim{Name: "named"},
					corev1.ResourceClaim{Name: "made", Request: "b"}, corev1.ResourceClaim{Name: "not-yet"})},
				{Name: "extended"},
				{Name: "none"},
			},
		},
		Status: corev1.PodStatus{
			ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: "made", ResourceClaimName: ptr.To("theirs")}},
			ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{
				ResourceClaimName: "cards", RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "extended",
					RequestName: "r"}},
			},
		},
	}
	got := map[string][]Use{}
	for _, c := range Containers(pod) {
		got[c.Name] = c.Uses
	}
	want := map[string][]Use{"init": {{"ours", "a"}}, "main": {{"ours", ""}, {"theirs", "b"}},
		"extended": {{"cards", "r"}}}
	expect.Equal(t, want, got, "uses of claims")
}

func TestUsersOfAClaim(t *testing.T) {
	of := func(request, container string) Grant {
		g := Grant{Request: request, Mode: mode.MPS, Config: v1alpha1.Default()}
		if container != "" {
			g.Config.Container = &container
		}
		return g
	}
	admin := of("b", "")
	admin.Admin = true
	offByConfig := of("b", "")
	offByConfig.Config = offByConfig.Config.Merge(v1alpha1.WithoutIsolation())
	for name, tc := range map[string]struct {
		grants     []Grant
		containers []PodContainer
		users      []int // for each grant the first one of the same user
		off        []bool
	}{
		"each its own": {[]Grant{of("a", ""), of("b", "")},
			[]PodContainer{using("x", Use{"c", "a"}), using("y", Use{"c", "b"})}, []int{0, 1}, []bool{false, false}},
		"a whole claim": {[]Grant{of("a", ""), of("b", "")}, []PodContainer{using("x", Use{"c", ""})},
			[]int{0, 0}, []bool{false, false}},
		"both by name": {[]Grant{of("a", ""), of("b", "")},
			[]PodContainer{using("x", Use{"c", "a"}, Use{"c", "b"})}, []int{0, 0}, []bool{false, false}},
		"alternatives": {[]Grant{of("a/first", ""), of("b/second", "")},
			[]PodContainer{using("x", Use{"c", "a"}, Use{"c", "b"})}, []int{0, 0}, []bool{false, false}},
		"of another claim": {[]Grant{of("a", ""), of("b", "")},
			[]PodContainer{using("x", Use{"other", ""}, Use{"c", "a"})}, []int{0, 1}, []bool{false, false}},
		"the configuration names another": {[]Grant{of("a", "x"), of("b", "y")}, []PodContainer{using("x", Use{"c", ""})},
			[]int{0, 1}, []bool{false, false}},
		"the configuration names one": {[]Grant{of("a", ""), of("b", "y")}, []PodContainer{using("x", Use{"c", ""})},
			[]int{0, 0}, []bool{false, false}},
		"an administrator's is apart": {[]Grant{of("a", ""), admin}, []PodContainer{using("x", Use{"c", ""})},
			[]int{0, 1}, []bool{false, false}},
		"off": {[]Grant{of("a", ""), of("b", "")},
			[]PodContainer{using("x", Use{"c", "a"}), withoutLimits(using("y", Use{"c", "b"}))}, []int{0, 1},
			[]bool{false, true}},
		"off by one of two containers": {[]Grant{of("a", ""), of("b", "")},
			[]PodContainer{using("x", Use{"c", ""}), withoutLimits(using("y", Use{"c", "b"}))}, []int{0, 0}, []bool{true, true}},
		"off by configuration, for one": {[]Grant{of("a", ""), offByConfig}, []PodContainer{using("x", Use{"c", ""})},
			[]int{0, 0}, []bool{true, true}},
		"off for another claim, not ours": {[]Grant{of("a", "")}, []PodContainer{withoutLimits(using("x", Use{"other", ""}))},
			[]int{0}, []bool{false}},
	} {
		t.Run(name, func(t *testing.T) {
			Join(tc.grants, "c", tc.containers)
			switchLimitsOff(tc.grants, "c", tc.containers)
			var users []int
			var off []bool
			for _, g := range tc.grants {
				first := 0
				for !tc.grants[first].SameContainer(g) {
					first++
				}
				users, off = append(users, first), append(off, g.Config.IsolationDisabled())
			}
			if expect.Diff(users, tc.users) != nil || expect.Diff(off, tc.off) != nil {
				t.Errorf("users %v, without limits %v; want %v, %v", users, off, tc.users, tc.off)
			}
		})
	}
}

func TestPerGPU(t *testing.T) {
	share := func(uuid string, units, cores int64) Grant {
		return Grant{GPU: GPU{UUID: uuid}, Units: units, CoresPercent: cores}
	}
	got := PerGPU([]Grant{share("b", 4, 20), share("a", 1, 5), share("b", 3, 10)})
	expect.Equal(t, []Grant{share("b", 7, 30), share("a", 1, 5)}, got, "grants")
}

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
		"one claim":        {pod(container("", "cards")), true, nil},
		"another variable": {pod(container("CUDA_HOME", "cards")), true, nil},
		"it sets its own":  {pod(container("CUDA_VISIBLE_DEVICES", "cards")), false, nil},
		"one of two containers sets it": {pod(container("", "cards"), container("CUDA_VISIBLE_DEVICES", "cards")), false,
			nil},
		"a container without the claim":    {pod(container("", "cards"), container("CUDA_VISIBLE_DEVICES")), true, nil},
		"a second claim":                   {pod(container("", "cards", "nic")), true, []string{"nic-1"}},
		"a second claim elsewhere":         {pod(container("", "cards"), container("", "nic")), true, nil},
		"a claim for an extended resource": {extended, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			leaves, others := LeavesOrder(tc.pod, "ours")
			if leaves != tc.leaves || expect.Diff(others, tc.others) != nil {
				t.Errorf("%v, others %v; want %v, %v", leaves, others, tc.leaves, tc.others)
			}
		})
	}
}

// Containers that never run beside each other are one; those that use another request are none.
func TestAtOnce(t *testing.T) {
	uses := func(name, request string) corev1.Container {
		return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{
			Claims: []corev1.ResourceClaim{{Name: "gpu", Request: request}}}}
	}
	pod := func(init []corev1.Container, containers ...corev1.Container) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{InitContainers: init, Containers: containers,
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("c")}}}}
	}
	sidecar := uses("sidecar", "")
	sidecar.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	first := []Grant{{Request: "a"}}
	for name, tc := range map[string]struct {
		want int
		pods []*corev1.Pod
	}{
		"none":            {0, nil},
		"two containers":  {2, []*corev1.Pod{pod(nil, uses("x", ""), uses("y", "a"))}},
		"another request": {1, []*corev1.Pod{pod(nil, uses("x", "b"), uses("y", "a"))}},
		"init containers": {1, []*corev1.Pod{pod([]corev1.Container{uses("i", ""), uses("j", "")}, uses("x", ""))}},
		"init alone": {1, []*corev1.Pod{pod([]corev1.Container{uses("i", ""), uses("j", "")},
			corev1.Container{Name: "x"})}},
		"a sidecar": {2, []*corev1.Pod{pod([]corev1.Container{sidecar}, uses("x", ""))}},
		"pods":      {3, []*corev1.Pod{pod(nil, uses("x", "")), pod(nil, uses("x", ""), uses("y", ""))}},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, tc.want, AtOnce("c", first, tc.pods), "at once")
		})
	}
}
