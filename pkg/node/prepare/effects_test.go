// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/cdi"
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

// restart is node's, on the same host, with a plugin that lives.
func (h *host) restart(t *testing.T, n *node) {
	t.Helper()
	n.restart(t)
	h.killer = &killer{}
	n.options.Isolation = h
}

// Wherever a process is killed, what the next one finds changed on the host is of claims that are prepared.
func TestEffectsOfAKilledPreparationAreUndone(t *testing.T) {
	operations := map[string]func(context.Context, *node) error{
		"prepare": func(ctx context.Context, n *node) error {
			_, err := n.Prepare(ctx, wholeGPUs("u1", 2, 0))
			return err
		},
		"unprepare": func(ctx context.Context, n *node) error { return n.Unprepare(ctx, "u1") },
	}
	for name, operation := range operations {
		for step, dead := 1, true; dead; step++ {
			t.Run(fmt.Sprintf("%s/%d", name, step), func(t *testing.T) {
				_, ctx := ktesting.NewTestContext(t)
				n, h := openingNode(t)
				if name == "unprepare" {
					if _, err := n.Prepare(ctx, wholeGPUs("u1", 2, 0)); err != nil {
						t.Fatal(err)
					}
				}
				h.killer = &killer{countdown: step}
				n.options.Store = mortalStore{n.options.Store.(nodeStore), n.stateDir, h.killer}
				n.options.Specs = mortalSpecs{cdi.Dir(n.cdiDir), h.killer}
				var err error
				if dead = runUntilKilled(func() { err = operation(ctx, n) }); err != nil {
					t.Fatal(err)
				}
				h.restart(t, n)
				if err := n.Recover(ctx); err != nil {
					t.Fatal(err)
				}
				records, err := n.Prepared(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if len(records) == 0 && len(h.opened) > 0 {
					t.Errorf("nothing is prepared, and the host has %v", h.opened)
				}
				if err := n.Unprepare(ctx, "u1"); err != nil || len(h.opened) > 0 {
					t.Errorf("after Unprepare the host has %v: %v", h.opened, err)
				}
			})
		}
	}
}

// What cannot be undone keeps its record, and with it what the claim holds.
func TestEffectsThatCannotBeUndone(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n, h := openingNode(t)
	if _, err := n.Prepare(ctx, wholeGPUs("u1", 0)); err != nil {
		t.Fatal(err)
	}
	h.stuck = errors.New("busy")
	if err := n.Unprepare(ctx, "u1"); !errors.Is(err, h.stuck) {
		t.Errorf("unprepared: %v", err)
	}
	if _, err := n.Prepare(ctx, wholeGPUs("u2", 0)); err == nil || !strings.Contains(err.Error(), "promised twice") {
		t.Errorf("another claim for the GPU: %v", err)
	}
	h.stuck = nil
	if err := n.Unprepare(ctx, "u1"); err != nil {
		t.Error(err)
	}
	// A later version's.
	n.options.Isolation = &isolation.Registry{}
	r := state.Record{Phase: state.Prepared, UID: "u3", Namespace: "team", Name: "c", CDISpec: cdi.SpecName("u3"),
		Grants: recordedGrants(t, n), Effects: []state.Effect{{Name: "partition", GPU: "GPU-0"}}}
	if err := n.options.Store.Put(r); err != nil {
		t.Fatal(err)
	}
	if err := n.Unprepare(ctx, "u3"); err == nil || !strings.Contains(err.Error(), `"partition"`) {
		t.Errorf("an effect of which nothing is known: %v", err)
	}
}

func recordedGrants(t *testing.T, n *node) []claim.Grant {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	if _, err := n.Prepare(ctx, wholeGPUs("u9", 1)); err != nil {
		t.Fatal(err)
	}
	records, err := n.Prepared(ctx)
	if err != nil || len(records) != 1 {
		t.Fatalf("%v, %v", records, err)
	}
	return records[0].Grants
}

// The record of a claim that uses MPS names that, and no other does.
func TestEffectsOfMPS(t *testing.T) {
	for device, want := range map[string][]state.Effect{
		"gpu-0-mps": {{Name: "mps-client", GPU: "GPU-0"}}, "gpu-0-cgpu": nil, "gpu-0-share": nil,
	} {
		t.Run(device, func(t *testing.T) {
			_, ctx := ktesting.NewTestContext(t)
			c := on(sharesOf("u1", 0, 2, 1), device, device)
			n := limitedNode(t, []*resourceapi.ResourceClaim{c})
			if _, err := n.Prepare(ctx, c); err != nil {
				t.Fatal(err)
			}
			records, err := n.Prepared(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, records[0].Effects); diff != "" {
				t.Errorf("effects (-want +got):\n%s", diff)
			}
			if slices.ContainsFunc(records, func(r state.Record) bool { return r.Version != state.Version }) {
				t.Error("an earlier version could not read the record")
			}
			if err := n.Unprepare(ctx, "u1"); err != nil {
				t.Error(err)
			}
		})
	}
}
