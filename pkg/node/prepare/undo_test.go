// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// host is what back ends have changed on a node, which outlives the plugin: each GPU is opened once.
type host struct {
	isolation.Backends
	opened map[string]bool
	*killer
	stuck error
}

// For and ByName return back ends that open each GPU of a claim.
func (h *host) For(m mode.Mode) (isolation.Backend, error) {
	b, err := h.Backends.For(m)
	return opener{b, h}, err
}

func (h *host) ByName(name string) (isolation.Backend, error) {
	b, err := h.Backends.ByName(name)
	return opener{b, h}, err
}

func (h *host) Undo(e isolation.Effect) error {
	h.point()
	if e.Name != "open" {
		return h.Backends.Undo(e)
	}
	if h.stuck != nil {
		return h.stuck
	}
	delete(h.opened, e.GPU)
	h.point()
	return nil
}

type opener struct {
	isolation.Backend
	host *host
}

func (o opener) Effects(r isolation.Group) []isolation.Effect {
	var out []isolation.Effect
	for _, g := range r.Grants {
		out = append(out, isolation.Effect{Name: "open", GPU: g.GPU.UUID})
	}
	return out
}

func (o opener) SetUp(_ context.Context, r isolation.Group) error {
	for _, g := range r.Grants {
		o.host.point()
		o.host.opened[g.GPU.UUID] = true
		o.host.point()
	}
	return nil
}

// openingNode is a node whose back ends open GPUs.
func openingNode(t *testing.T) (*node, *host) {
	t.Helper()
	n := newNode(t)
	h := &host{Backends: n.options.Isolation, opened: map[string]bool{}, killer: &killer{}}
	n.options.Isolation = h
	return n, h
}

// Wherever a process is killed, what the next one finds changed on the host is of claims that are prepared.
func TestEffectsOfAKilledPreparationAreUndone(t *testing.T) {
	var h *host
	opening := func(t *testing.T) (n *node) {
		n, h = openingNode(t)
		return n
	}
	mortal := func(n *node, k *killer) { h.killer, n.options.Isolation = k, h }
	killedAtEachStep(t, wholeGPUs("u1", 2, 0), opening, mortal, func(t *testing.T, n *node, _ string) {
		if len(n.records(t)) == 0 && len(h.opened) > 0 {
			t.Errorf("nothing is prepared, and the host has %v", h.opened)
		}
		n.givesBack(t, "u1")
		expect.Equal(t, map[string]bool{}, h.opened, "opened on the host after Unprepare")
	})
}

// What cannot be undone keeps its record, and with it what the claim holds.
func TestEffectsThatCannotBeUndone(t *testing.T) {
	n, h := openingNode(t)
	n.takes(t, wholeGPUs("u1", 0))
	h.stuck = errors.New("busy")
	expect.ErrorIs(t, n.Unprepare(t.Context(), "u1"), h.stuck)
	n.refuses(t, wholeGPUs("u2", 0), "promised twice")
	h.stuck = nil
	n.givesBack(t, "u1")
	// A later version's.
	n.options.Isolation = isolation.NewRegistry(isolation.Config{})
	n.takes(t, wholeGPUs("u9", 1))
	r := state.Record{Phase: state.Prepared, UID: "u3", Namespace: "team", Name: "c", CDISpec: cdi.SpecName("u3"),
		Grants: n.recordOf(t, "u9").Grants, Effects: []state.Effect{{Name: "partition", GPU: "GPU-0"}}}
	expect.NoError(t, n.options.Store.Put(r))
	expect.Error(t, n.Unprepare(t.Context(), "u3"), `"partition"`)
}

