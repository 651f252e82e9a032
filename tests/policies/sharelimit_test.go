// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
)

// A claim that asks for nothing is of no concern to the policies: its list of requests is
// null for them.
func TestClaimWithoutRequests(t *testing.T) {
	s := newServer(t)
	for _, namespace := range []string{team, bounded, boundedTypo, boundedBoth} {
		if err := s.createClaim(namespace, resourceapi.DeviceClaim{}); err != nil {
			t.Errorf("in namespace %s: %v", namespace, err)
		}
	}
}

// asking is a request for a share with these amounts, given as name, amount, name, …
func asking(class string, pairs ...string) resourceapi.DeviceRequest {
	r := exactly("a", class)
	r.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
	for i := 0; i < len(pairs); i += 2 {
		r.Exactly.Capacity.Requests[resourceapi.QualifiedName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return r
}

// A share of little memory can take all compute of its GPU, unless the namespace is bounded.
func TestOptionShareLimitBoundsCompute(t *testing.T) {
	s := newServer(t)
	alternative := firstOf("a", "share", "core-mem")
	alternative.FirstAvailable[1].Capacity = asking("core-mem", "memory", "1Gi", "cores", "55").Exactly.Capacity
	orLess := firstOf("a", "share", "cgpu")
	for i, amount := range []string{"16Gi", "8Gi"} {
		orLess.FirstAvailable[i].Capacity = asking("share", "memory", amount).Exactly.Capacity
	}
	twoGPUs := asking("share", "memory", "8Gi")
	twoGPUs.Exactly.AllocationMode, twoGPUs.Exactly.Count = resourceapi.DeviceAllocationModeExactCount, 2
	for name, test := range map[string]struct {
		request   resourceapi.DeviceRequest
		namespace string
		refused   string
	}{
		"as much as allowed": {asking("core-mem", "memory", "80Gi", "cores", "50"), boundedCores, ""},
		"no compute":         {asking("share", "memory", "80Gi"), boundedCores, ""},
		"whole GPUs":         {exactly("a", "exclusive"), boundedCores, ""},
		"more": {asking("core-mem", "memory", "1Gi", "cores", "100"), boundedCores,
			"request a asks for 100 percent of a GPU's compute, and namespace bounded-cores is allowed shares of 50 percent " +
				"at most (label gpu.aliyun.com/max-share-cores)"},
		"more of any mode":           {asking("nvidia-a10", "cores", "55"), boundedCores, "asks for 55 percent"},
		"more, or else":              {alternative, boundedCores, "request a/core-mem asks for 55 percent"},
		"an administrator":           {admin(asking("core-mem", "memory", "1Gi", "cores", "100")), boundedCores, ""},
		"memory is not bounded":      {asking("core-mem", "memory", "80Gi", "cores", "5"), boundedCores, ""},
		"compute is not bounded":     {asking("core-mem", "memory", "8Gi", "cores", "100"), bounded, ""},
		"both are, and both fit":     {asking("core-mem", "memory", "8Gi", "cores", "50"), boundedBoth, ""},
		"both are, too much compute": {asking("core-mem", "memory", "8Gi", "cores", "55"), boundedBoth, "55 percent"},
		"both are, too much memory":  {asking("core-mem", "memory", "9Gi", "cores", "50"), boundedBoth, "9Gi of a GPU"},
		"memory as much as allowed":  {asking("share", "memory", "8Gi"), bounded, ""},
		"of two GPUs":                {twoGPUs, bounded, ""},
		"more memory, in Mi":         {asking("share", "memory", "9216Mi"), bounded, "request a asks for 9Gi of a GPU"},
		"more memory, or else less":  {orLess, bounded, "request a/share asks for 16Gi of a GPU"},
		"more, of an administrator":  {admin(asking("share", "memory", "80Gi")), bounded, ""},
		"no amount":                  {exactly("a", "share"), bounded, ""},
		"a typo, and a share":        {asking("share", "memory", "1Gi"), boundedTypo, "is not a whole number of GiB"},
		"a typo, and no amount":      {exactly("a", "share"), boundedTypo, "is not a whole number of GiB"},
		"a typo, any mode":           {exactly("a", "memory"), boundedTypo, "is not a whole number of GiB"},
		"a typo, or else":            {firstOf("a", "exclusive", "cgpu"), boundedTypo, "is not a whole number of GiB"},
		"a typo, and whole GPUs":     {firstOf("a", "exclusive", "exclusive.nvidia-a10"), boundedTypo, ""},
		"a typo, and an instance":    {exactly("a", "1g.10gb.mig"), boundedTypo, ""},
		"a typo, an administrator":   {admin(exactly("a", "share")), boundedTypo, ""},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Error(t, s.createClaim(test.namespace, claimed(test.request)), test.refused)
		})
	}
	of := func(labels map[string]string, amounts string) *corev1.Pod {
		return in(boundedCores, pod("p", labels, limited("c", amounts)))
	}
	two := map[string]string{ack.PodLabelCount: "2"}
	s.createEach(t, map[string]newPod{
		"as much as allowed": {of(nil, "mem 8 core 50"), ""},
		"no compute":         {of(nil, "mem 80"), ""},
		"of two GPUs":        {of(two, "mem 16 core 100"), ""},
		"more": {of(nil, "mem 1 core 100"), "container c asks for aliyun.com/gpu-core.percentage 100, and namespace " +
			"bounded-cores is allowed shares of 50 percent of a GPU at most (label gpu.aliyun.com/max-share-cores)"},
		"more of two GPUs": {of(two, "mem 2 core 120"), "aliyun.com/gpu-core.percentage 120 of 2 GPUs, and"},
	})
}
