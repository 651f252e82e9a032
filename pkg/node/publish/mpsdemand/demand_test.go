// SPDX-License-Identifier: Apache-2.0

package mpsdemand

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

var machine = &gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-0", MemoryMiB: 16130}, {Index: 1, UUID: "GPU-1",
	MemoryMiB: 16130}}}

// offers is what a node of two GPUs publishes.
func offers(m mode.Mode, backend string) Offered {
	return Offered{Machine: machine, Offer: mode.Offer{Mode: m, Isolation: map[mode.Mode]string{mode.MPS: backend}}}
}

// share is a claim for 2 GiB of GPU-0.
func share(backend string) state.Record {
	return state.Record{Namespace: "team", Name: "share", Grants: []claim.Grant{{Mode: mode.MPS, Isolation: backend,
		GPU: claim.GPU{UUID: "GPU-0", MemoryMiB: 16130}, Units: 2, Config: v1alpha1.Default()}}}
}

func TestUses(t *testing.T) {
	alone, largest := mps.Use{Reserved: true}, mps.Limits{MemoryMiB: 2150, ThreadPercent: 100}
	others := offers(mode.MPS, mode.IsolationMPS)
	others.Others = map[string]bool{"GPU-1": true}
	besideNode := offers(mode.MPS, mode.IsolationMPSNode)
	besideNode.Others = others.Others
	besideDynamic := offers(mode.Dynamic, mode.IsolationMPS)
	besideDynamic.Others = map[string]bool{"GPU-0": true}
	for name, test := range map[string]struct {
		offered Offered
		records []state.Record
		// own are the uses of the GPUs' own daemons, node those of the one for all.
		own, node [2]mps.Use
	}{
		"another mode":              {offered: offers(mode.Share, mode.IsolationNone)},
		"MPS":                       {offered: offers(mode.MPS, mode.IsolationMPS), own: [2]mps.Use{alone, alone}},
		"one daemon":                {offered: offers(mode.MPS, mode.IsolationMPSNode), node: [2]mps.Use{alone, alone}},
		"a GPU of another driver's": {offered: others, own: [2]mps.Use{alone, {Beside: true}}},
		"one daemon, and a GPU of another driver's": {offered: besideNode},
		"dynamic": {offered: offers(mode.Dynamic, mode.IsolationMPS)},
		"dynamic, with a claim": {offered: offers(mode.Dynamic, mode.IsolationMPS),
			records: []state.Record{share(mode.IsolationMPS)}, own: [2]mps.Use{{Claimed: true, Limits: largest}}},
		"dynamic, with a claim, and another driver's": {offered: besideDynamic,
			records: []state.Record{share(mode.IsolationMPS)},
			own:     [2]mps.Use{{Claimed: true, Beside: true, Limits: largest}}},
		"a claim by the other daemon": {offered: offers(mode.MPS, mode.IsolationMPS),
			records: []state.Record{share(mode.IsolationMPSNode)}, own: [2]mps.Use{alone, alone},
			node: [2]mps.Use{{Claimed: true, Limits: largest}}},
		"a claim without limits": {offered: offers(mode.Share, mode.IsolationNone),
			records: []state.Record{share(mode.IsolationNone)}},
	} {
		t.Run(name, func(t *testing.T) {
			backends := isolation.NewRegistry(isolation.Config{MPSDir: t.TempDir(), CGPUProc: "/proc/no_such_module"})
			got, err := test.offered.uses(backends, test.records)
			expect.NoError(t, err)
			want := map[daemonGPU]mps.Use{
				{"GPU-0", mode.DaemonOfGPU}: test.own[0], {"GPU-1", mode.DaemonOfGPU}: test.own[1],
				{"GPU-0", mode.DaemonOfNode}: test.node[0], {"GPU-1", mode.DaemonOfNode}: test.node[1]}
			expect.Equal(t, want, got, "uses")
		})
	}
}

// A use that was removed is told again, also if it is none: the supervisor keeps the GPU until then.
func TestUseThatWasRemoved(t *testing.T) {
	dir := mps.Dir(t.TempDir())
	d := plugin(dir, nil)
	other := offers(mode.Share, mode.IsolationNone)
	d.passes(t, offers(mode.MPS, mode.IsolationMPS))
	d.passes(t, other)
	use := filepath.Join(dir.Files("GPU-0"), mps.UseFile)
	expect.NoError(t, os.Remove(use))
	d.passes(t, other)
	if u, err := dir.Use("GPU-0"); err != nil || u != (mps.Use{Seq: 1}) {
		t.Errorf("%+v, %v", u, err)
	}
	_, err := os.Stat(dir.OfNode().Files("GPU-0"))
	expect.ErrorIs(t, err, os.ErrNotExist)
	d.kill(t)
}

