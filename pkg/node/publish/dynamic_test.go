// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

func TestDynamicOffersEachGPUInEveryMode(t *testing.T) {
	b := newBench(t)
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
	b := supervised(t).in(t, "share", shares)
	b.mode("dynamic")
	b.switched(t, shareClosed, everyMode)
	// The device has the name that it would have in mode share, but it is not a
	// device of that pool: it waits like any other.
	b.allocate(t, "gpu-1-share", "trainer")
	b.mode("share")
	b.waits(t, everyModeClosed)
	expect.Says(t, b.events.current[v1alpha1.ReasonModeSwitchWaiting], "pod team/trainer")
	b.freed(t, shares)
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
	expect.Says(t, b.events.current[v1alpha1.ReasonModeNotServed], "")
	b.mode("dynamic")
	b.reconciled(t, false, shareClosed)
	b.kubernetes("v1.37.1")
	b.clock.Step(mode.Settle)
	b.reconciled(t, true, everyMode)
	expect.Says(t, b.events.current[v1alpha1.ReasonModeNotServed], "")
}

// GPUs in use come first, so that a claim joins others before it opens a GPU;
// but for those that take no more claims, and only while there is any.
func TestDynamicPutsGPUsInUseFirst(t *testing.T) {
	const second = "gpu-1 gpu-1-share gpu-1-cgpu gpu-1-core-mem gpu-1-mps gpu-0 gpu-0-share gpu-0-cgpu gpu-0-core-mem " +
		"gpu-0-mps"
	b := supervised(t).in(t, "dynamic", everyMode)
	granted := func(g int, m mode.Mode, units int64) {
		r := recordOf("c", shareOf(g, units))
		r.Grants[0].Mode = m
		b.records = []state.Record{r}
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
	b := supervised(t)
	b.allocate(t, "gpu-0", "whole")
	b.records = []state.Record{recordOf("mps", grantOf(mode.MPS, "gpu-1-mps", 1, "GPU-1"))}
	b.mode("share")
	b.reconciled(t, false, everyModeClosed)
}
