// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
)

// base has the edits of these GPUs.
type base struct{ gpus string }

func (b base) Common() specs.ContainerEdits { return specs.ContainerEdits{} }
func (b base) Check(uuid string) error      { _, err := b.GPU(uuid); return err }
func (b base) GPU(uuid string) (specs.ContainerEdits, error) {
	if !strings.Contains(b.gpus, uuid) {
		return specs.ContainerEdits{}, errors.New("no edits")
	}
	return specs.ContainerEdits{}, nil
}

// gpusNow is a reader of what the test says, and whatever is told of it.
type gpusNow struct {
	mu      sync.Mutex
	machine gpu.Machine
	base    base
	fails   error
	looks   error
	// slow are GPUs that answer only after the test.
	slow bool
	// interval is how often to read; 0 for the default.
	interval time.Duration

	keeper *Keeper
	// busy is whether nobody receives what is found.
	busy         bool
	reads, found int
	// checks and lookedAt are how often GPUs and files were looked at, moments when anything was.
	checks, lookedAt int
	moments          map[time.Time]bool
	set              *prepare.Inventory
	ended            error
	told             []string
	// observed are the conditions that were passed on last.
	observed []gpu.Condition
}

func (c *gpusNow) change(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
}

func (c *gpusNow) Read(ctx context.Context) (*prepare.Inventory, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	c.noteMoment()
	if c.slow {
		c.mu.Unlock()
		<-ctx.Done()
		c.mu.Lock()
		return nil, ctx.Err()
	}
	machine := c.machine
	return &prepare.Inventory{Machine: &machine, Base: c.base}, c.fails
}

func (c *gpusNow) Replaced(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookedAt++
	c.noteMoment()
	return c.looks
}

// Check answers as the GPUs do that are read next; fails is a driver that does not.
func (c *gpusNow) Check(ctx context.Context) ([]gpu.Condition, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checks++
	c.noteMoment()
	if c.slow {
		c.mu.Unlock()
		<-ctx.Done()
		c.mu.Lock()
		return []gpu.Condition{{UUID: "GPU-a", Failure: gpu.FailureError, Message: ctx.Err().Error()}}, true
	}
	var conditions []gpu.Condition
	for _, g := range c.machine.GPUs {
		conditions = append(conditions, gpu.Condition{Index: g.Index, UUID: g.UUID})
	}
	for _, f := range c.machine.Faults {
		conditions = append(conditions, gpu.Condition{Index: f.Index, UUID: f.UUID, Failure: gpu.FailureLost})
	}
	return conditions, c.fails == nil
}

func (c *gpusNow) Observe(_ context.Context, conditions []gpu.Condition) {
	c.change(func() { c.observed = conditions })
}

func (c *gpusNow) Warn(reason, message string) {
	c.change(func() { c.told = append(c.told, reason+" "+message) })
}
func (c *gpusNow) Normal(reason, message string) { c.Warn(reason, message) }
func (c *gpusNow) Clear(string)                  {}

func twoGPUs() gpu.Machine {
	return gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-a"}, {Index: 1, UUID: "GPU-b", Minor: 1}}}
}

// withTwoGPUs is a reader of two GPUs that are well.
func withTwoGPUs() *gpusNow { return &gpusNow{machine: twoGPUs(), base: base{"GPU-a GPU-b"}} }

// passes lets so much of the bubble's time pass.
func passes(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// keep runs the inventory until the returned function is called, which returns
// what was logged.
func (c *gpusNow) keep(t *testing.T) (stop func() string) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(2)))
	ctx, cancel := context.WithCancelCause(klog.NewContext(t.Context(), logger))
	found := make(chan *prepare.Inventory, 1)
	c.keeper = New(KeeperOptions{Reader: c, Events: c, Found: found, Clock: clock.RealClock{}, Fail: cancel,
		ReadInterval: c.interval, Health: c})
	var running sync.WaitGroup
	running.Go(func() { c.keeper.Run(ctx) })
	running.Go(func() { c.adopt(ctx, found) })
	synctest.Wait()
	return func() string {
		c.change(func() { c.ended = context.Cause(ctx) })
		cancel(nil)
		running.Wait()
		return logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	}
}

// adopt receives what is found until the context ends.
func (c *gpusNow) adopt(ctx context.Context, found <-chan *prepare.Inventory) {
	if c.busy {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case i := <-found:
			c.change(func() {
				c.set = i
				c.found++
			})
		}
	}
}

