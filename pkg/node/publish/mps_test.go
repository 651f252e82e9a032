// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// needs checks what gpu-mps-supervisor is told.
func (b *bench) needs(t *testing.T, want bool) {
	t.Helper()
	if got, err := b.mps.Declared(); err != nil || (got != mps.Idle) != want {
		t.Errorf("the plugin has declared %q, %v; daemons are needed: %t", got, err, want)
	}
}

func TestDaemonsAreNeededWhereTheModeUsesMPS(t *testing.T) {
	b := supervised(t)
	b.needs(t, true)
	b.mode("default")
	b.reconciled(t, true, whole)
	b.needs(t, false)
	b.daemons(t, mps.Down)

	// What is published stays until the daemons are there.
	b.mode("mps")
	b.reconciled(t, false, whole)
	b.needs(t, true)
	b.reconciled(t, false, whole)
	expect.Equal(t, "", b.events.current[v1alpha1.ReasonModeNotServed], "event")
	b.daemons(t, mps.Ready)
	b.switched(t, wholeClosed, byMPS)
	b.needs(t, true)

	// They go on as long as anything that is published may use them.
	b.mode("default")
	b.reconciled(t, false, byMPSClosed)
	b.needs(t, true)
	b.clock.Step(mode.Settle)
	b.reconciled(t, true, whole)
	b.needs(t, false)
}

func TestDaemonsGoOnWhereRecordsAreLost(t *testing.T) {
	b := supervised(t)
	b.mode("share")
	b.notKnown = errors.New("lost")
	b.reconciled(t, false, shares)
	b.needs(t, true)
	b.notKnown = nil
	b.reconciled(t, true, shares)
	b.needs(t, false)
}

func TestDaemonsThatAreAskedForInVain(t *testing.T) {
	b := supervised(t).in(t, "default", whole)
	b.daemons(t, mps.Down)
	b.mode("mps")
	b.reconciled(t, false, whole)
	b.clock.Step(mpsStartLimit)
	b.switched(t, wholeClosed, "")
	expect.Says(t, b.events.current[v1alpha1.ReasonModeNotServed], "needs isolation mps, which is "+
		"not available")
	b.needs(t, true)
}

// A daemon that fails is not one that nobody needs.
func TestDaemonsThatAreDownAreNeeded(t *testing.T) {
	b := newBench(t)
	stop := b.supervised(t)
	b.mode("mps")
	b.reconciled(t, true, byMPS)
	stop()
	b.reconciled(t, true, byMPSClosed)
	b.needs(t, true)
	b.restartIn("mps")
	b.reconciled(t, true, byMPSClosed)
	b.needs(t, true)
}

func TestDynamicNeedsDaemons(t *testing.T) {
	b := supervised(t).in(t, "share", shares)
	b.needs(t, false)
	b.daemons(t, mps.Down)
	b.mode("dynamic")
	b.reconciled(t, false, shares)
	b.needs(t, true)
	b.daemons(t, mps.Ready)
	b.switched(t, shareClosed, everyMode)
	b.needs(t, true)
}

func TestAnotherIsolationNeedsNoDaemons(t *testing.T) {
	b := newBench(t)
	b.loadModule(t)
	b.mode("cgpu")
	b.reconciled(t, true, capped)
	b.needs(t, false)
}

// Claims that are prepared keep the daemons, whatever the node's mode is.
func TestClaimsNeedDaemons(t *testing.T) {
	for name, tc := range map[string]struct {
		grant  claim.Grant
		needed bool
	}{
		"by MPS":                    {claim.Grant{Mode: mode.CGPU, Isolation: mode.IsolationMPS}, true},
		"of an earlier version":     {claim.Grant{Mode: mode.CoreMem}, true},
		"by another":                {claim.Grant{Mode: mode.CGPU, Isolation: mode.IsolationCGPU}, false},
		"whole, an earlier version": {claim.Grant{Mode: mode.Exclusive}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.records = []state.Record{recordOf("held", shareOf(0, 1), tc.grant)}
			b.mode("share")
			b.reconciled(t, true, shares)
			b.needs(t, tc.needed)
		})
	}
}

// MPS of GPUs before Volta takes what a limit says for nothing, without a word.
func TestMPSLimitsNothingBeforeVolta(t *testing.T) {
	b := supervised(t)
	b.SetMachine(&gpu.Machine{GPUs: []gpu.GPU{
		{Index: 0, UUID: "GPU-0", MemoryMiB: 16130, ComputeCapability: "6.1"},
		{Index: 1, UUID: "GPU-1", MemoryMiB: 16130, ComputeCapability: "7.0"},
	}})
	b.mode("mps")
	b.reconciled(t, true, "gpu-0-mps! gpu-1-mps")
	expect.Says(t, strings.Join(slices.Collect(maps.Values(b.events.current)), "\n"), "6.1", "Volta")
	b.mode("share")
	b.switched(t, byMPSClosed, shares)
}
