// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"slices"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/preparetest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/limitwatch"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/publish"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// During an update the kubelet has claims prepared by the instance before until it has registered this one, which has
// recovered what is prepared by then.
func TestClaimThatTheInstanceBeforePreparedLate(t *testing.T) {
	stateDir, specDir := t.TempDir(), cdi.Dir(t.TempDir())
	instance := func(name string) *prepare.Preparer {
		store, err := state.Open(stateDir, "n1")
		expect.NoError(t, err)
		expect.NoError(t, store.SetComplete())
		p := prepare.New(prepare.Options{Pool: "n1/gpu", Store: preparetest.Store{Store: store}, Specs: specDir,
			BootID: "boot-1", Isolation: isolation.NewRegistry(isolation.Config{}),
			Cluster: preparetest.Cluster{}, Node: preparetest.Node{},
			Listener: preparetest.Listener{}})
		p.SetInventory(&prepare.Inventory{Base: preparetest.Base(name),
			Machine: &gpu.Machine{GPUs: []gpu.GPU{{UUID: "GPU-0", MemoryMiB: 16130}}}})
		return p
	}
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c", UID: "u"},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
				{Request: "gpu", Driver: v1alpha1.DriverName, Pool: "n1/gpu", Device: "gpu-0"}}}}}}
	before, after := instance("before"), instance("after")
	ctx, cancel := context.WithCancel(t.Context())
	a := &agent{preparer: after, registration: newRegistration(clock.RealClock{}), recoverAgain: make(chan struct{}, 1),
		events: &recoveries{second: cancel}}
	a.recover(t.Context())
	_, err := before.Prepare(t.Context(), c)
	expect.NoError(t, err)
	a.registered()
	if len(a.recoverAgain) == 0 {
		t.Fatal("nothing is recovered when the kubelet has registered the instance")
	}
	a.recoverOn(ctx)
	if nodes, err := specDir.Nodes(cdi.SpecName(c.UID)); err != nil || !slices.Equal(nodes, []string{"/dev/after"}) {
		t.Errorf("the claim's CDI spec brings %v, %v", nodes, err)
	}
}

// recoveries calls second when the second one has succeeded.
type recoveries struct {
	report.NodeEvents
	n      int
	second func()
}

func (r *recoveries) Clear(string) {
	if r.n++; r.n == 2 {
		r.second()
	}
}

// What the kernel can limit on GPUs is known before claims are prepared on them, and before anybody is told that they
// are known. A claim that waits for the GPUs to be read again holds nobody up.
func TestGPUsAreInForceWhenTheirLimitsAreKnown(t *testing.T) {
	store, err := state.Open(t.TempDir(), "n1")
	expect.NoError(t, err)
	a := &agent{recoverAgain: make(chan struct{}, 1), events: &recoveries{},
		publisher: publish.New(publish.Options{Clock: clock.RealClock{}}),
		preparer:  prepare.New(prepare.Options{Store: store, Specs: cdi.Dir(t.TempDir()), Listener: preparetest.Listener{}})}
	read, first := make(chan *prepare.Inventory, 1), make(chan struct{})
	looks := 0
	a.limited = limitwatch.New(limitwatch.Options{Found: func(isolation.KernelLimits) {
		looks++
		if a.preparer.Machine() != nil || isClosed(first) {
			t.Error("claims are prepared before it is known what the kernel can limit")
		}
	}})
	usable := &usability{startable: a.preparer.Startable, tell: a.publisher.SetUnusable, publisher: a.publisher}
	ctx, cancel := context.WithCancel(t.Context())
	var adopting sync.WaitGroup
	adopting.Go(func() { a.adopt(ctx, read, usable, first) })
	for _, model := range []string{"T4", "A10"} {
		known := a.found.Next()
		read <- &prepare.Inventory{Base: preparetest.Base("gpu"), Machine: &gpu.Machine{GPUs: []gpu.GPU{{Model: model}}}}
		<-known
		<-first
		expect.Equal(t, model, a.preparer.Machine().GPUs[0].Model, "model of the GPU")
	}
	<-a.recoverAgain
	cancel()
	adopting.Wait()
	expect.Equal(t, 1, looks, "looks of a node whose driver has no limits")
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
