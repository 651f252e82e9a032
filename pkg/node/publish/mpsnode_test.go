// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// oneDaemon asks for the mode, with one MPS control daemon for all GPUs.
func (b *bench) oneDaemon(m string) {
	b.label(map[string]string{ack.NodeLabelSchedule: m, "gpu.aliyun.com/mps-daemon": "node"})
}

// nodeDaemon has the daemon for all GPUs in this state.
func (b *bench) nodeDaemon(t *testing.T, state mps.State) {
	t.Helper()
	for _, uuid := range []string{"GPU-0", "GPU-1"} {
		expect.NoError(t, b.mps.OfNode().SetStatus(uuid, mps.Status{State: state}))
	}
}

func (b *bench) wantsNodeDaemon(t *testing.T, want bool) {
	t.Helper()
	if got, err := b.mps.NodeDaemonWanted(); err != nil || got != want {
		t.Errorf("a daemon for all GPUs is wanted: %t, %v, want %t", got, err, want)
	}
}

// usesOfNode checks what the daemon for all GPUs is told of them.
func (b *bench) usesOfNode(t *testing.T, want ...mps.Use) {
	t.Helper()
	usesBy(t, b.mps.OfNode(), want)
}

// A change to one daemon for all GPUs, and back, is a change of the mode: it waits for what is
// allocated.
func TestOneMPSDaemonForAllGPUs(t *testing.T) {
	b := supervised(t)
	none, alone := mps.Use{}, mps.Use{Reserved: true}
	b.mode("mps")
	b.reconciled(t, true, byMPS)
	b.uses(t, alone, alone)
	b.wantsNodeDaemon(t, false)
	b.allocate(t, "gpu-0-mps", "early")

	// Nothing changes before the daemon serves.
	b.oneDaemon("mps")
	b.reconciled(t, false, byMPS)
	b.wantsNodeDaemon(t, true)
	b.nodeDaemon(t, mps.Ready)
	b.waits(t, byMPSClosed)
	b.uses(t, alone, alone)
	b.usesOfNode(t, none, none)
	b.freed(t, byMPS)
	expect.Equal(t, "mps-node mps-node", b.isolatedBy(t), "isolated by")
	b.uses(t, none, none)
	b.usesOfNode(t, alone, alone)

	// Its claims are told to it.
	held := share(mode.MPS, 2, 0)
	held.Grants[0].Isolation = mode.IsolationMPSNode
	b.records = []state.Record{held}
	b.reconciled(t, true, byMPS)
	b.uses(t, none, none)
	b.usesOfNode(t, mps.Use{Reserved: true, Claimed: true, Limits: mps.Limits{MemoryMiB: 2150, ThreadPercent: 100}}, alone)

	// It goes on as long as there is a claim.
	b.allocate(t, "gpu-0-mps", "held")
	b.mode("mps")
	b.waits(t, byMPSClosed)
	b.wantsNodeDaemon(t, true)
	b.records = nil
	b.freed(t, byMPS)
	expect.Equal(t, "mps mps", b.isolatedBy(t), "isolated by")
	b.uses(t, alone, alone)
	b.usesOfNode(t, none, none)
	b.wantsNodeDaemon(t, false)
	b.needs(t, true)
}

// When the one daemon is down no GPU has what keeps its users apart.
func TestEndOfTheOneMPSDaemonClosesAllGPUs(t *testing.T) {
	b := supervised(t)
	b.nodeDaemon(t, mps.Ready)
	b.oneDaemon("core_mem")
	b.reconciled(t, true, "gpu-0-core-mem gpu-1-core-mem")
	b.nodeDaemon(t, mps.Down)
	b.reconciled(t, true, "gpu-0-core-mem! gpu-1-core-mem!")
	b.nodeDaemon(t, mps.Ready)
	b.reconciled(t, true, "gpu-0-core-mem gpu-1-core-mem")
}

