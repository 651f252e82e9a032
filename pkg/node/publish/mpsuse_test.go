// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/publish/mpsdemand"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// uses checks what gpu-mps-supervisor is told of both GPUs.
func (b *bench) uses(t *testing.T, want ...mps.Use) {
	t.Helper()
	usesBy(t, b.mps, want)
}

// usesBy checks what of both GPUs is said in the directory.
func usesBy(t *testing.T, dir mps.Dir, want []mps.Use) {
	t.Helper()
	var got []mps.Use
	for _, uuid := range []string{"GPU-0", "GPU-1"} {
		u, err := dir.Use(uuid)
		expect.NoError(t, err)
		u.Seq = 0
		got = append(got, u)
	}
	expect.Equal(t, want, got, "the GPUs' uses")
}

// share is a claim for a share of GPU-0 by MPS.
func share(m mode.Mode, units, cores int64) state.Record {
	g := shareOf(0, units)
	g.Mode, g.Isolation, g.CoresPercent, g.Config = m, mode.IsolationMPS, cores, v1alpha1.Default()
	return recordOf("share", g)
}

// A GPU is for MPS alone from when it is published for it until it is published for
// something else, and not while claims of the mode before may run.
func TestGPUsAreForMPSAloneWhileTheyArePublishedSo(t *testing.T) {
	b := supervised(t)
	none, alone := mps.Use{}, mps.Use{Reserved: true}
	b.mode("share")
	b.reconciled(t, true, shares)
	b.uses(t, none, none)
	b.allocate(t, "gpu-0-share", "early")
	b.mode("core_mem")
	b.waits(t, shareClosed)
	b.uses(t, none, none)
	b.freed(t, "gpu-0-core-mem gpu-1-core-mem")
	b.uses(t, alone, alone)
	b.mode("share")
	b.reconciled(t, false, "gpu-0-core-mem! gpu-1-core-mem!")
	b.uses(t, alone, alone)
	b.clock.Step(mode.Settle)
	b.reconciled(t, true, shares)
	b.uses(t, none, none)
}

func TestTheLargestShareIsTold(t *testing.T) {
	b := supervised(t)
	b.mode("core_mem")
	const offered = "gpu-0-core-mem gpu-1-core-mem"
	largest := func(mib, percent int64) mps.Use {
		return mps.Use{Reserved: true, Claimed: true, Limits: mps.Limits{MemoryMiB: mib, ThreadPercent: percent}}
	}
	alone := mps.Use{Reserved: true}
	b.records = []state.Record{share(mode.CoreMem, 3, 25), share(mode.CoreMem, 1, 50)}
	b.reconciled(t, true, offered)
	b.uses(t, largest(3226, 50), alone)
	b.records = b.records[:1]
	b.reconciled(t, true, offered)
	b.uses(t, largest(3226, 25), alone)
	// Nobody holds it to anything.
	lifted := share(mode.CoreMem, 1, 5)
	lifted.Grants[0].Config.DisableIsolation = ptr.To(true)
	b.records = append(b.records, lifted)
	b.reconciled(t, true, offered)
	b.uses(t, largest(16130, 100), alone)
	b.records = nil
	b.reconciled(t, true, offered)
	b.uses(t, alone, alone)
}

// sharedRecords are those of a state directory that another plugin has, too.
type sharedRecords struct {
	*bench
	now atomic.Pointer[[]state.Record]
}

func (s *sharedRecords) Prepared(context.Context) ([]state.Record, error) { return *s.now.Load(), nil }

func (s *sharedRecords) WithNodeLocked(_ context.Context, do func([]state.Record) error) error {
	return do(*s.now.Load())
}

// While the plugin is updated the one before serves claims, too. It may be of a version that
// tells the supervisor nothing of them, or end before it has.
func TestWhatAnotherPluginPreparesAndTakesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := supervised(t)
		shared := &sharedRecords{bench: b}
		b.Claims, b.demand.Claims = shared, shared
		small, large := share(mode.MPS, 2, 0), share(mode.MPS, 4, 0)
		shared.now.Store(&[]state.Record{small})
		b.mode("mps")
		b.runs(t)
		holds := func(mib int64) {
			t.Helper()
			synctest.Wait()
			b.uses(t, mps.Use{Reserved: true, Claimed: true, Limits: mps.Limits{MemoryMiB: mib, ThreadPercent: 100}},
				mps.Use{Reserved: true})
		}
		// Until all is settled.
		time.Sleep(time.Minute)
		holds(2150)
		shared.now.Store(&[]state.Record{small, large})
		time.Sleep(mpsdemand.ResyncInterval)
		holds(4301)
		shared.now.Store(&[]state.Record{small})
		time.Sleep(mpsdemand.ResyncInterval)
		holds(2150)
	})
}

// What is prepared in the meantime is not taken back.
func TestClaimThatIsPreparedMeanwhile(t *testing.T) {
	b := supervised(t)
	b.mode("mps")
	b.beforeLock = func() { b.records = []state.Record{share(mode.MPS, 2, 0)} }
	b.reconciled(t, true, byMPS)
	b.uses(t, mps.Use{Reserved: true, Claimed: true, Limits: mps.Limits{MemoryMiB: 2150, ThreadPercent: 100}},
		mps.Use{Reserved: true})
}

