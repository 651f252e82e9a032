// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	limitcalls "github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/memlimit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/metrics"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/podcgroup"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
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

// memoryLimits knows whether NVIDIA's kernel driver can limit GPU memory on this node, and looks
// whether it does. On a node where it cannot, that costs one look at each start of the plugin,
// which an upgrade of the driver is, too.
type memoryLimits struct {
	config  isolation.KernelConfig
	options nvml.SourceOptions
	// host is the node's control groups as this process sees them, pods those of pods.
	host memlimit.Host
	pods *podcgroup.Tree
	// found is told what is found, wake that it was looked again.
	found func(isolation.KernelLimits)
	wake  func()
	// rewrite is for the CDI specs of prepared claims, of which the hook goes by other paths now.
	rewrite func()
	// prepared are the claims that are prepared; an error where not all are known.
	prepared func(context.Context) ([]state.Record, error)
	events   report.NodeEvents
	counts   *metrics.Plugin
	clock    clock.Clock
	changed  chan struct{}
	// open and try are openLimits and tryHook.
	open func(path string) (findGPU, error)
	try  func(ctx context.Context, hostRoot, program, library string) error

	mu sync.Mutex
	// calls bound what concerns no single GPU, hook that program, gpus what concerns one GPU.
	calls, hook *limitcalls.Calls
	gpus        map[string]*limitedGPU
	// find finds GPUs in NVIDIA's library; nil until that is open.
	find findGPU
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

func (a *agent) makeMemoryLimits() *memoryLimits {
	c := a.Isolation.Kernel
	root := a.GPUs.Local(c.CgroupRoot)
	return &memoryLimits{
		config: c, options: a.GPUs.SourceOptions, host: memlimit.Host{Root: root, Ledger: c.Ledger},
		pods: podcgroup.New(root, a.PodUID), found: a.registry.SetKernelLimits, wake: func() { a.publisher.Wake() },
		events: a.events, counts: a.counts,
		clock: clock.RealClock{}, changed: make(chan struct{}, 1), open: openLimits, try: tryHook,
		calls: limitcalls.New("NVML", limitsCall), hook: newHookCalls(c.Hook), gpus: map[string]*limitedGPU{},
		prepared: func(ctx context.Context) ([]state.Record, error) {
			if complete, err := a.preparer.Complete(); err != nil || !complete {
				return nil, errors.Join(err, errIncomplete)
			}
			return a.preparer.Prepared(ctx)
		},
	}
}

// Run looks at running containers while some have limits, until the context ends.
func (l *memoryLimits) Run(ctx context.Context) {
	for {
		var again <-chan time.Time
		if after := l.pass(ctx); after > 0 {
			again = l.clock.After(after)
		}
		// While there is something to look at, it is looked at its times.
		changed := l.changed
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
func (l *memoryLimits) pass(ctx context.Context) time.Duration {
	again, nothing := l.again(ctx)
	if nothing {
		return again
	}
	uuids, err := l.host.GPUs()
	var names map[types.UID]string
	if err == nil {
		names, err = l.names(ctx)
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

// names are the prepared claims whose memory the kernel limits, as people know them.
func (l *memoryLimits) names(ctx context.Context) (map[types.UID]string, error) {
	records, err := l.prepared(ctx)
	if err != nil {
		return nil, err
	}
	names := map[types.UID]string{}
	for _, r := range records {
		if slices.ContainsFunc(r.Grants, func(g claim.Grant) bool { return g.KernelMemory }) {
			names[r.UID] = r.Namespace + "/" + r.Name
		}
	}
	return names, nil
}

// stillPrepared says whether a claim is among those, or is now: it may have been prepared since they were read. For
// that they are read once more.
func (l *memoryLimits) stillPrepared(ctx context.Context, names map[types.UID]string) func(types.UID) (bool, error) {
	var now map[types.UID]string
	return func(uid types.UID) (_ bool, err error) {
		if names[uid] == "" && now == nil {
			now, err = l.names(ctx)
		}
		return names[uid] != "" || now[uid] != "", err
	}
}

// again looks again whether there are limits at all, where that could not be found out. It says after
// how long to do so the next time, 0 for never, and whether nothing else is to be done.
func (l *memoryLimits) again(ctx context.Context) (after time.Duration, nothing bool) {
	l.mu.Lock()
	machine, last, never := l.machine, l.last, l.never
	l.mu.Unlock()
	switch {
	case machine == nil || never:
		return 0, true
	case !failed(last):
		return 0, false
	}
	last = l.look(ctx, machine)
	l.wake()
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := l.last; now.Library != "" && (now.Library != last.Library || now.Kubelet != last.Kubelet) {
		l.rewrite()
	}
	if failed(l.last) && !l.never {
		after = limitsRetry
	}
	return after, l.last.Err != nil
}

// check compares the limits of the GPUs' running containers with their shares.
func (l *memoryLimits) check(ctx context.Context, uuids []string, names map[types.UID]string) {
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
func (l *memoryLimits) gpu(uuid string) *limitedGPU {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.gpus[uuid]; g != nil && g.handle != nil {
		return g
	}
	return nil
}

// tell says which containers were without their limits.
func (l *memoryLimits) tell(missing []memlimit.Missing, names map[types.UID]string) {
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
	l.counts.LimitsMissing(failed, len(missing)-failed)
	if len(missing) == 0 {
		l.events.Clear(v1alpha1.ReasonMemoryLimitMissing)
		return
	}
	l.events.Warn(v1alpha1.ReasonMemoryLimitMissing, "Containers were without their limits of GPU memory: "+
		text.List(lines, mostMissing))
}

// kinds says who counts each GPU's memory, by UUID; nil while nothing is known.
func (l *memoryLimits) kinds() map[string]string {
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

// counted is what the driver counts for containers, by GPU. It is nothing while none has limits.
func (l *memoryLimits) counted(ctx context.Context) map[string][]audit.Counted {
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

// MemoryLedger is the directory below the plugin's in which it is kept which containers have
// limits that the kernel holds.
func MemoryLedger(pluginDir string) string { return filepath.Join(pluginDir, "memory-limits") }
