// SPDX-License-Identifier: Apache-2.0

package limitwatch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	limitcalls "github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
	nvmllimit "github.com/gpushare/dra-driver-gpushare/pkg/gpu/memlimit"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/memlimit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/metrics"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/podcgroup"
)

// newLooking is a node whose driver has such limits, as far as is seen without its GPUs. found is what was told last.
func newLooking(t *testing.T) (l *Watch, found *isolation.KernelLimits) {
	t.Helper()
	dir := t.TempDir()
	library := filepath.Join(dir, "libnvidia-ml.so.1")
	expect.NoError(t, os.WriteFile(library, nil, 0o600))
	expect.NoError(t, os.MkdirAll(filepath.Join(dir, "kubepods/pod0aa1-own"), 0o755))
	found = &isolation.KernelLimits{}
	const hook = "/plugins/gpu-memory-limit"
	l = New(Options{
		Config: isolation.KernelConfig{Hook: hook, CgroupRoot: dir, Ledger: filepath.Join(dir, "memory-limits")},
		Root:   dir, Pods: podcgroup.New(dir, "0aa1-own"), Library: nvml.SourceOptions{HostRoot: "/", LibraryPath: library},
		Found:    func(k isolation.KernelLimits) { *found = k },
		Prepared: func(context.Context) (map[types.UID]string, error) { return nil, nil },
		Events:   saidEvents{}, Counts: metrics.NewPlugin(prometheus.NewRegistry()), Clock: clock.RealClock{},
	})
	l.open = func(string) (findGPU, error) {
		return func(string, int) (memlimit.GPU, error) {
			return &table{limits: map[string]uint64{}, kind: memlimit.Misc}, nil
		}, nil
	}
	l.try = func(context.Context, string, string, string) error { return nil }
	return l, found
}

// A hook that the kernel does not let end, also when it is killed, holds nobody up for longer than it has to end. It is
// not tried again before it has.
func TestHookThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, found := newLooking(t)
		var tries atomic.Int32
		release := make(chan struct{})
		l.try = func(context.Context, string, string, string) error {
			tries.Add(1)
			<-release
			return nil
		}
		for range 3 {
			begin := time.Now()
			l.Look(t.Context(), &gpu.Machine{})
			if !errors.Is(found.Err, limitcalls.ErrHung) || !strings.Contains(found.Err.Error(), "/plugins/gpu-memory-limit") {
				t.Errorf("found %v", found.Err)
			}
			if took := time.Since(begin); took > 2*limitsCall {
				t.Errorf("it was waited for for %s", took)
			}
		}
		expect.Equal(t, 1, tries.Load(), "processes hang")
		close(release)
		synctest.Wait()
		l.Look(t.Context(), &gpu.Machine{})
		expect.NoErrorf(t, found.Err, "once it ended")
	})
}

// What a node's GPUs are offered by is decided by what was found for good; what may pass is looked at again, also where
// nobody has limits yet.
func TestWhatWasFoundForGood(t *testing.T) {
	machine := &gpu.Machine{GPUs: []gpu.GPU{{UUID: "GPU-a"}}}
	unified := &gpu.Machine{GPUs: []gpu.GPU{{UUID: "GPU-a", HostMemory: true}}}
	failing := errors.New("no answer")
	for name, tc := range map[string]struct {
		machine *gpu.Machine
		begin   func(l *Watch)
		settled bool
		again   time.Duration
	}{
		"no GPUs yet":         {&gpu.Machine{}, func(*Watch) {}, false, 0},
		"an older driver":     {machine, opens(nvmllimit.ErrUnsupported), true, 0},
		"no hook":             {machine, func(l *Watch) { l.Config.Hook = "" }, true, 0},
		"no memory on it":     {unified, func(*Watch) {}, true, 0},
		"a driver that hangs": {machine, opens(failing), false, limitsRetry},
		"a hook that fails": {machine, func(l *Watch) {
			l.try = func(context.Context, string, string, string) error { return failing }
		}, false, limitsRetry},
		"a GPU that hangs": {machine, func(l *Watch) {
			calls := limitcalls.New("NVML", limitsCall)
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			release := make(chan struct{})
			t.Cleanup(func() { close(release) })
			_, _ = limitcalls.Try(ctx, calls, "asking", func() (int, error) { <-release; return 0, nil })
			l.gpus["GPU-a"] = &limitedGPU{calls: calls}
		}, false, limitsRetry},
	} {
		t.Run(name, func(t *testing.T) {
			l, found := newLooking(t)
			tc.begin(l)
			l.Look(t.Context(), tc.machine)
			expect.Equal(t, tc.settled, found.Settled, "found for good: %+v", found)
			expect.Equal(t, tc.again, l.pass(t.Context()), "again after")
		})
	}
}

// That nobody counts a GPU's memory stays so: a node that looked again each minute would do it for ever.
func TestLimitsThatThereCannotBe(t *testing.T) {
	for err, again := range map[error]bool{nvmllimit.ErrUncounted: false, nvmllimit.ErrUnset: false,
		errors.New("no answer"): true} {
		found := isolation.KernelLimits{Reasons: map[string]error{"GPU-a": fmt.Errorf("a limit was tried: %w", err)}}
		expect.Equal(t, again, failed(found), "%v: looked for again", err)
	}
}

func opens(err error) func(l *Watch) {
	return func(l *Watch) { l.open = func(string) (findGPU, error) { return nil, err } }
}
