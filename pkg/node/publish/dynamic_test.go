// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"testing"

	apiversion "k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// kubernetes sets the version that the API server tells.
func (b *bench) kubernetes(version string) {
	b.client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &apiversion.Info{GitVersion: version}
}

// supervised makes MPS available on both GPUs, until the function is called.
func (b *bench) supervised(t *testing.T) (stop func()) {
	t.Helper()
	release, err := b.mps.Hold()
	expect.NoError(t, err)
	for _, uuid := range []string{"GPU-0", "GPU-1"} {
		expect.NoError(t, b.mps.SetStatus(uuid, mps.Status{State: mps.Ready}))
	}
	return func() {
		expect.Error(t, release())
	}
}

const (
	everyMode = "gpu-0 gpu-0-share gpu-0-cgpu gpu-0-core-mem gpu-0-mps gpu-1 gpu-1-share gpu-1-cgpu " +
		"gpu-1-core-mem gpu-1-mps"
	everyModeClosed = "gpu-0! gpu-0-share! gpu-0-cgpu! gpu-0-core-mem! gpu-0-mps! gpu-1! gpu-1-share! gpu-1-cgpu! " +
		"gpu-1-core-mem! gpu-1-mps!"
)

func TestDynamicOffersEachGPUInEveryMode(t *testing.T) {
	b := newBench(t)
	b.kubernetes("v1.37.1")
	stop := b.supervised(t)
	b.mode("dynamic")
	b.reconciled(t, true, everyMode)
	// What cannot be enforced is closed, not taken away: it may be allocated.
	stop()
	b.reconciled(t, true, "gpu-0 gpu-0-share gpu-0-cgpu! gpu-0-core-mem! gpu-0-mps! gpu-1 gpu-1-share gpu-1-cgpu! "+
		"gpu-1-core-mem! gpu-1-mps!")
	expect.Says(t, b.events.current[v1alpha1.ReasonIsolationUnavailable], "GPU 1 is closed to new "+
		"claims of mode cgpu, core-mem, mps: gpu-mps-supervisor does not run")
}

func TestSwitchToAndFromDynamic(t *testing.T) {
	b := newBench(t)
	b.kubernetes("v1.37.0")
	defer b.supervised(t)()
	b.mode("share")
	b.reconciled(t, true, shares)
	b.mode("dynamic")
	b.switched(t, shareClosed, everyMode)
	// The device has the name that it would have in mode share, but it is not a
	// device of that pool: it waits like any other.
	b.allocate(t, "gpu-1-share", "trainer")
	b.mode("share")
	b.reconciled(t, false, everyModeClosed)
	b.clock.Step(mode.Settle)
	b.reconciled(t, false, everyModeClosed)
	expect.Says(t, b.events.current[v1alpha1.ReasonModeSwitchWaiting], "pod team/trainer")
	b.release(t)
	b.clock.Step(retryInterval)
	b.reconciled(t, true, shares)
}

func TestDynamicOnAnOlderKubernetes(t *testing.T) {
	b := newBench(t)
	b.kubernetes("v1.36.4")
	defer b.supervised(t)()
	b.mode("dynamic")
	b.reconciled(t, false, "")
	expect.Says(t, b.events.current[v1alpha1.ReasonModeNotServed], "needs Kubernetes 1.37", "v1.36.4")
	b.mode("share")
	b.reconciled(t, true, shares)
	if got, ok := b.events.current[v1alpha1.ReasonModeNotServed]; ok {
		t.Errorf("still reported: %q", got)
	}
	b.mode("dynamic")
	b.reconciled(t, false, shareClosed)
	b.kubernetes("v1.37.1")
	b.clock.Step(mode.Settle)
	b.reconciled(t, true, everyMode)
	if got, ok := b.events.current[v1alpha1.ReasonModeNotServed]; ok {
		t.Errorf("still reported: %q", got)
	}
}

// GPUs in use come first, so that a claim joins others before it opens a GPU;
// but for those that take no more claims, and only while there is any.
func TestDynamicPutsGPUsInUseFirst(t *testing.T) {
	const second = "gpu-1 gpu-1-share gpu-1-cgpu gpu-1-core-mem gpu-1-mps gpu-0 gpu-0-share gpu-0-cgpu gpu-0-core-mem " +
		"gpu-0-mps"
	b := newBench(t)
	b.kubernetes("v1.37.1")
	defer b.supervised(t)()
	b.mode("dynamic")
	b.reconciled(t, true, everyMode)
	granted := func(g int, m mode.Mode, units int64) {
		b.records = []state.Record{{Grants: []claim.Grant{{Mode: m,
			GPU: claim.GPU{Index: g, UUID: fmt.Sprintf("GPU-%d", g), MemoryMiB: 16130}, Units: units}}}}
	}
	granted(1, mode.Exclusive, 0)
	b.reconciled(t, true, everyMode)
	granted(1, mode.Share, 15)
	b.reconciled(t, true, everyMode)
	granted(1, mode.Share, 14)
	b.reconciled(t, true, second)
	b.records = nil
	b.reconciled(t, true, everyMode)
	granted(0, mode.MPS, 1)
	b.reconciled(t, true, everyMode)
}

// Without a checkpoint of what was published, devices of two modes can only have
// been those of a dynamic node.
func TestDynamicIsRecalledFromItsClaims(t *testing.T) {
	b := newBench(t)
	b.kubernetes("v1.37.1")
	defer b.supervised(t)()
	b.allocate(t, "gpu-0", "whole")
	b.records = []state.Record{{Namespace: "team", Name: "mps", Grants: []claim.Grant{{Mode: mode.MPS, GPU: claim.GPU{
		Index: 1, UUID: "GPU-1"}}}}}
	b.mode("share")
	b.reconciled(t, false, everyModeClosed)
}
