// SPDX-License-Identifier: Apache-2.0

// Package limitwatch finds out whether NVIDIA's kernel driver can limit GPU memory on this node, and watches that it
// does.
package limitwatch

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	limitcalls "github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/memlimit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/metrics"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/podcgroup"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

const (
	// limitsCall is how long the driver has to answer about the limits of a GPU: claims wait
	// for the first look.
	limitsCall = 3 * time.Second
	// limitsInterval is how often running containers are looked at.
	limitsInterval = 30 * time.Second
	// limitsRetry is when it is looked again whether there are limits, where that failed.
	limitsRetry = time.Minute
	// mostMissing is how many containers one Event names.
	mostMissing = 4
)

// Options are what a Watch needs. All but the signals are required.
type Options struct {
	Config  isolation.KernelConfig
	Library nvml.SourceOptions
	// Root is where this process sees the node's control groups, Pods are those of pods.
	Root string
	Pods *podcgroup.Tree
	// Found is told what is found, before Look returns; Looked is sent when it was looked again.
	Found  func(isolation.KernelLimits)
	Looked *signal.Broadcast
	// Rewrite is signalled where the CDI specs of prepared claims have to be written again, for the hook uses other paths
	// now. It has room for one signal.
	Rewrite chan<- struct{}
	// Prepared are the prepared claims whose memory the kernel limits, as people know them; an error where not all are
	// known.
	Prepared func(context.Context) (map[types.UID]string, error)
	// Changed is sent when claims were prepared or unprepared.
	Changed *signal.Broadcast
	Events  report.NodeEvents
	Counts  *metrics.Plugin
	Clock   clock.Clock
}

// Watch knows whether NVIDIA's kernel driver can limit GPU memory on this node, and looks
// whether it does. On a node where it cannot, that costs one look at each start of the plugin,
// which an upgrade of the driver is, too.
type Watch struct {
	Options
	host memlimit.Host
	// open and try are openLimits and tryHook.
	open func(path string) (findGPU, error)
	try  func(ctx context.Context, hostRoot, program, library string) error
	// calls bound what concerns no single GPU, hook that program.
	calls, hook *limitcalls.Calls

	// looking is held by the one look that runs. It guards find, which finds GPUs in NVIDIA's library; nil until that is
	// open.
	looking sync.Mutex
	find    findGPU

	// mu is never held while the driver is asked.
	mu   sync.Mutex
	gpus map[string]*limitedGPU
	// last is what was found last. never is that it stays so as long as this process lives.
	last  isolation.KernelLimits
	never bool
	// machine is what was looked at last, active whether containers have limits.
	machine *gpu.Machine
	active  bool
}

// limitedGPU is a GPU on which memory can be limited; one without a handle was not found yet.
type limitedGPU struct {
	memlimit.Target
	handle memlimit.GPU
	calls  *limitcalls.Calls
}

// New returns a Watch that has looked at nothing yet.
func New(o Options) *Watch {
	return &Watch{
		Options: o, host: memlimit.Host{Root: o.Root, Ledger: o.Config.Ledger},
		open: openLimits, try: tryHook, calls: limitcalls.New("NVML", limitsCall), hook: newHookCalls(o.Config.Hook),
		gpus: map[string]*limitedGPU{},
	}
}

// Run looks at running containers while some have limits, until the context ends.
func (l *Watch) Run(ctx context.Context) {
	for {
		// What changes from here on is looked at again.
		changed := l.Changed.Next()
		var again <-chan time.Time
		if after := l.pass(ctx); after > 0 {
			again = l.Clock.After(after)
		}
		// While there is something to look at, it is looked at its times.
		if again != nil {
			changed = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-changed:
		}
	}
}

// pass looks once, and says after how long to look again; 0 is when something changes.
func (l *Watch) pass(ctx context.Context) time.Duration {
	again, nothing := l.again(ctx)
	if nothing {
		return again
	}
	uuids, err := l.host.GPUs()
	var names map[types.UID]string
	if err == nil {
		names, err = l.Prepared(ctx)
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Memory limits are not looked at now", "reason", err)
		return limitsInterval
	}
	l.mu.Lock()
	l.active = len(uuids) > 0 || len(names) > 0
	active := l.active
	l.mu.Unlock()
	if len(uuids) > 0 {
		l.check(ctx, uuids, names)
	} else {
		l.tell(nil, names)
	}
	if !active {
		return again
	}
	return limitsInterval
}

