// SPDX-License-Identifier: Apache-2.0

package limitwatch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/preparetest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	limitcalls "github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/memlimit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// addressed is a GPU with a PCI address of its own.
type addressed struct {
	*table
	address string
}

func (a addressed) PCIAddress() (string, error) { return a.address, nil }

// GPUs that hang keep nothing from the others, are waited for together, and cost a call each, however often they are
// looked at.
func TestLookBesideGPUsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, found := newLooking(t)
		var calls atomic.Int32
		release := make(chan struct{})
		l.open = func(string) (findGPU, error) {
			return func(uuid string, likely int) (memlimit.GPU, error) {
				expect.Equal(t, fmt.Sprint("GPU-", likely), uuid, "looked for")
				if likely < 2 {
					calls.Add(1)
					<-release
				}
				misc := &table{limits: map[string]uint64{}, kind: memlimit.Misc}
				return addressed{misc, fmt.Sprintf("0000:%02d:00.0", likely)}, nil
			}, nil
		}
		m := &gpu.Machine{}
		for i := range 4 {
			m.GPUs = append(m.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprint("GPU-", i)})
		}
		for i := range 3 {
			begin := time.Now()
			l.Look(t.Context(), m)
			if took := time.Since(begin); took > limitsCall || i > 0 && took > 0 {
				t.Errorf("look %d took %s", i, took)
			}
			if len(found.Kinds) != 2 || found.Kinds["GPU-3"] != memlimit.Misc ||
				!errors.Is(found.Reasons["GPU-0"], limitcalls.ErrHung) {
				t.Errorf("look %d: %+v", i, found)
			}
		}
		expect.Equal(t, 2, calls.Load(), "calls hang on two GPUs")
		if l.gpu("GPU-0") != nil || l.gpu("GPU-3") == nil {
			t.Error("which GPUs can be looked at")
		}
		close(release)
		synctest.Wait()
		if l.Look(t.Context(), m); len(found.Kinds) != 4 || l.gpu("GPU-0") == nil {
			t.Errorf("once they answer: %+v", found)
		}
	})
}

// preparerOn has a claim u1 whose memory the kernel limits. It begins as a plugin does.
func preparerOn(t *testing.T, store *state.Store, dir cdi.Dir, l *Watch, m *gpu.Machine) *prepare.Preparer {
	t.Helper()
	registry := isolation.NewRegistry(isolation.Config{Kernel: isolation.KernelConfig{Hook: l.Config.Hook,
		Ledger: "/ledger"}, CGPUProc: "/proc/no_such_module"})
	p := prepare.New(prepare.Options{Store: store, Specs: dir, Isolation: registry, Cluster: preparetest.Cluster{},
		Node: preparetest.Node{}, Listener: preparetest.Listener{}})
	l.Found = registry.SetKernelLimits
	l.Look(t.Context(), m)
	p.SetInventory(&prepare.Inventory{Machine: m, Base: preparetest.Base("")})
	return p
}

// The specs of prepared claims stay as they are while it is not known what their hook is to be told, and are written
// again as soon as that is known.
func TestSpecsAfterALookThatFailed(t *testing.T) {
	m := &gpu.Machine{GPUs: []gpu.GPU{{UUID: "GPU-0", MemoryMiB: 16130}}}
	store, err := state.Open(t.TempDir(), "n1")
	expect.NoError(t, err)
	g := claim.Grant{Request: "r", Device: "gpu-0-cgpu", Mode: mode.CGPU, Units: 3, Config: v1alpha1.Default(),
		GPU: claim.GPU{UUID: "GPU-0", MemoryMiB: 16130}, Isolation: mode.IsolationKernel, KernelMemory: true, ShareID: "s1"}
	expect.NoError(t, store.Put(state.Record{Phase: state.Prepared, UID: "u1", Namespace: "team", Name: "c",
		CDISpec: cdi.SpecName("u1"), Grants: []claim.Grant{g}}))
	dir := cdi.Dir(t.TempDir())
	tells := func(when string, l *Watch) {
		t.Helper()
		spec, err := os.ReadFile(filepath.Join(string(dir), cdi.SpecName("u1")+".json"))
		if want := `"--library","` + l.Library.LibraryPath + `"`; err != nil ||
			!strings.Contains(strings.Join(strings.Fields(string(spec)), ""), want) {
			t.Errorf("%s: %v, want %s in %s", when, err, want, spec)
		}
	}
	before, _ := newLooking(t)
	expect.NoError(t, preparerOn(t, store, dir, before, m).Recover(t.Context()))
	tells("at first", before)

	l, _ := newLooking(t)
	open, fails := l.open, errors.New("no answer")
	l.open = func(path string) (findGPU, error) {
		if fails != nil {
			return nil, fails
		}
		return open(path)
	}
	p := preparerOn(t, store, dir, l, m)
	expect.ErrorIs(t, p.Recover(t.Context()), fails)
	tells("while the library cannot be opened", before)
	rewrite := make(chan struct{}, 1)
	l.Rewrite = rewrite
	l.pass(t.Context())
	expect.Equal(t, 0, len(rewrite), "signals while nothing is known")
	fails = nil
	l.pass(t.Context())
	<-rewrite
	expect.NoError(t, p.Recover(t.Context()))
	tells("at last", l)
	l.pass(t.Context())
	expect.Equal(t, 0, len(rewrite), "further signals")
}

// What was prepared after the records were read, and has started, keeps its limit.
func TestClaimThatIsPreparedWhileLimitsAreChecked(t *testing.T) {
	n := newLimitsNode(t)
	g := memlimit.Target{UUID: "GPU-a", Kind: memlimit.Misc, MemoryMiB: 15 << 10}
	n.gpus["GPU-a"].Target, n.kind = g, g.Kind
	e := memlimit.Entry{Pod: "p2", PodDir: "/kubepods/podp2", Dir: "/kubepods/podp2/b", Container: "b", Claim: "c2",
		Share: "s2", MiB: 2 << 10}
	expect.NoError(t, os.MkdirAll(filepath.Join(n.host.Root, e.Dir), 0o755))
	n.Prepared = func(context.Context) (map[types.UID]string, error) {
		read := maps.Clone(n.claims)
		if len(read) == 1 {
			n.claims["c2"] = "ns/late"
			expect.Error(t, n.host.Apply(n.table, g, memlimit.Start{Entry: e, OnlyShare: true}))
		}
		return read, nil
	}
	n.pass(t.Context())
	expect.Equal(t, 2<<30, n.limits[filepath.Join(n.host.Root, e.PodDir)], "bytes of the pod")
	used, err := n.host.Used(n.table, g)
	if err != nil || len(used) != 2 {
		t.Errorf("noted: %+v, %v", used, err)
	}
	// Once it is gone, so is its limit.
	n.claims = nil
	n.pass(t.Context())
	if got := n.limits[filepath.Join(n.host.Root, e.PodDir)]; got == 2<<30 {
		t.Errorf("the pod whose claim is gone has %d bytes", got)
	}
}
