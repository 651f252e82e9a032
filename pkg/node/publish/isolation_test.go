// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"errors"
	"os"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/memlimit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// isolatedBy says which isolation the devices that were published last show.
func (b *bench) isolatedBy(t *testing.T) string {
	t.Helper()
	return b.shown(t, func(d resourceapi.Device) string { return ptr.Deref(d.Attributes["isolation"].StringValue, "") })
}

// loadModule is a start of the plugin after Alibaba's module has been loaded.
func (b *bench) loadModule(t *testing.T) {
	t.Helper()
	b.registry = isolation.NewRegistry(isolation.Config{MPSDir: string(b.mps), CGPUProc: t.TempDir()})
	b.restart()
}

// write replaces what the node's memory keeps.
func (b *bench) write(t *testing.T, content string) {
	t.Helper()
	expect.NoError(t, os.WriteFile(b.nodeFile(), []byte(content), 0o600))
}

const (
	capped       = "gpu-0-cgpu gpu-1-cgpu"
	cappedClosed = "gpu-0-cgpu! gpu-1-cgpu!"
)

// cappedByMPS is a node in mode cgpu without the module.
func cappedByMPS(t *testing.T) *bench {
	t.Helper()
	b := supervised(t).in(t, "cgpu", capped)
	expect.Equal(t, "mps mps", b.isolatedBy(t), "isolated by")
	return b
}

// Claims that are isolated in two ways must not share a GPU: neither way limits
// the users of the other.
func TestIsolationChangesAsAModeDoes(t *testing.T) {
	b := cappedByMPS(t)
	b.allocate(t, "gpu-0-cgpu", "trainer")
	b.loadModule(t)
	b.mode("cgpu")
	b.waits(t, cappedClosed)
	expect.Equal(t, "mps mps", b.isolatedBy(t), "isolated, although a claim is allocated, by")
	const waiting = "stay in mode cgpu with isolation of cgpu by mps, closed to new claims, and change to mode cgpu " +
		"with isolation of cgpu by cgpu when these have ended: pod team/trainer"
	expect.Says(t, b.events.current[v1alpha1.ReasonModeSwitchWaiting], waiting)
	b.freed(t, capped)
	expect.Equal(t, "cgpu cgpu", b.isolatedBy(t), "isolated by")
}

// Earlier versions remembered the mode alone.
func TestMemoryWithoutIsolation(t *testing.T) {
	const earlier = `{"wanted":"cgpu","published":"cgpu"}`
	t.Run("the published devices tell", func(t *testing.T) {
		b := cappedByMPS(t)
		b.write(t, earlier)
		b.loadModule(t)
		b.mode("cgpu")
		b.reconciled(t, false, cappedClosed)
	})
	t.Run("what is prepared tells", func(t *testing.T) {
		b := supervised(t)
		b.write(t, earlier)
		b.records = []state.Record{{Namespace: "team", Name: "held", Grants: []claim.Grant{{Mode: mode.CGPU,
			Isolation: "mps"}}}}
		b.loadModule(t)
		b.mode("cgpu")
		b.reconciled(t, false, cappedClosed)
	})
	t.Run("nothing tells", func(t *testing.T) {
		b := newBench(t)
		b.write(t, earlier)
		b.loadModule(t)
		b.mode("cgpu")
		b.reconciled(t, true, capped)
	})
	t.Run("nothing has changed", func(t *testing.T) {
		b := cappedByMPS(t)
		b.write(t, earlier)
		b.restartIn("cgpu")
		b.reconciled(t, true, capped)
	})
}

// Where MPS' limits had the kernel's beside them, claims are refused while the kernel holds none: so the GPU is closed.
func TestKernelLimitsBesideMPSThatAreNotThereAnyMore(t *testing.T) {
	b := supervised(t)
	has := isolation.KernelLimits{Settled: true,
		Kinds: map[string]memlimit.Kind{"GPU-0": memlimit.DMem, "GPU-1": memlimit.DMem}}
	b.registry = isolation.NewRegistry(isolation.Config{MPSDir: string(b.mps), CGPUProc: "/proc/no_such_module",
		Kernel: isolation.KernelConfig{Hook: "/plugins/gpu-memory-limit"}})
	b.registry.SetKernelLimits(has)
	b.restartIn("mps")
	b.reconciled(t, true, byMPS)
	b.registry.SetKernelLimits(isolation.KernelLimits{Kinds: map[string]memlimit.Kind{"GPU-0": memlimit.DMem},
		Reasons: map[string]error{"GPU-1": errors.New("the hook does not run on the host")}})
	b.reconciled(t, true, "gpu-0-mps gpu-1-mps!")
	expect.Says(t, b.events.current[v1alpha1.ReasonIsolationUnavailable], "the hook does not run")
	for i, want := range []string{string(memlimit.DMem), ""} {
		expect.Equal(t, want, attribute(b.Publisher.published[i], v1alpha1.AttrMemoryLimits),
			"the memory of GPU %d is limited by", i)
	}
	b.registry.SetKernelLimits(has)
	b.reconciled(t, true, byMPS)
}

// The driver may answer late when the plugin starts: GPUs that the kernel's limits were offered on are closed until it
// is known whether it still has them, and nobody waits for their claims to end.
func TestKernelIsolationThatIsNotKnownYet(t *testing.T) {
	kinds := map[string]memlimit.Kind{"GPU-0": memlimit.DMem, "GPU-1": memlimit.DMem}
	has := isolation.KernelLimits{Kinds: kinds, Settled: true}
	late := isolation.KernelLimits{Kinds: map[string]memlimit.Kind{"GPU-0": memlimit.DMem},
		Reasons: map[string]error{"GPU-1": errors.New("no answer in time")}}
	b := supervised(t)
	start := func(found isolation.KernelLimits) {
		last := b.promised(t)
		b.registry = isolation.NewRegistry(isolation.Config{MPSDir: string(b.mps), CGPUProc: "/proc/no_such_module",
			Offered: last.Isolation})
		b.registry.SetKernelLimits(found)
		b.restartIn("cgpu")
	}
	start(has)
	b.reconciled(t, true, capped)
	b.allocate(t, "gpu-0-cgpu", "trainer")
	start(late)
	b.reconciled(t, true, "gpu-0-cgpu gpu-1-cgpu!")
	expect.Says(t, b.events.current[v1alpha1.ReasonIsolationUnavailable], "no answer in time")
	b.registry.SetKernelLimits(has)
	b.reconciled(t, true, capped)
	expect.Equal(t, "kernel kernel", b.isolatedBy(t), "isolated by")
	// An older driver has none for good.
	start(isolation.KernelLimits{Err: errors.New("the driver is older"), Settled: true})
	b.reconciled(t, false, cappedClosed)
}
