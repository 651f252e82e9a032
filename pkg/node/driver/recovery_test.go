// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/preparetest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// baseOf are edits by which it is seen which instance wrote them.
type baseOf string

func (b baseOf) Common() specs.ContainerEdits { return specs.ContainerEdits{} }

func (b baseOf) GPU(string) (specs.ContainerEdits, error) {
	return specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Path: "/dev/" + string(b)}}}, nil
}

func (baseOf) Check(string) error { return nil }

// During an update the kubelet has claims prepared by the instance before until it has registered this one, which has
// recovered what is prepared by then.
func TestClaimThatTheInstanceBeforePreparedLate(t *testing.T) {
	stateDir, specDir := t.TempDir(), cdi.Dir(t.TempDir())
	instance := func(name string) *prepare.Preparer {
		store, err := state.Open(stateDir)
		expect.NoError(t, err)
		expect.NoError(t, store.SetComplete())
		p := prepare.New(prepare.Options{Pool: "n1/gpu", Store: preparetest.Store{Store: store}, Specs: specDir,
			BootID: "boot-1", Isolation: &isolation.Registry{}, Cluster: preparetest.Cluster{}, Node: preparetest.Node{},
			Listener: preparetest.Listener{}})
		p.SetInventory(&prepare.Inventory{Base: baseOf(name),
			Machine: &gpu.Machine{GPUs: []gpu.GPU{{UUID: "GPU-0", MemoryMiB: 16130}}}})
		return p
	}
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c", UID: "u"},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
				{Request: "gpu", Driver: v1alpha1.DriverName, Pool: "n1/gpu", Device: "gpu-0"}}}}}}
	before, after := instance("before"), instance("after")
	ctx, cancel := context.WithCancel(t.Context())
	recovered := 0
	a := &agent{preparer: after, registration: newRegistration(clock.RealClock{})}
	a.recovery = &recovery{again: make(chan struct{}, 1), recover: func(ctx context.Context) {
		expect.Error(t, after.Recover(ctx))
		if recovered++; recovered == 2 {
			cancel()
		}
	}}
	a.recovery.changed(t.Context())
	_, err := before.Prepare(t.Context(), c)
	expect.NoError(t, err)
	a.registered()
	if len(a.recovery.again) == 0 {
		t.Fatal("nothing is recovered when the kubelet has registered the instance")
	}
	a.recovery.run(ctx)
	if nodes, err := specDir.Nodes(cdi.SpecName(c.UID)); err != nil || !slices.Equal(nodes, []string{"/dev/after"}) {
		t.Errorf("the claim's CDI spec brings %v, %v", nodes, err)
	}
}
