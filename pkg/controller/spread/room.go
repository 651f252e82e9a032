// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// share is what a claim takes of one GPU beside what is allocated of it.
type share struct {
	index            int
	allocated, asked gpu.Amount
}

func (s share) needed() placement.Needed {
	return placement.Needed{
		Index: s.index, GiB: s.allocated.Units + s.asked.Units, Shares: s.allocated.Shares + s.asked.Shares,
	}
}

// room is a node on which claims fit if nothing is held back, what they take of its GPUs, and
// one of them.
type room struct {
	node   string
	shares []share
	claim  types.UID
}

// room finds a node whose shares are spread and on which a pod's claims fit if nothing is
// held back; for the pods of a gang, nodes on which they fit together, or as many of them as
// are needed. It is empty where there is no such room, or none was found with some effort. It looks at the
// nodes that come after one, and returns after which to begin the next time.
func (t *teller) room(
	ctx context.Context, pods []*seeker, needed int, after string,
) (rooms []room, next string, err error) {
	rules, _, err := cache.DeviceTaintRules(ctx, t.Client)
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, after, err
	}
	left, looked, effort := slices.Clone(pods), 0, scheduling.NewEffort(effortMost)
	needed, next = min(needed, len(pods)), after
	for _, name := range t.namesAfter(after) {
		node := t.node(name)
		here := openTo(ctx, node, left)
		if len(here) == 0 {
			continue
		}
		if looked++; looked > nodesMost {
			break
		}
		next = name
		fit, found, err := t.most(ctx, node, here, rules, effort)
		if err != nil {
			return nil, next, err
		}
		if fit > 0 {
			rooms = append(rooms, room{name, found, here[0].claims[0].UID})
			left = slices.DeleteFunc(left, func(s *seeker) bool { return slices.Contains(here[:fit], s) })
			needed -= fit
		}
		if len(left) == 0 {
			break
		}
	}
	if needed > 0 {
		return nil, next, nil
	}
	return rooms, rooms[len(rooms)-1].node, nil
}

// openTo are those of the pods that the node takes; nil takes none.
func openTo(ctx context.Context, node *corev1.Node, pods []*seeker) []*seeker {
	return slices.DeleteFunc(slices.Clone(pods), func(s *seeker) bool {
		return node == nil || scheduling.ClosedTo(ctx, node, s.pod, s.may).By != scheduling.Open
	})
}

// namesAfter are the nodes whose shares are spread, those first that come after a name. Those on which
// something goes on come last: they keep a pod, or a gang, from no others.
func (t *teller) namesAfter(name string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	names := slices.Sorted(maps.Keys(t.changed))
	i, found := slices.BinarySearch(names, name)
	if found {
		i++
	}
	var calm, busy []string
	for _, name := range slices.Concat(names[i:], names[:i]) {
		if t.Clock.Since(t.changed[name]) < quiet {
			busy = append(busy, name)
		} else {
			calm = append(calm, name)
		}
	}
	return slices.Concat(calm, busy)
}

// most is for how many of the pods, those first that come first, the node has room, and what
// these take of its GPUs.
func (t *teller) most(
	ctx context.Context, node *corev1.Node, pods []*seeker, rules []*resourceapi.DeviceTaintRule,
	effort *scheduling.Effort,
) (fit int, found []share, err error) {
	// All of them first: most gangs fit, or are of one.
	for low, high, n := 0, len(pods), len(pods); n > low; n = (low + high + 1) / 2 {
		var claims []*resourceapi.ResourceClaim
		for _, s := range pods[:n] {
			claims = append(claims, s.claims...)
		}
		shares, err := t.fits(ctx, node, claims, rules, effort)
		if err != nil {
			return 0, nil, err
		}
		if len(shares) == 0 {
			high = n - 1
			continue
		}
		low, fit, found = n, n, shares
	}
	return fit, found, nil
}

func (t *teller) node(name string) *corev1.Node {
	node, exists := t.nodes.Get(name)
	if !exists {
		return nil
	}
	return node.Node()
}

// fits says what claims take of the node's GPUs if nothing is held back, of those first of
// which the least is allocated; nothing if they do not fit.
func (t *teller) fits(
	ctx context.Context, node *corev1.Node, claims []*resourceapi.ResourceClaim, rules []*resourceapi.DeviceTaintRule,
	effort *scheduling.Effort,
) ([]share, error) {
	newest, whole := view.Newest(node.Name, t.slices.OnNode(node.Name))
	if !whole {
		return nil, nil
	}
	allocated := map[string]gpu.Amount{}
	others := t.claims.OnNode(node.Name)
	for _, claim := range others {
		add(allocated, claim.Status.Allocation.Devices.Results)
	}
	offered, err := slicesOf(node.Name, newest, allocated)
	if err != nil {
		return nil, err
	}
	allocator, err := t.Engine.Allocator(ctx, scheduling.Snapshot{Slices: scheduling.WithRules(offered, rules),
		Claims: others, Classes: t.classes.List()}, nil)
	if err != nil {
		return nil, fmt.Errorf("allocate from node %s: %w", node.Name, err)
	}
	found, _, err := allocator.Fit(ctx, node, claims, effort)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, scheduling.ErrUnsearched):
		klog.FromContext(ctx).Info("Room for a pod on a node that spreads shares was not searched to the end", "node",
			node.Name, "claim", klog.KObj(claims[0]), "reason", err)
		return nil, nil
	case err != nil:
		// A claim that nobody can allocate is for the scheduler to tell of.
		return nil, nil
	}
	asked := map[string]gpu.Amount{}
	for _, allocation := range found {
		add(asked, allocation.Devices.Results)
	}
	var shares []share
	for _, device := range slices.Sorted(maps.Keys(asked)) {
		if indices, _, err := devices.ParseDeviceName(device); err == nil && len(indices) == 1 {
			shares = append(shares, share{indices[0], allocated[device], asked[device]})
		}
	}
	return shares, nil
}

// add adds up the shares that were allocated, by device.
func add(sum map[string]gpu.Amount, results []resourceapi.DeviceRequestAllocationResult) {
	for _, r := range results {
		if r.Driver != v1alpha1.DriverName || r.ShareID == nil || ptr.Deref(r.AdminAccess, false) {
			continue
		}
		memory, had := r.ConsumedCapacity[v1alpha1.CapMemory], sum[r.Device]
		sum[r.Device] = gpu.Amount{Units: had.Units + memory.Value()/devices.GiB, Shares: had.Shares + 1}
	}
}

// slicesOf are a pool's slices as the allocator wants them, with nothing held back, the
// devices first of which the least is allocated.
func slicesOf(
	node string, pool []*view.Slice, allocated map[string]gpu.Amount,
) ([]*resourceapi.ResourceSlice, error) {
	out, err := view.ForAllocator(node, pool)
	for _, s := range out {
		slices.SortStableFunc(s.Spec.Devices, func(a, b resourceapi.Device) int {
			return cmp.Compare(allocated[a.Name].Units, allocated[b.Name].Units)
		})
	}
	return out, err
}
