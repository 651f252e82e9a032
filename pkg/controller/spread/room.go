// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"cmp"
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// share is what claims take of one GPU beside what is allocated of it.
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
	ctx context.Context, pods []scheduling.Pod, needed int, after string,
) (rooms []room, next string, err error) {
	s, err := t.letGo(ctx, pods, after)
	if err != nil || len(s.Nodes) == 0 {
		return nil, after, err
	}
	placed, err := t.Engine.Place(ctx, s, pods)
	if err != nil {
		return nil, after, err
	}
	asked := map[device]gpu.Amount{}
	for i, p := range placed {
		if p.Node == "" {
			continue
		}
		needed--
		for _, allocation := range p.Allocations {
			add(asked, allocation.Devices.Results)
		}
		if !slices.ContainsFunc(rooms, func(r room) bool { return r.node == p.Node }) {
			waits := slices.IndexFunc(pods[i].Claims, isWaiting)
			rooms = append(rooms, room{node: p.Node, claim: pods[i].Claims[waits].UID})
		}
	}
	if needed > 0 {
		return nil, s.Nodes[len(s.Nodes)-1].Name, nil
	}
	allocated := allocatedOf(s.Claims)
	for i := range rooms {
		r := &rooms[i]
		for _, d := range slices.SortedFunc(maps.Keys(asked), func(a, b device) int { return cmp.Compare(a.name, b.name) }) {
			indices, _, err := devices.ParseDeviceName(d.name)
			if err == nil && len(indices) == 1 && d.pool == v1alpha1.PoolName(r.node) {
				r.shares = append(r.shares, share{indices[0], allocated[d], asked[d]})
			}
		}
	}
	return rooms, rooms[len(rooms)-1].node, nil
}

func isWaiting(c *resourceapi.ResourceClaim) bool { return c.Status.Allocation == nil }

// letGo is the cluster of the nodes that spread shares and take one of the pods, with nothing held back: some of those
// that come after one, and on each the devices first of which the least is allocated.
func (t *teller) letGo(ctx context.Context, pods []scheduling.Pod, after string) (scheduling.Snapshot, error) {
	s := scheduling.Snapshot{Classes: t.classes.List()}
	rules, _, err := cache.DeviceTaintRules(ctx, t.Client)
	if err != nil && !apierrors.IsForbidden(err) {
		return s, err
	}
	may := make([]scheduling.Where, len(pods))
	for i, p := range pods {
		if may[i], err = scheduling.Possible(p.Pod, p.Claims); err != nil {
			return s, err
		}
	}
	takesOne := func(node *corev1.Node) bool {
		for i, p := range pods {
			if scheduling.ClosedTo(ctx, node, p.Pod, may[i]).By == scheduling.Open {
				return true
			}
		}
		return false
	}
	for _, name := range t.namesAfter(after) {
		node, exists := t.nodes.Get(name)
		newest, whole := view.Newest(name, t.slices.OnNode(name))
		if !exists || !whole || !takesOne(node.Node()) {
			continue
		}
		offered, err := view.ForAllocator(name, newest)
		if err != nil {
			return s, err
		}
		s.Nodes, s.Slices = append(s.Nodes, node.Node()), append(s.Slices, offered...)
		s.Claims = append(s.Claims, t.claims.OnNode(name)...)
		if len(s.Nodes) == nodesMost {
			break
		}
	}
	allocated := allocatedOf(s.Claims)
	for _, slice := range s.Slices {
		slices.SortStableFunc(slice.Spec.Devices, func(a, b resourceapi.Device) int {
			of := func(d resourceapi.Device) int64 { return allocated[device{slice.Spec.Pool.Name, d.Name}].Units }
			return cmp.Compare(of(a), of(b))
		})
	}
	s.Slices = scheduling.WithRules(s.Slices, rules)
	return s, nil
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

// device is one of a node's pool.
type device struct{ pool, name string }

func allocatedOf(claims []*resourceapi.ResourceClaim) map[device]gpu.Amount {
	sum := map[device]gpu.Amount{}
	for _, claim := range claims {
		add(sum, claim.Status.Allocation.Devices.Results)
	}
	return sum
}

// add adds up the shares that were allocated.
func add(sum map[device]gpu.Amount, results []resourceapi.DeviceRequestAllocationResult) {
	for _, r := range results {
		if r.Driver != v1alpha1.DriverName || r.ShareID == nil || ptr.Deref(r.AdminAccess, false) {
			continue
		}
		d, memory := device{r.Pool, r.Device}, r.ConsumedCapacity[v1alpha1.CapMemory]
		sum[d] = gpu.Amount{Units: sum[d].Units + memory.Value()/devices.GiB, Shares: sum[d].Shares + 1}
	}
}