// A GPU that is lost later is not offered, and is again when it is back.
func TestGPUsAreReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := withTwoGPUs()
		stop := c.keep(t)
		offered := func(want int) {
			t.Helper()
			c.change(func() { expect.Equal(t, want, len(c.set.Machine.GPUs), "GPUs are known") })
		}
		offered(2)
		c.change(func() {
			c.machine.LeaveOut(gpu.Fault{Index: 1, UUID: "GPU-b", Reason: gpu.FaultLost, Message: "lost"})
		})
		passes(DefaultReadInterval)
		offered(1)
		c.change(func() { c.machine = twoGPUs() })
		passes(DefaultReadInterval)
		offered(2)
		stop()
		expect.Equal(t, 3, c.found, "times found: once for each inventory")
	})
}

// A GPU that fails to tell a property is read again soon.
func TestUnreadableGPUIsReadSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := withTwoGPUs()
		c.machine.LeaveOut(gpu.Fault{Index: 1, UUID: "GPU-b", Reason: gpu.FaultUnreadable, Message: "unknown"})
		stop := c.keep(t)
		c.change(func() { c.machine = twoGPUs() })
		passes(retryReadInterval)
		stop()
		expect.Equal(t, 2, len(c.set.Machine.GPUs), "GPUs %+v", c.set.Machine.GPUs)
	})
}

// The driver's files can change beside the same GPUs.
func TestNewBaseEditsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &gpusNow{machine: twoGPUs(), base: base{"GPU-a"}}
		stop := c.keep(t)
		c.change(func() { c.base = base{"GPU-a GPU-b"} })
		passes(DefaultReadInterval)
		stop()
		expect.NoErrorf(t, c.set.Base.Check("GPU-b"), "the newer edits are not used")
	})
}

// What lasts is logged once, and told in Events of the node as long as it does.
func TestWhatLastsIsLoggedOnce(t *testing.T) {
	for name, test := range map[string]struct {
		change func(c *gpusNow)
		// reason and says are of the Event.
		reason, says string
	}{
		"a GPU that is lost": {func(c *gpusNow) {
			c.machine.LeaveOut(gpu.Fault{Index: 1, Reason: gpu.FaultLost, Message: "lost"})
		}, v1alpha1.ReasonLeftOut, "Not offered: "},
		"lanes that are missing": {func(c *gpusNow) {
			c.machine.LaneFaults = []gpu.LaneFault{{Index: 1, Lanes: 2, Most: 4}}
		}, v1alpha1.ReasonNVLinkDegraded, "GPU 1 has 2 NVLink lanes to NVSwitches, others of its model have 4"},
		"links that disagree": {func(c *gpusNow) {
			c.machine.LinkFaults = []gpu.LinkFault{{A: 0, B: 1, LanesOfA: 2}}
		}, v1alpha1.ReasonLinksInconsistent, "GPU 0 has 2 NVLink lanes to GPU 1, which has 0 back"},
		"a fabric that is not ready": {func(c *gpusNow) {
			c.machine.FabricFaults = []gpu.FabricFault{{Index: 0}, {Index: 1}}
		}, v1alpha1.ReasonFabricNotReady, "GPU 0; GPU 1"},
		"no driver": {func(c *gpusNow) { c.fails = errors.New("no driver") }, v1alpha1.ReasonDriverUnavailable,
			"no driver"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := withTwoGPUs()
				test.change(c)
				stop := c.keep(t)
				time.Sleep(20*DefaultReadInterval + time.Second)
				logged := strings.TrimSpace(stop())
				if lines := strings.Count(logged, "\n") + 1; lines > 2 {
					t.Errorf("%d lines in 20 minutes, want 2 at most:\n%s", lines, logged)
				}
				if c.fails == nil && c.reads != 21 {
					t.Errorf("read %d times in 20 minutes, want once a minute", c.reads)
				}
				expect.Says(t, c.told[len(c.told)-1], test.reason+" ", test.says)
			})
		})
	}
}

// No process can change from one driver's library to another's. While an
// installation goes on, none restarts either.
func TestReplacedDriverEndsTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := withTwoGPUs()
		stop := c.keep(t)
		for step := range 5 {
			c.change(func() { c.looks = fmt.Errorf("%w: step %d", nvml.ErrReplaced, step) })
			passes(lookInterval)
		}
		c.change(func() { expect.Equal(t, nil, c.told, "told during the installation") })
		passes(2 * lookInterval)
		stop()
		if !errors.Is(c.ended, nvml.ErrReplaced) || len(c.told) != 1 ||
			!strings.Contains(c.told[0], v1alpha1.ReasonDriverReplaced) {
			t.Errorf("ended by %v, told %q; want it to restart and say so", c.ended, c.told)
		}
	})
}