// The daemon for all GPUs ends when no use keeps it, also of a GPU that is lost.
func TestUseOfAGPUThatIsLost(t *testing.T) {
	dir := mps.Dir(t.TempDir())
	d := plugin(dir, nil)
	node, lost := dir.OfNode(), mps.Use{Reserved: true, Claimed: true, Seq: 1}
	told := func(want mps.Use) {
		t.Helper()
		if u, err := node.Use("lost"); err != nil || u != want {
			t.Errorf("%+v, %v, want %+v", u, err, want)
		}
	}
	_, err := d.Want(true, true)
	expect.NoError(t, err)
	expect.NoError(t, errors.Join(node.SetStatus("lost", mps.Status{}), node.SetUse("lost", lost)))
	d.passes(t, offers(mode.MPS, mode.IsolationMPSNode))
	told(lost)
	_, err = d.Want(false, false)
	expect.NoError(t, err)
	d.passes(t, offers(mode.MPS, mode.IsolationMPSNode))
	told(lost)
	d.passes(t, offers(mode.Share, mode.IsolationNone))
	told(mps.Use{Seq: 2})
	if wanted, err := dir.NodeDaemonWanted(); err != nil || wanted {
		t.Errorf("the daemon is wanted: %t, %v", wanted, err)
	}
	d.kill(t)
}

// claims are those that are prepared, and known says why there may be others.
type claims struct {
	prepared []state.Record
	known    func() error
}

func (c *claims) Prepared(context.Context) ([]state.Record, error) { return c.prepared, nil }

func (c *claims) WithNodeLocked(_ context.Context, do func([]state.Record) error) error {
	return do(c.prepared)
}

func (c *claims) Known(context.Context) error { return c.known() }

// plugin is one that has started and knows all claims.
func plugin(dir mps.Dir, prepared []state.Record) *Demand {
	registry := isolation.NewRegistry(isolation.Config{MPSDir: string(dir), CGPUProc: "/proc/no_such_module"})
	return New(Options{MPS: dir, Isolation: registry, Clock: clocktesting.NewFakeClock(time.Unix(1, 0)),
		Claims: &claims{prepared: prepared, known: func() error { return nil }}})
}

// kill ends the plugin: the kernel lets go of its locks.
func (d *Demand) kill(t *testing.T) {
	t.Helper()
	if d.withdraw != nil {
		expect.Error(t, d.withdraw())
	}
}

// passes has the plugin go once through what Run does.
func (d *Demand) passes(t *testing.T, o Offered) {
	t.Helper()
	d.Publishes(o)
	_, err := d.Pass(t.Context())
	expect.NoError(t, err)
}

func declares(t *testing.T, dir mps.Dir, want mps.Declaration) {
	t.Helper()
	if got, err := dir.Declared(); err != nil || got != want {
		t.Errorf("the supervisor is told %q, %v, want %q", got, err, want)
	}
}

// What a node asks for, or publishes, while it is looked whether anything uses MPS, keeps the
// daemons.
func TestDaemonsThatAreWantedMeanwhile(t *testing.T) {
	for name, test := range map[string]struct {
		meanwhile func(d *Demand) error
		want      mps.Declaration
		node      bool
	}{
		"nothing": {meanwhile: func(*Demand) error { return nil }, want: mps.Idle},
		// Nobody has ever declared it idle.
		"asked for": {meanwhile: func(d *Demand) error {
			_, err := d.Want(true, true)
			return err
		}, want: mps.Undeclared, node: true},
		"published": {meanwhile: func(d *Demand) error {
			d.Publishes(offers(mode.MPS, mode.IsolationMPSNode))
			return nil
		}, want: mps.Undeclared, node: true},
		"not known": {meanwhile: func(*Demand) error { return errors.New("lost") }, want: mps.Undeclared, node: true},
		"one for each is asked for": {meanwhile: func(d *Demand) error {
			_, err := d.Want(true, false)
			return err
		}, want: mps.Undeclared},
	} {
		t.Run(name, func(t *testing.T) {
			dir := mps.Dir(t.TempDir())
			d := plugin(dir, nil)
			d.Claims.(*claims).known = func() error { return test.meanwhile(d) }
			expect.NoError(t, dir.WantNodeDaemon(true))
			d.Publishes(offers(mode.Share, mode.IsolationNone))
			_, err := d.Pass(t.Context())
			expect.NoError(t, err)
			declares(t, dir, test.want)
			if got, err := dir.NodeDaemonWanted(); err != nil || got != test.node {
				t.Errorf("the daemon for all GPUs is wanted: %t, %v, want %t", got, err, test.node)
			}
		})
	}
}

