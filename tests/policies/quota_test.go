// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/quota"
)

// Decoding leaves what is empty out, or not.
var empty = cmpopts.EquateEmpty()

// quotaFor is a ResourceQuota of a namespace.
func quotaFor(namespace, name string, key corev1.ResourceName) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	q.Spec.Hard = corev1.ResourceList{key: resource.MustParse("30")}
	return q
}

// admitClaim is what becomes of a claim that a user creates, or updates.
func (s *server) admitClaim(who user.Info, claim, old *resourceapi.ResourceClaim) (*resourceapi.ResourceClaim, error) {
	return admitted(context.Background(), s, who, claim, old)
}

func claimWith(namespace string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	for i := range requests {
		requests[i].Name = fmt.Sprintf("r%d", i)
		// As the API server reads it.
		if e := requests[i].Exactly; e != nil && e.AllocationMode == "" {
			e.AllocationMode, e.Count = resourceapi.DeviceAllocationModeExactCount, max(1, e.Count)
		}
		for j := range requests[i].FirstAvailable {
			w := &requests[i].FirstAvailable[j]
			w.Name = fmt.Sprintf("w%d", j)
			if w.AllocationMode == "" {
				w.AllocationMode, w.Count = resourceapi.DeviceAllocationModeExactCount, max(1, w.Count)
			}
		}
	}
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "c"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}}}
}

func among(name string, requests ...resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	r := resourceapi.DeviceRequest{Name: name}
	for _, one := range requests {
		e := one.Exactly
		r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{DeviceClassName: e.DeviceClassName,
			AllocationMode: e.AllocationMode, Count: e.Count, Capacity: e.Capacity, Selectors: e.Selectors})
	}
	return r
}

// With a ResourceQuota of GiB in the namespace, and only then, claims are counted as
// package quota says.
func TestOptionQuota(t *testing.T) {
	s := newServer(t)
	selecting := asking("share", "memory", "3Gi")
	selecting.Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "true"}}}
	selecting.Exactly.AdminAccess = ptr.To(false)
	all := asking("share", "memory", "3Gi")
	all.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	for name, requests := range map[string][]resourceapi.DeviceRequest{
		"a share":     {asking("memory", "memory", "3Gi")},
		"two":         {asking("share", "memory", "3Gi"), asking("core-mem", "memory", "1Gi", "cores", "20")},
		"no amount":   {exactly("a", "share")},
		"a selector":  {selecting},
		"of two GPUs": {several(asking("cgpu", "memory", "3Gi"), 2)},
		"all GPUs":    {all},
		"whole GPUs": {exactly("a", "exclusive"), exactly("a", "linked-2.topology"),
			exactly("a", "single.topology")},
		"of a model":        {asking("mps.nvidia-a10", "memory", "2Gi"), exactly("a", "exclusive.nvidia-a10")},
		"its administrator": {admin(asking("nvidia-a10", "memory", "2Gi"))},
		"an administrator":  {admin(asking("share", "memory", "3Gi"))},
		"alternatives": {among("a", asking("share", "memory", "3Gi"), asking("core-mem", "memory", "2Gi", "cores",
			"30"))},
		"a share or a GPU":    {among("a", exactly("a", "exclusive"), asking("share", "memory", "3Gi"))},
		"a count of its own":  {among("a", several(exactly("a", "gib.quota"), 1), asking("share", "memory", "3Gi"))},
		"nothing but a count": {among("a", exactly("a", "gib.quota"))},
		"none":                nil,
	} {
		t.Run(name, func(t *testing.T) {
			for namespace, isCounted := range map[string]bool{counted: true, countedTwice: true, countedAsOnACK: true,
				team: false} {
				claim := claimWith(namespace, requests...)
				want := claim.Spec.Devices.Requests
				if isCounted {
					want = quota.Counted(want)
				}
				got, err := s.admitClaim(somebody, claim, nil)
				if err != nil {
					t.Fatalf("in namespace %s: %v", namespace, err)
				}
				if diff := cmp.Diff(want, got.Spec.Devices.Requests, empty); diff != "" {
					t.Errorf("in namespace %s (-want +got):\n%s", namespace, diff)
				}
				again, err := s.admitClaim(somebody, claim, got)
				if err != nil {
					t.Fatalf("in namespace %s, applied again: %v", namespace, err)
				}
				if diff := cmp.Diff(got.Spec, again.Spec, empty); diff != "" {
					t.Errorf("in namespace %s, applied again it changes (-before +after):\n%s", namespace, diff)
				}
			}
		})
	}
}

