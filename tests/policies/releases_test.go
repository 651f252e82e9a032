// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

var (
	tenant        = &user.DefaultInfo{Name: "system:serviceaccount:team:tenant"}
	administrator = &user.DefaultInfo{Name: "kubernetes-admin", Groups: []string{user.SystemPrivilegedGroup}}
)

func claim(drivers []string, reserved bool, finalizers ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "c", Finalizers: finalizers}}
	if reserved {
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "u"}}
	}
	for _, driver := range drivers {
		if c.Status.Allocation == nil {
			c.Status.Allocation = &resourceapi.AllocationResult{}
		}
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: driver, Pool: "n1/gpu", Device: "gpu-0"})
	}
	return c
}

// A claim that holds GPUs keeps its finalizer, but for those who take its allocation
// back.
func TestFinalizerOfAllocatedClaims(t *testing.T) {
	s := newServer(t)
	const ours, protection = "gpu.aliyun.com", resourceapi.Finalizer
	const refused = "claim c holds GPUs and keeps the finalizer resource.kubernetes.io/delete-protection"
	kubernetes := func(name string) user.Info { return &user.DefaultInfo{Name: name} }
	for name, test := range map[string]struct {
		who     user.Info
		old     *resourceapi.ResourceClaim
		left    []string
		refused string
	}{
		"in use":                         {tenant, claim([]string{ours}, true, protection), nil, refused},
		"allocated, reserved for nobody": {tenant, claim([]string{ours}, false, protection), nil, refused},
		"reserved, not allocated yet":    {tenant, claim(nil, true, protection), nil, refused},
		"beside another driver's":        {tenant, claim([]string{"nic.example.com", ours}, true, protection), nil, refused},
		"other finalizers stay":          {tenant, claim([]string{ours}, true, "a/b", protection), []string{"a/b"}, refused},
		"another namespace's controller": {kubernetes("system:serviceaccount:team:resource-claim-controller"),
			claim([]string{ours}, true, protection), nil, refused},
		"another driver's": {tenant, claim([]string{"nic.example.com"}, true, protection), nil, ""},
		"not allocated":    {tenant, claim(nil, false, protection), nil, ""},
		"it stays":         {tenant, claim([]string{ours}, true, protection), []string{protection, "a/b"}, ""},
		"it was not there": {tenant, claim([]string{ours}, true, "a/b"), nil, ""},
		"an administrator": {administrator, claim([]string{ours}, true, protection), nil, ""},
		"the claim controller": {kubernetes("system:serviceaccount:kube-system:resource-claim-controller"),
			claim([]string{ours}, true, protection), nil, ""},
		"all controllers": {kubernetes("system:kube-controller-manager"), claim([]string{ours}, true, protection), nil, ""},
		"the scheduler":   {kubernetes("system:kube-scheduler"), claim([]string{ours}, true, protection), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := test.old.DeepCopy()
			c.Finalizers = test.left
			expect.Error(t, s.validate(test.who, c, test.old), test.refused)
		})
	}
}
