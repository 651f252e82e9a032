// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
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
		if err := n.Unprepare(t.Context(), "u1"); err != nil || len(h.opened) > 0 {
			t.Errorf("after Unprepare the host has %v: %v", h.opened, err)
		}
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
	expect.NoError(t, n.Unprepare(t.Context(), "u1"))
	// A later version's.
	n.options.Isolation = isolation.NewRegistry(isolation.Config{})
	r := state.Record{Phase: state.Prepared, UID: "u3", Namespace: "team", Name: "c", CDISpec: cdi.SpecName("u3"),
		Grants: recordedGrants(t, n), Effects: []state.Effect{{Name: "partition", GPU: "GPU-0"}}}
	expect.NoError(t, n.options.Store.Put(r))
	expect.Error(t, n.Unprepare(t.Context(), "u3"), `"partition"`)
}

func recordedGrants(t *testing.T, n *node) []claim.Grant {
	t.Helper()
	n.takes(t, wholeGPUs("u9", 1))
	return n.recordOf(t, "u9").Grants
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
			records := n.records(t)
			expect.Equal(t, want, records[0].Effects, "effects")
			if slices.ContainsFunc(records, func(r state.Record) bool { return r.Version != state.Version }) {
				t.Error("an earlier version could not read the record")
			}
			expect.NoError(t, n.Unprepare(t.Context(), "u1"))
		})
	}
}