// A claim from before the quota can be changed as ever, and stays what it is.
func TestClaimsFromBeforeTheQuotaStay(t *testing.T) {
	s := newServer(t)
	claim := claimWith(counted, asking("share", "memory", "3Gi"))
	labelled := claim.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}
	got, err := s.admitClaim(somebody, labelled, claim)
	expect.NoError(t, err)
	if diff := cmp.Diff(labelled, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The scheduler's own claims are allocated before they exist; others cannot pass for them,
// whatever their author, or that of their template, writes into them.
func TestQuotaAndClaimsOfTheScheduler(t *testing.T) {
	s := newServer(t)
	for name, test := range map[string]struct {
		by          user.DefaultInfo
		ofATemplate bool
		unmarked    bool
		isCounted   bool
	}{
		"the scheduler": {by: user.DefaultInfo{Name: "system:kube-scheduler"}},
		"the scheduler, of a claim of its own": {by: user.DefaultInfo{Name: "system:kube-scheduler"}, unmarked: true,
			isCounted: true},
		"another scheduler": {by: user.DefaultInfo{Name: "system:serviceaccount:team:scheduler"}, isCounted: true},
		"an administrator, or what applies for others": {by: user.DefaultInfo{Name: "root",
			Groups: []string{user.SystemPrivilegedGroup}}, isCounted: true},
		"somebody":            {by: user.DefaultInfo{Name: "somebody"}, isCounted: true},
		"the namespace's own": {by: user.DefaultInfo{Name: "owner", Groups: []string{"admins:" + counted}}, isCounted: true},
		"Kubernetes, of a template": {
			by:          user.DefaultInfo{Name: "system:serviceaccount:kube-system:resource-claim-controller"},
			ofATemplate: true, isCounted: true},
		"Kubernetes in one account": {by: user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}},
			ofATemplate: true, isCounted: true},
	} {
		t.Run(name, func(t *testing.T) {
			claim := claimWith(counted, exactly("a", "share"))
			claim.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
			if test.unmarked {
				claim.Annotations = nil
			}
			if test.ofATemplate {
				claim.Annotations[resourceapi.PodResourceClaimAnnotation] = "gpu"
			}
			got, err := s.admitClaim(&test.by, claim, nil)
			expect.NoError(t, err)
			if is := len(got.Spec.Devices.Requests[0].FirstAvailable) > 0; is != test.isCounted {
				t.Errorf("it is counted: %t, want %t", is, test.isCounted)
			}
		})
	}
}

func TestTooManyAlternativesForTheQuota(t *testing.T) {
	s := newServer(t)
	ways := func(n int) resourceapi.DeviceRequest {
		var all []resourceapi.DeviceRequest
		for range n {
			all = append(all, asking("share", "memory", "3Gi"))
		}
		return among("a", all...)
	}
	const want = "request r0 has 7 alternatives, and may have 6 in namespace counted: its ResourceQuota gpu counts " +
		"shares " +
		"of GPUs, for which two more are added"
	for n, refused := range map[int]string{6: "", 7: want} {
		claim := claimWith(counted, ways(n))
		_, err := s.admitClaim(somebody, claim, nil)
		errTemplate := s.validate(somebody, templateOf(claim), nil)
		expect.Error(t, err, refused)
		expect.Error(t, errTemplate, refused)
		claim.Namespace = team
		if _, err := s.admitClaim(somebody, claim, nil); err != nil {
			t.Errorf("%d alternatives without a quota: %v", n, err)
		}
	}
}

// Whatever a claim asks for, the policy and package quota agree.
func TestOptionQuotaAgreesWithItsModel(t *testing.T) {
	s := newServer(t)
	random := rand.New(rand.NewPCG(13, 4))
	pick := func(texts ...string) string { return texts[random.IntN(len(texts))] }
	one := func() resourceapi.DeviceRequest {
		r := asking(pick("share", "cgpu", "mps", "memory", "share.nvidia-a10", "exclusive", "topology",
			"single.topology", "gib.quota", "percent.quota"))
		if random.IntN(3) > 0 {
			r.Exactly.Capacity.Requests["memory"] = resource.MustParse(pick("1Gi", "2Gi", "7Gi", "1024Mi", "80Gi"))
		}
		if random.IntN(3) == 0 {
			r.Exactly.DeviceClassName = "core-mem.gpu.aliyun.com"
			r.Exactly.Capacity.Requests["memory"] = resource.MustParse("4Gi")
			r.Exactly.Capacity.Requests["cores"] = resource.MustParse(pick("5", "20", "100"))
		}
		if random.IntN(4) == 0 && !strings.HasPrefix(r.Exactly.DeviceClassName, "mps") {
			r.Exactly.Count = int64(2 + random.IntN(3))
		}
		return r
	}
	for range 300 {
		var requests []resourceapi.DeviceRequest
		for range 1 + random.IntN(3) {
			if random.IntN(2) == 0 {
				requests = append(requests, one())
				continue
			}
			var ways []resourceapi.DeviceRequest
			for range 1 + random.IntN(6) {
				ways = append(ways, one())
			}
			requests = append(requests, among("a", ways...))
		}
		claim := claimWith(counted, requests...)
		got, err := s.admitClaim(somebody, claim, nil)
		if err != nil {
			t.Fatalf("%+v: %v", claim.Spec.Devices.Requests, err)
		}
		if diff := cmp.Diff(quota.Counted(claim.Spec.Devices.Requests), got.Spec.Devices.Requests, empty); diff != "" {
			t.Fatalf("%+v (-model +policy):\n%s", claim.Spec.Devices.Requests, diff)
		}
	}
}