// stillPrepared reports whether a claim is among those, or is now: it may have been prepared since they were read. For
// that they are read once more.
func (l *Watch) stillPrepared(ctx context.Context, names map[types.UID]string) func(types.UID) (bool, error) {
	var now map[types.UID]string
	return func(uid types.UID) (_ bool, err error) {
		if names[uid] == "" && now == nil {
			now, err = l.Prepared(ctx)
		}
		return names[uid] != "" || now[uid] != "", err
	}
}

// again looks again whether there are limits at all, where that could not be found out. It says after
// how long to do so the next time, 0 for never, and whether nothing else is to be done.
func (l *Watch) again(ctx context.Context) (after time.Duration, nothing bool) {
	l.mu.Lock()
	machine, last, never := l.machine, l.last, l.never
	l.mu.Unlock()
	switch {
	case machine == nil || never:
		return 0, true
	case !failed(last):
		return 0, false
	}
	last = l.Look(ctx, machine)
	l.Looked.Send()
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := l.last; now.Library != "" && (now.Library != last.Library || now.Kubelet != last.Kubelet) {
		signal.Send(l.Rewrite)
	}
	if failed(l.last) && !l.never {
		after = limitsRetry
	}
	return after, l.last.Err != nil
}

// check compares the limits of the GPUs' running containers with their shares.
func (l *Watch) check(ctx context.Context, uuids []string, names map[types.UID]string) {
	var all []memlimit.Missing
	for _, uuid := range uuids {
		g := l.gpu(uuid)
		if g == nil {
			continue
		}
		missing, err := limitcalls.Try(ctx, g.calls, "checking memory limits", func() ([]memlimit.Missing, error) {
			return l.host.Check(g.handle, g.Target, l.stillPrepared(ctx, names))
		})
		if err != nil {
			klog.FromContext(ctx).Error(err, "The memory limits of a GPU could not be checked, will try again", "uuid",
				uuid)
		}
		all = append(all, missing...)
	}
	l.tell(all, names)
}

// gpu is the GPU, nil if it was not found yet.
func (l *Watch) gpu(uuid string) *limitedGPU {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.gpus[uuid]; g != nil && g.handle != nil {
		return g
	}
	return nil
}

// tell says which containers were without their limits.
func (l *Watch) tell(missing []memlimit.Missing, names map[types.UID]string) {
	var lines []string
	failed := 0
	for _, m := range missing {
		what := "it was set again"
		if m.Failed != nil {
			failed++
			what = "it could not be set again: " + m.Failed.Error()
		}
		lines = append(lines, fmt.Sprintf("GPU %s, container %s of the pod with UID %s, claim %s: %v; %s", m.UUID,
			m.Container,
			m.Pod, cmp.Or(names[m.Claim], string(m.Claim)), m.Found, what))
	}
	l.Counts.LimitsMissing(failed, len(missing)-failed)
	if len(missing) == 0 {
		l.Events.Clear(v1alpha1.ReasonMemoryLimitMissing)
		return
	}
	l.Events.Warn(v1alpha1.ReasonMemoryLimitMissing, "Containers were without their limits of GPU memory: "+
		text.List(lines, mostMissing))
}

// Kinds are who counts each GPU's memory, by UUID; nil while nothing is known.
func (l *Watch) Kinds() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.machine == nil {
		return nil
	}
	out := map[string]string{}
	for _, g := range l.machine.GPUs {
		out[g.UUID] = string(l.last.Kinds[g.UUID])
	}
	return out
}

// Counted is what the driver counts for containers, by GPU. It is nothing while none has limits.
func (l *Watch) Counted(ctx context.Context) map[string][]audit.Counted {
	l.mu.Lock()
	active := l.active
	l.mu.Unlock()
	if !active {
		return nil
	}
	uuids, err := l.host.GPUs()
	if err != nil {
		return nil
	}
	out := map[string][]audit.Counted{}
	for _, uuid := range uuids {
		g := l.gpu(uuid)
		if g == nil {
			continue
		}
		used, err := limitcalls.Try(ctx, g.calls, "reading what containers use", func() ([]memlimit.Used, error) {
			return l.host.Used(g.handle, g.Target)
		})
		if err != nil {
			klog.FromContext(ctx).V(2).Info("What the driver counts for containers is not known", "uuid", uuid, "err", err)
		}
		for _, u := range used {
			out[uuid] = append(out[uuid], audit.Counted{Pod: u.Pod, Container: u.Container, MiB: u.MiB})
		}
	}
	return out
}

// Ledger is the directory below the plugin's that lists which containers have limits that the kernel holds.
func Ledger(pluginDir string) string { return filepath.Join(pluginDir, "memory-limits") }