// The record of a claim that uses MPS names that, and no other does.
func TestEffectsOfMPS(t *testing.T) {
	for device, want := range map[string][]state.Effect{
		"gpu-0-mps": {{Name: "mps-client", GPU: "GPU-0"}}, "gpu-0-cgpu": nil, "gpu-0-share": nil,
	} {
		t.Run(device, func(t *testing.T) {
			c := on(sharesOf("u1", 0, 2, 1), device, device)
			n := limitedNode(t, []*resourceapi.ResourceClaim{c})
			n.takes(t, c)
			r := n.recordOf(t, "u1")
			expect.Equal(t, want, r.Effects, "effects")
			expect.Equal(t, state.Version, r.Version, "the version, which an earlier plugin reads")
			n.givesBack(t, "u1")
		})
	}
}

// fullDisk is a store that counts the writes, of which it has room for so many; files can be removed.
type fullDisk struct {
	Store
	puts, room int
}

func (s *fullDisk) Put(r state.Record) error {
	if s.puts++; s.puts > s.room {
		return fmt.Errorf("write the state: %w", unix.ENOSPC)
	}
	return s.Store.Put(r)
}

// What is taken back is what makes room on a full disk, so nothing has to be written for it.
func TestNothingIsWrittenToTakeAClaimBack(t *testing.T) {
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		// before changes what there is before the claim ends, failed before that is tried again.
		before, failed func(n *node, d *dynamicGPU)
		wantFailure    string
	}{
		"a whole GPU":   {claim: wholeGPUs("a", 0)},
		"an instance":   {claim: instanceClaim("a", oneSlice)},
		"two instances": {claim: instanceClaim("a", oneSlice, elsewhere)},
		"one that is gone": {claim: instanceClaim("a", oneSlice, elsewhere), before: func(n *node, d *dynamicGPU) {
			d.instances = d.instances[1:]
			n.has(d.machine())
		}},
		"one that a program uses": {claim: instanceClaim("a", oneSlice),
			before: func(_ *node, d *dynamicGPU) {
				d.fails = map[string]error{"destroy": fmt.Errorf("destroying: %w", gpu.ErrInstanceInUse)}
			},
			wantFailure: "it stays held until that program ends",
			failed:      func(_ *node, d *dynamicGPU) { d.fails = nil }},
		"the process ends meanwhile": {claim: instanceClaim("a", oneSlice, elsewhere),
			before: func(_ *node, d *dynamicGPU) {
				d.fails = map[string]error{"destroy": fmt.Errorf("destroying: %w", gpu.ErrInstanceInUse)}
			},
			wantFailure: "it stays held until that program ends",
			failed: func(n *node, d *dynamicGPU) {
				d.fails, d.instances = nil, d.instances[1:]
				n.restart(t)
				n.cuts(d)
				n.options.Store = &fullDisk{Store: n.options.Store}
			}},
	} {
		t.Run(name, func(t *testing.T) {
			n, d := cuttingNode(t)
			n.prepared(t, tc.claim)
			n.options.Store = &fullDisk{Store: n.options.Store}
			if tc.before != nil {
				tc.before(n, d)
			}
			if tc.wantFailure != "" {
				expect.Error(t, n.Unprepare(t.Context(), "a"), tc.wantFailure)
				// Nobody is told that the claim lost what is being taken back.
				expect.Equal(t, state.Preparing, n.recordOf(t, "a").Phase, "the record is")
				tc.failed(n, d)
			}
			n.givesBack(t, "a")
			n.leaves(t, d)
		})
	}
}

// A claim whose preparation finds no room for a record leaves nothing, wherever that is.
func TestPreparationOnAFullDiskLeavesNothing(t *testing.T) {
	claim := instanceClaim("a", oneSlice, elsewhere)
	for writes := 0; ; writes++ {
		n, d := cuttingNode(t)
		n.options.Store = &fullDisk{Store: n.options.Store, room: writes}
		_, err := n.Prepare(t.Context(), claim)
		if err == nil {
			if writes < 4 {
				t.Errorf("it writes %d times only: this tests less than it says", writes)
			}
			return
		}
		expect.Error(t, err, "no space left on device")
		n.leaves(t, d)
	}
}