// A driver root that does not answer is no new driver: another process would wait for it, too.
func TestDriverRootThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := withTwoGPUs()
		stop := c.keep(t)
		c.change(func() { c.looks = fmt.Errorf("looking for the NVML library: %w", bounded.ErrHung) })
		passes(10 * lookInterval)
		c.change(func() { c.observed = nil })
		passes(2 * checkInterval)
		c.change(func() { expect.Equal(t, 2, len(c.observed), "the GPUs are no longer asked whether they are well") })
		if logged := stop(); c.ended != nil || len(c.told) > 0 || strings.Count(logged, bounded.ErrHung.Error()) != 1 {
			t.Errorf("ended by %v, told %q, logged\n%s", c.ended, c.told, logged)
		}
	})
}

func TestGPUsWithoutEditsAreLeftOut(t *testing.T) {
	m := twoGPUs()
	m.Links = []gpu.Link{{A: 0, B: 1}}
	m.LeaveOut(withoutEdits(&m, base{"GPU-a"})...)
	if len(m.GPUs) != 1 || m.GPUs[0].UUID != "GPU-a" || len(m.Links) != 0 {
		t.Errorf("left are %+v, %+v; want the first GPU alone", m.GPUs, m.Links)
	}
	if len(m.Faults) != 1 || m.Faults[0].Index != 1 || m.Faults[0].Reason != gpu.FaultUnreadable ||
		!strings.Contains(m.Faults[0].Message, "no edits") {
		t.Errorf("faults %v, want one of the second GPU", m.Faults)
	}
}

// A GPU that was left out as lost is read again when it answers, and not a minute later.
func TestLostGPUThatAnswersIsReadAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := withTwoGPUs()
		c.machine.LeaveOut(gpu.Fault{Index: 1, UUID: "GPU-b", Reason: gpu.FaultLost, Message: "lost"})
		stop := c.keep(t)
		passes(checkInterval)
		c.change(func() {
			if len(c.observed) != 2 || c.observed[1].Failure != gpu.FailureLost {
				t.Errorf("observed were %+v", c.observed)
			}
			c.machine = twoGPUs()
		})
		passes(checkInterval)
		stop()
		expect.Equal(t, 2, len(c.set.Machine.GPUs), "after a second GPUs are known")
	})
}

// A driver that goes makes all GPUs unhealthy, whatever was read before.
func TestDriverThatGoesIsObservedForAllGPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := withTwoGPUs()
		stop := c.keep(t)
		c.change(func() { c.fails = errors.New("no driver") })
		passes(checkInterval)
		stop()
		if len(c.observed) != 2 || c.observed[0].Failure != gpu.FailureDriver || c.observed[1].UUID != "GPU-b" {
			t.Errorf("observed were %+v", c.observed)
		}
	})
}

// What the end of the process cuts off says nothing of the GPUs.
func TestEndWhileGPUsAreAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, known := range []bool{true, false} {
			c := &gpusNow{machine: twoGPUs(), base: base{"GPU-a GPU-b"}, slow: !known}
			stop := c.keep(t)
			c.change(func() { c.slow = true })
			passes(checkInterval)
			stop()
			if c.observed != nil || c.told != nil {
				t.Errorf("GPUs read before: %t: observed were %+v, told was %q", known, c.observed, c.told)
			}
		}
	})
}

// A driver that is reloaded while the plugin runs answers nothing more to whoever began
// with the one before: the GPUs are read again at once, and every ten seconds.
func TestAllGPUsFailingAreReadAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := withTwoGPUs()
		stop := c.keep(t)
		time.Sleep(10 * time.Second)
		c.change(func() {
			expect.Equal(t, 1, c.reads, "times read while nothing was wrong")
			c.machine.LeaveOut(gpu.Fault{Index: 0, UUID: "GPU-a", Reason: gpu.FaultLost, Message: "lost"},
				gpu.Fault{Index: 1, UUID: "GPU-b", Reason: gpu.FaultLost, Message: "lost"})
		})
		passes(2 * checkInterval)
		c.change(func() { expect.Equal(t, 2, c.reads, "times read") })
		passes(3 * retryReadInterval)
		stop()
		expect.Equal(t, 5, c.reads, "times read half a minute later")
	})
}