// By an extended resource the scheduler itself makes the claim, which no quota of amounts
// counts.
func TestSharesByExtendedResourcesWithTheQuota(t *testing.T) {
	s := newServer(t)
	const prefix = "deviceclass.resource.kubernetes.io/"
	asks := func(class string) *corev1.Pod {
		return pod("p", nil, limited("main", prefix+class+".gpu.aliyun.com 4"))
	}
	onlyRequested := asks("memory")
	onlyRequested.Spec.Containers[0].Resources.Limits = nil
	for name, test := range map[string]struct {
		pod     *corev1.Pod
		refused string
	}{
		"by memory":       {asks("memory"), "container main asks for " + prefix + "memory.gpu.aliyun.com"},
		"by a mode":       {asks("mps"), "container main asks for " + prefix + "mps.gpu.aliyun.com"},
		"any share":       {asks("share"), prefix + "share.gpu.aliyun.com"},
		"a model":         {asks("nvidia-a10"), prefix + "nvidia-a10.gpu.aliyun.com"},
		"a model by mode": {asks("cgpu.nvidia-a10"), prefix + "cgpu.nvidia-a10.gpu.aliyun.com"},
		"without a limit": {onlyRequested, prefix + "memory.gpu.aliyun.com"},
		"an init container": {withInit(pod("p", nil, limited("main", "")), limited("first", prefix+
			"memory.gpu.aliyun.com 1")),
			"container first asks for " + prefix + "memory.gpu.aliyun.com"},
		"the second container": {pod("p", nil, limited("main", ""), limited("other", prefix+"memory.gpu.aliyun.com 1")),
			"container other asks for"},
		"a whole GPU":             {asks("exclusive"), ""},
		"a whole GPU of a model":  {asks("exclusive.nvidia-a10"), ""},
		"a GPU of a topology":     {asks("single.topology"), ""},
		"its topology":            {asks("topology"), ""},
		"a monitor":               {asks("monitor"), ""},
		"a MIG instance":          {asks("mig"), ""},
		"a whole GPU as anywhere": {pod("p", nil, limited("main", "nvidia.com/gpu 1")), ""},
		"another driver":          {pod("p", nil, limited("main", prefix+"gpu.example.com 1")), ""},
		"none of them":            {pod("p", nil, limited("main", prefix+"memory.gpu.aliyun.com 0")), ""},
		"as on ACK":               {pod("p", nil, limited("main", "mem 3")), ""},
		"nothing":                 {pod("p", nil, limited("main", "")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			for namespace, isCounted := range map[string]bool{counted: true, countedTwice: true, team: false} {
				p := test.pod.DeepCopy()
				p.Namespace = namespace
				_, err := s.create(p)
				expect.Error(t, err, ifRefused(isCounted, test.refused))
			}
		})
	}
	p := asks("memory")
	p.Namespace = counted
	_, err := s.create(p)
	expect.Error(t, err, "ask by aliyun.com/gpu-mem or a claim", "ResourceQuota gpu of namespace counted")
}

// The names of the quota's own alternatives are taken, in words and not by the API server's
// "Duplicate value".
func TestAlternativesWithTheNamesOfTheQuota(t *testing.T) {
	s := newServer(t)
	for name, test := range map[string]struct {
		way, class string
		refused    bool
	}{
		"GiB":               {"quota-gib", "cgpu", true},
		"percent":           {"quota-percent", "exclusive", true},
		"a count by itself": {"quota-gib", "gib.quota", false},
		"another name":      {"mine", "cgpu", false},
	} {
		t.Run(name, func(t *testing.T) {
			claim := claimWith(counted, among("a", asking("share", "memory", "3Gi"), exactly("a", test.class)))
			claim.Spec.Devices.Requests[0].FirstAvailable[1].Name = test.way
			_, err := s.admitClaim(somebody, claim, nil)
			errTemplate := s.validate(somebody, templateOf(claim), nil)
			want := "request r0 has an alternative named " + test.way + ", a name that ResourceQuota gpu of namespace " +
				"counted needs"
			if test.refused {
				// The API server looks at what the policy makes of a claim before it asks whether it is refused.
				s := newServer(t, "gpushare-quota-refuse")
				got, err := s.admitClaim(somebody, claim, nil)
				expect.NoError(t, err)
				if diff := cmp.Diff(claim.Spec, got.Spec, empty); diff != "" {
					t.Errorf("it is changed, and so refused as a duplicate:\n%s", diff)
				}
			}
			expect.Error(t, err, ifRefused(test.refused, want))
			expect.Error(t, errTemplate, ifRefused(test.refused, want))
			claim.Namespace = team
			if _, err := s.admitClaim(somebody, claim, nil); err != nil {
				t.Errorf("without a quota: %v", err)
			}
		})
	}
}