// A plugin on a node that its predecessor had declared idle declares what it knows, and as it knows it:
// the supervisor waits for that.
func TestPluginAfterOneThatDeclaredTheNodeIdle(t *testing.T) {
	other, byMPS := offers(mode.Share, mode.IsolationNone), offers(mode.MPS, mode.IsolationMPS)
	for name, test := range map[string]struct {
		prepared []state.Record
		knows    func(t *testing.T, d *Demand)
		want     mps.Declaration
		started  bool
	}{
		"nothing yet":      {knows: func(*testing.T, *Demand) {}, want: mps.Undeclared},
		"nothing uses MPS": {knows: func(t *testing.T, d *Demand) { d.passes(t, other) }, want: mps.Idle},
		"what is prepared is not known": {knows: func(t *testing.T, d *Demand) {
			d.Claims.(*claims).known = func() error { return errors.New("lost") }
			d.passes(t, other)
		}, want: mps.Undeclared},
		"MPS is asked for": {knows: func(t *testing.T, d *Demand) {
			_, err := d.Want(true, false)
			expect.NoError(t, err)
		}, want: mps.InUse, started: true},
		"MPS is published": {knows: func(t *testing.T, d *Demand) { d.passes(t, byMPS) }, want: mps.InUse},
		"a claim is held by it": {prepared: []state.Record{share(mode.IsolationMPS)}, want: mps.InUse,
			knows: func(t *testing.T, d *Demand) { d.passes(t, other) }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := mps.Dir(t.TempDir())
			before := plugin(dir, nil)
			before.passes(t, other)
			declares(t, dir, mps.Idle)
			before.kill(t)
			declares(t, dir, mps.Undeclared)
			d := plugin(dir, test.prepared)
			test.knows(t, d)
			declares(t, dir, test.want)
			if started := !d.started.IsZero(); started != test.started {
				t.Errorf("it waits for daemons that were started now: %t, want %t", started, test.started)
			}
			d.kill(t)
		})
	}
}

// The node comes to use MPS, and leaves it. Nothing is withdrawn before the next is declared, so a plugin that
// is killed on the way leaves the one or the other.
func TestDemandChanges(t *testing.T) {
	dir := &recordingDir{Dir: mps.Dir(t.TempDir())}
	d := plugin(dir.Dir, nil)
	d.MPS = dir
	other := offers(mode.Share, mode.IsolationNone)
	d.passes(t, other)
	for range 2 {
		if started, err := d.Want(true, false); err != nil || started.IsZero() {
			t.Errorf("daemons were started at %v, %v", started, err)
		}
		d.passes(t, offers(mode.MPS, mode.IsolationMPS))
		declares(t, dir.Dir, mps.InUse)
		if started, err := d.Want(false, false); err != nil || started.IsZero() {
			t.Errorf("daemons were started at %v, %v", started, err)
		}
		d.passes(t, other)
		declares(t, dir.Dir, mps.Idle)
	}
	d.kill(t)
	want := []string{"+idle", "+in-use", "-idle", "+idle", "-in-use", "+in-use", "-idle", "+idle", "-in-use", "-idle"}
	expect.Equal(t, want, dir.calls, "declared (+) and withdrawn (-)")
}

// recordingDir keeps what is declared and withdrawn, in its order.
type recordingDir struct {
	mps.Dir
	calls []string
}

func (r *recordingDir) Declare(what mps.Declaration) (func() error, error) {
	r.calls = append(r.calls, "+"+string(what))
	withdraw, err := r.Dir.Declare(what)
	return func() error {
		r.calls = append(r.calls, "-"+string(what))
		return withdraw()
	}, err
}

// A claim that another instance of the plugin has prepared counts, though this one has declared the node idle.
func TestClaimByMPSOnAnIdleNode(t *testing.T) {
	dir := mps.Dir(t.TempDir())
	d := plugin(dir, nil)
	d.passes(t, offers(mode.Share, mode.IsolationNone))
	declares(t, dir, mps.Idle)
	d.Claims.(*claims).prepared = []state.Record{share(mode.IsolationMPS)}
	d.passes(t, offers(mode.Share, mode.IsolationNone))
	declares(t, dir, mps.InUse)
	d.kill(t)
}
