// SPDX-License-Identifier: Apache-2.0

package mpsdemand

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

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
		Card: claim.Card{UUID: "GPU-0", MemoryMiB: 16130}, Units: 2, Config: v1alpha1.Default()}}}
}

func TestUses(t *testing.T) {
	alone, largest := mps.Use{Reserved: true}, mps.Limits{MemoryMiB: 2150, ThreadPercent: 100}
	others := offers(mode.MPS, isolation.NameMPS)
	others.Others = map[string]bool{"GPU-1": true}
	for name, test := range map[string]struct {
		offered Offered
		records []state.Record
		// own are the uses of the GPUs' own daemons, node those of the one for all.
		own, node [2]mps.Use
	}{
		"another mode":              {offered: offers(mode.Share, isolation.NameNone)},
		"MPS":                       {offered: offers(mode.MPS, isolation.NameMPS), own: [2]mps.Use{alone, alone}},
		"one daemon":                {offered: offers(mode.MPS, isolation.NameMPSNode), node: [2]mps.Use{alone, alone}},
		"a GPU of another driver's": {offered: others, own: [2]mps.Use{alone}},
		"dynamic":                   {offered: offers(mode.Dynamic, isolation.NameMPS)},
		"dynamic, with a claim": {offered: offers(mode.Dynamic, isolation.NameMPS),
			records: []state.Record{share(isolation.NameMPS)}, own: [2]mps.Use{{Claimed: true, Limits: largest}}},
		"a claim by the other daemon": {offered: offers(mode.MPS, isolation.NameMPS),
			records: []state.Record{share(isolation.NameMPSNode)}, own: [2]mps.Use{alone, alone},
			node: [2]mps.Use{{Claimed: true, Limits: largest}}},
		"a claim without limits": {offered: offers(mode.Share, isolation.NameNone),
			records: []state.Record{share(isolation.NameNone)}},
	} {
		t.Run(name, func(t *testing.T) {
			backends := isolation.NewRegistry(isolation.Config{MPSDir: t.TempDir(), CGPUProc: "/proc/no_such_module"})
			got, err := test.offered.uses(backends, test.records)
			if err != nil {
				t.Fatal(err)
			}
			want := map[daemonGPU]mps.Use{{"GPU-0", false}: test.own[0], {"GPU-1", false}: test.own[1],
				{"GPU-0", true}: test.node[0], {"GPU-1", true}: test.node[1]}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(daemonGPU{})); diff != "" {
				t.Errorf("uses (-want +got):\n%s", diff)
			}
		})
	}
}

// claims are none, and known says why that may not be so.
type claims struct{ known func() error }

func (*claims) Prepared(context.Context) ([]state.Record, error) { return nil, nil }

func (*claims) WithNodeLocked(_ context.Context, do func([]state.Record) error) error {
	return do(nil)
}

func (c *claims) Known(context.Context) error { return c.known() }

// What a node asks for, or publishes, while it is looked whether anything uses MPS, keeps the
// daemons.
func TestDaemonsThatAreWantedMeanwhile(t *testing.T) {
	for name, test := range map[string]struct {
		meanwhile  func(d *Demand) error
		want, node bool
	}{
		"nothing": {meanwhile: func(*Demand) error { return nil }},
		"asked for": {meanwhile: func(d *Demand) error {
			_, err := d.Want(true, true)
			return err
		}, want: true, node: true},
		"published": {meanwhile: func(d *Demand) error {
			d.Publishes(offers(mode.MPS, isolation.NameMPSNode))
			return nil
		}, want: true, node: true},
		"not known": {meanwhile: func(*Demand) error { return errors.New("lost") }, want: true, node: true},
		"one for each is asked for": {meanwhile: func(d *Demand) error {
			_, err := d.Want(true, false)
			return err
		}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := mps.Dir(t.TempDir())
			registry := isolation.NewRegistry(isolation.Config{MPSDir: string(dir), CGPUProc: "/proc/no_such_module"})
			d := New(Options{MPS: dir, Isolation: registry, Clock: clocktesting.NewFakeClock(time.Unix(0, 0))})
			d.Claims = &claims{known: func() error { return test.meanwhile(d) }}
			if err := dir.WantNodeDaemon(true); err != nil {
				t.Fatal(err)
			}
			d.Publishes(offers(mode.Share, isolation.NameNone))
			if _, err := d.Pass(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, err := dir.Needed(); err != nil || got != test.want {
				t.Errorf("the daemons are needed: %t, %v, want %t", got, err, test.want)
			}
			if got, err := dir.NodeDaemonWanted(); err != nil || got != test.node {
				t.Errorf("the daemon for all GPUs is wanted: %t, %v, want %t", got, err, test.node)
			}
		})
	}
}
