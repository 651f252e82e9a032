// SPDX-License-Identifier: Apache-2.0

package limitwatch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

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
)

// table is a GPU with a limit for each directory.
type table struct {
	limits  map[string]uint64
	refuses error
	// kind is who counts. By Misc the nearest limit above is told, and nothing where there is none; none is dropped.
	kind memlimit.Kind
}

func (t *table) PCIAddress() (string, error) { return "0000:02:00.0", nil }

func (t *table) Set(dir string, hard uint64) error {
	switch {
	case t.refuses != nil:
	case hard == nvmllimit.NoLimit && t.kind != memlimit.Misc:
		delete(t.limits, dir)
	default:
		t.limits[dir] = hard
	}
	return t.refuses
}

func (t *table) Get(dir string) (nvmllimit.Limit, error) {
	for at := dir; at != "/"; at = filepath.Dir(at) {
		if hard, is := t.limits[at]; is {
			return nvmllimit.Limit{Hard: hard}, nil
		}
		if t.kind != memlimit.Misc {
			return nvmllimit.Limit{Hard: nvmllimit.NoLimit}, nil
		}
	}
	return nvmllimit.Limit{}, nvmllimit.ErrUnset
}

// saidEvents keeps what is said under each reason.
type saidEvents map[string]string

func (e saidEvents) Warn(reason, message string)   { e[reason] = message }
func (e saidEvents) Normal(reason, message string) { e[reason] = message }
func (e saidEvents) Clear(reason string)           { delete(e, reason) }

// limitsNode is a node with a container that has a limit of 3 GiB, of claim c1.
type limitsNode struct {
	*Watch
	*table
	said    saidEvents
	claims  map[types.UID]string
	unknown error
	leaf    string
}

func newLimitsNode(t *testing.T) *limitsNode {
	t.Helper()
	n := &limitsNode{table: &table{limits: map[string]uint64{}}, said: saidEvents{}}
	n.claims = map[types.UID]string{"c1": "ns/c"}
	host := memlimit.Host{Root: t.TempDir(), Ledger: filepath.Join(t.TempDir(), "memory-limits")}
	g := memlimit.Target{UUID: "GPU-a", Kind: memlimit.DMem, MemoryMiB: 15 << 10}
	n.Watch = New(Options{
		Config: isolation.KernelConfig{Ledger: host.Ledger}, Root: host.Root,
		Found:    func(isolation.KernelLimits) {},
		Prepared: func(context.Context) (map[types.UID]string, error) { return n.claims, n.unknown },
		Events:   n.said, Counts: metrics.NewPlugin(prometheus.NewRegistry()), Clock: clock.RealClock{},
	})
	n.machine = &gpu.Machine{GPUs: []gpu.GPU{{UUID: "GPU-a"}}}
	n.gpus["GPU-a"] = &limitedGPU{Target: g, handle: n.table, calls: limitcalls.New("NVML", limitsCall)}
	e := memlimit.Entry{Pod: "p1", PodDir: "/kubepods/podp1", Dir: "/kubepods/podp1/a", Container: "a", Claim: "c1",
		Share: "s1",
		MiB:   3 << 10}
	n.leaf = filepath.Join(host.Root, e.Dir)
	expect.NoError(t, os.MkdirAll(n.leaf, 0o755))
	expect.NoError(t, host.Apply(n.table, g, memlimit.Start{Entry: e}))
	return n
}

func TestLimitThatIsGoneIsSetAgainAndTold(t *testing.T) {
	n := newLimitsNode(t)
	if after := n.pass(t.Context()); after != limitsInterval || len(n.said) > 0 {
		t.Fatalf("as it was set: again after %s, %v", after, n.said)
	}
	n.limits = map[string]uint64{}
	n.pass(t.Context())
	expect.Equal(t, 3<<30, n.limits[n.leaf], "bytes of the container")
	expect.Says(t, n.said["GPUMemoryLimitMissing"], "reads unlimited, not 3072 MiB", "claim ns/c", "GPU-a",
		"pod with UID p1", "set again")
	n.pass(t.Context())
	expect.Equal(t, 0, len(n.said), "once all is well: %q", n.said)
	n.limits, n.refuses = map[string]uint64{}, errors.New("insufficient permissions")
	n.pass(t.Context())
	expect.Says(t, n.said["GPUMemoryLimitMissing"], "could not be set again: insufficient permissions")
}

// What is not known to be prepared is not taken for gone.
func TestLimitsWhileRecordsAreRestored(t *testing.T) {
	n := newLimitsNode(t)
	n.claims, n.unknown = nil, errors.New("being restored")
	expect.Equal(t, limitsInterval, n.pass(t.Context()), "again after")
	if gpus, err := n.host.GPUs(); err != nil || len(gpus) != 1 {
		t.Errorf("%v are noted, %v", gpus, err)
	}
}

// Where no claim has limits, nothing is looked at until one is prepared.
func TestNothingIsLookedAtWithoutLimits(t *testing.T) {
	n := newLimitsNode(t)
	n.claims = nil
	n.pass(t.Context()) // forgets the container
	if after := n.pass(t.Context()); after != 0 || n.active {
		t.Errorf("again after %s", after)
	}
	expect.Equal(t, nil, n.Counted(t.Context()), "counted")
}

func TestCounted(t *testing.T) {
	n := newLimitsNode(t)
	n.pass(t.Context())
	counted := n.Counted(t.Context())["GPU-a"]
	if len(counted) != 1 || counted[0].Pod != types.UID("p1") || counted[0].Container != "a" {
		t.Errorf("%+v", counted)
	}
}

// On a node without such limits, one look is all that is done.
func TestDriverWithoutLimitsIsLookedAtOnce(t *testing.T) {
	dir := t.TempDir()
	library := filepath.Join(dir, "libnvidia-ml.so.1")
	expect.NoError(t, os.WriteFile(library, nil, 0o600))
	for name, hook := range map[string]string{"an older driver": "/plugins/gpu-memory-limit", "no hook": ""} {
		opened := 0
		var found []isolation.KernelLimits
		l := New(Options{
			Config:  isolation.KernelConfig{Hook: hook, CgroupRoot: dir},
			Library: nvml.SourceOptions{HostRoot: "/", LibraryPath: library},
			Found:   func(k isolation.KernelLimits) { found = append(found, k) },
		})
		l.open = func(path string) (findGPU, error) {
			expect.Equal(t, library, path, "%s: opened", name)
			opened++
			return nil, nvmllimit.ErrUnsupported
		}
		m := &gpu.Machine{GPUs: []gpu.GPU{{UUID: "GPU-a"}}}
		l.Look(t.Context(), m)
		l.Look(t.Context(), m)
		expect.Equal(t, 0, l.pass(t.Context()), "%s: again after", name)
		if len(found) != 1 || found[0].Err == nil || opened != map[string]int{"an older driver": 1}[name] {
			t.Errorf("%s: found %+v, opened %d times", name, found, opened)
		}
		if kinds := l.Kinds(); len(kinds) != 1 || kinds["GPU-a"] != "" {
			t.Errorf("%s: kinds %v", name, kinds)
		}
	}
}

// A hook that does not run on the host, as with another C library, is told with what it says.
func TestHookThatDoesNotRun(t *testing.T) {
	program := filepath.Join(t.TempDir(), "hook")
	expect.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho \"$1 $2 $3\" >&2\nexit 1\n"), 0o700))
	expect.Error(t, tryHook(t.Context(), "/", program, "/lib"), "probe --library /lib")
	expect.Error(t, tryHook(t.Context(), "/", filepath.Join(t.TempDir(), "none"), "/lib"), "does not run on the host")
}