// Where records are lost, or set aside, the claims of MPS' clients may be among them. What
// was said of the GPUs stays then: the servers of those without claims are ended.
func TestWhatUsesMPSIsNotTakenBackWhereRecordsAreLost(t *testing.T) {
	for name, tc := range map[string]struct{ mode, offered string }{
		"MPS":     {"mps", byMPS},
		"dynamic": {"dynamic", everyMode},
	} {
		t.Run(name, func(t *testing.T) {
			b := supervised(t).in(t, tc.mode, tc.offered)
			small, large := share(mode.MPS, 2, 0), share(mode.MPS, 4, 0)
			b.records = []state.Record{small, large}
			b.reconciled(t, true, tc.offered)
			told, err := b.mps.Use("GPU-0")
			if err != nil || told.MemoryMiB != 4301 {
				t.Fatalf("%+v, %v", told, err)
			}
			lost := func(records ...state.Record) {
				t.Helper()
				b.records = records
				b.reconciled(t, false, tc.offered)
				if now, err := b.mps.Use("GPU-0"); err != nil || now != told {
					t.Errorf("with %d of 2 records: told %+v, before %+v, %v", len(records), now, told, err)
				}
			}
			b.notKnown = errors.New("lost")
			lost()
			lost(small)
			b.records = []state.Record{small, large}
			b.notKnown = nil
			b.reconciled(t, true, tc.offered)
			b.records = []state.Record{small}
			b.reconciled(t, true, tc.offered)
			if now, err := b.mps.Use("GPU-0"); err != nil || now.MemoryMiB != 2150 {
				t.Errorf("one has gone: %+v, %v", now, err)
			}
		})
	}
}

// Others hold a part of a GPU that claims use by MPS. They do so also while it cannot be read, as after a start of the
// plugin, or after an error that ends.
func TestOthersKeepTheirPartOfAGPUThatCannotBeRead(t *testing.T) {
	read := gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-0", MemoryMiB: 16130}, {Index: 1, UUID: "GPU-1",
		MemoryMiB: 16130}}}
	leftOut := func(uuid string) *gpu.Machine {
		return &gpu.Machine{GPUs: read.GPUs[1:], Faults: []gpu.Fault{{Index: 0, UUID: uuid, Reason: gpu.FaultUnreadable}}}
	}
	for name, machine := range map[string]*gpu.Machine{
		"left out": leftOut("GPU-0"), "left out without its UUID": leftOut(""), "gone": {GPUs: read.GPUs[1:]}, "unread": nil,
	} {
		t.Run(name, func(t *testing.T) {
			b := supervised(t)
			b.mode("core_mem")
			b.pods = []*corev1.Pod{oldPod("c", "0", "aliyun.com/gpu-mem", "4", "aliyun.com/gpu-core.percentage", "50")}
			b.records = []state.Record{share(mode.CoreMem, 3, 25)}
			beside := mps.Use{Beside: true, Claimed: true, Limits: mps.Limits{MemoryMiB: 3226, ThreadPercent: 25}}
			told := func() {
				t.Helper()
				b.pass(t)
				u, err := b.mps.Use("GPU-0")
				if u.Seq = 0; err != nil || u != beside {
					t.Errorf("the GPU's use is %+v, %v, want %+v", u, err, beside)
				}
			}
			told()
			b.restartIn("core_mem")
			b.SetMachine(machine)
			told()
			expect.NoError(t, os.WriteFile(filepath.Join(string(b.mps), "GPU-0", mps.UseFile), []byte("{"), 0o600))
			told()
			b.SetMachine(&read)
			told()
		})
	}
}

func TestIsolationLevelIsThatOfTheGPU(t *testing.T) {
	b := supervised(t)
	b.mode("mps")
	levels := func(want string) {
		t.Helper()
		b.reconciled(t, true, byMPS)
		expect.Equal(t, want, b.shown(t, func(d resourceapi.Device) string {
			return ptr.Deref(d.Attributes[v1alpha1.AttrIsolationLevel].StringValue, "")
		}), "isolation levels")
	}
	levels("cooperative cooperative")
	expect.NoError(t, b.mps.SetStatus("GPU-1", mps.Status{State: mps.Ready, DriverEnforced: true}))
	expect.Equal(t, true, b.isolationChanged(), "somebody looks at it")
	levels("cooperative driver")
}

// fullDisk is a directory in which nothing can be written while it is full.
type fullDisk struct {
	mps.Dir
	full atomic.Bool
}

func (d *fullDisk) SetUse(uuid string, u mps.Use) error {
	if d.full.Load() {
		return errors.New("no space left on device")
	}
	return d.Dir.SetUse(uuid, u)
}

// What is published does not wait for gpu-mps-supervisor to be told, but is said to be behind.
func TestSupervisorThatCannotBeTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := supervised(t)
		disk := &fullDisk{Dir: b.Publisher.MPS.(mps.Dir)}
		disk.full.Store(true)
		b.demand.MPS = disk
		b.mode("mps")
		b.runs(t)
		time.Sleep(retryInterval)
		synctest.Wait()
		expect.Equal(t, byMPS, b.devices(t), "published")
		expect.Error(t, b.Status().Err, "no space left")
		disk.full.Store(false)
		time.Sleep(retryInterval)
		synctest.Wait()
		expect.Error(t, b.Status().Err)
		b.uses(t, mps.Use{Reserved: true}, mps.Use{Reserved: true})
	})
}