// The one daemon takes all GPUs, and would keep programs of others from theirs: as long as others hold any, it gets
// none.
func TestOneMPSDaemonTakesNoGPUsBesideOthers(t *testing.T) {
	computing := oldPod("c", "0", "aliyun.com/gpu-mem", "4", "aliyun.com/gpu-core.percentage", "50")
	const open, closed = "gpu-0-core-mem gpu-1-core-mem", "gpu-0-core-mem! gpu-1-core-mem!"
	for name, hold := range map[string]func(b *bench){
		"a part":           func(b *bench) { b.pods = []*corev1.Pod{computing} },
		"a whole GPU":      func(b *bench) { b.pods = []*corev1.Pod{oldPod("w", "0", "aliyun.com/gpu", "1")} },
		"another driver's": func(b *bench) { b.nvidias = map[string][]string{"GPU-0": nil} },
	} {
		t.Run(name, func(t *testing.T) {
			b := supervised(t)
			none, alone := mps.Use{}, mps.Use{Reserved: true}
			says := func(want string) {
				t.Helper()
				expect.Says(t, b.events.current[v1alpha1.ReasonIsolationUnavailable], want)
			}
			b.nodeDaemon(t, mps.Ready)
			b.oneDaemon("core_mem")
			hold(b)
			for range 2 {
				b.reconciled(t, true, closed)
				says("GPU 1 is closed to new claims: one MPS control daemon is to have all GPUs of the node, and GPU 0 is held")
				b.usesOfNode(t, none, none)
				b.pods, b.nvidias = nil, nil
				b.reconciled(t, true, open)
				says("")
				b.usesOfNode(t, alone, alone)
				hold(b)
			}
		})
	}
	// Where each GPU has a daemon of its own, what is left of it is offered.
	b := supervised(t)
	b.mode("core_mem")
	b.pods = []*corev1.Pod{computing}
	b.reconciled(t, true, open)
}

// A GPU that is left out is still that of others, and the daemon, which may have found it before, has it with the rest.
func TestOneMPSDaemonTakesNoGPUsBesideOthersOnOneThatIsLeftOut(t *testing.T) {
	for name, uuid := range map[string]string{"known": "GPU-0", "without its UUID": ""} {
		t.Run(name, func(t *testing.T) {
			b := supervised(t)
			b.nodeDaemon(t, mps.Ready)
			b.oneDaemon("core_mem")
			b.pods = []*corev1.Pod{oldPod("w", "0", "aliyun.com/gpu", "1")}
			b.reconciled(t, true, "gpu-0-core-mem! gpu-1-core-mem!")
			b.SetMachine(&gpu.Machine{GPUs: []gpu.GPU{{Index: 1, UUID: "GPU-1", MemoryMiB: 16130}},
				Faults: []gpu.Fault{{Index: 0, UUID: uuid, Reason: gpu.FaultUnreadable}}})
			b.reconciled(t, true, "gpu-1-core-mem!")
			b.usesOfNode(t, mps.Use{}, mps.Use{})
			expect.Says(t, b.events.current[v1alpha1.ReasonIsolationUnavailable], "GPU 0 is held")
		})
	}
}

// Claims that the one daemon has already are held to their shares beside others; only new ones are kept off.
func TestClaimsOfTheOneMPSDaemonAreHealthyBesideOthers(t *testing.T) {
	b := supervised(t)
	b.nodeDaemon(t, mps.Ready)
	b.oneDaemon("mps")
	b.reconciled(t, true, byMPS)
	held := share(mode.MPS, 2, 0)
	held.Grants[0].Device, held.Grants[0].Isolation = "gpu-1-mps", mode.IsolationMPSNode
	held.Grants[0].GPU = shareOf(1, 0).GPU
	b.records = []state.Record{held}
	b.pods = []*corev1.Pod{oldPod("a", "0", "aliyun.com/gpu-mem", "4")}
	healthy := func(want bool) {
		t.Helper()
		for _, d := range b.Health(b.records) {
			expect.Equal(t, want, d.Message == "", "%s is healthy: %q", d.Device, d.Message)
		}
		for _, d := range b.Status().Devices {
			expect.Equal(t, want, d.Unhealthy == "", "status of %s is healthy: %q", d.Name, d.Unhealthy)
		}
	}
	b.reconciled(t, true, byMPSClosed)
	healthy(true)
	expect.Says(t, b.events.current[v1alpha1.ReasonIsolationUnavailable], "GPU 0 is held")
	b.nodeDaemon(t, mps.Down)
	b.reconciled(t, true, byMPSClosed)
	healthy(false)
}

func TestLabelForOneMPSDaemonWithoutEffect(t *testing.T) {
	for name, tc := range map[string]struct{ mode, value, offered, said string }{
		"not understood": {"mps", "one", byMPS, "gpu.aliyun.com/mps-daemon=one is not understood: use node"},
		"mode dynamic":   {"dynamic", "node", everyMode, "gpu.aliyun.com/mps-daemon is without effect in mode dynamic"},
		"mode share":     {"share", "node", shares, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := supervised(t)
			b.label(map[string]string{ack.NodeLabelSchedule: tc.mode, "gpu.aliyun.com/mps-daemon": tc.value})
			b.reconciled(t, true, tc.offered)
			said := b.events.current[v1alpha1.ReasonInvalidLabel]
			expect.Says(t, said, tc.said)
			b.wantsNodeDaemon(t, false)
		})
	}
}
