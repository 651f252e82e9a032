// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	gpuclaim "github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling/offer"
)

// offering is what a node offers.
type offering struct {
	// from are the slices that it was read from; shapes are what they offer, offered the devices of each, published are
	// they as the allocator takes them, with the taints of rules.
	from      []*view.Slice
	shapes    []view.Shape
	offered   [][]resourceapi.Device
	published []*resourceapi.ResourceSlice
	offer     offer.GPUs
}

// node is what is left of a node, beside its pods and those that are promised to it.
type node struct {
	*corev1.Node
	*offering
	// claims are those that are allocated some of it, and what is promised; beside is what it has beside devices.
	claims []*resourceapi.ResourceClaim
	beside scheduling.NodeResources
	// version is that of the fleet when the node was read last.
	version uint64
}

// promise is a pod that is to be on a node: it counts there before the scheduler has placed it.
type promise struct {
	uid       types.UID
	node      string
	allocated []resourceapi.AllocationResult
	requests  corev1.ResourceList
	// until is when it is forgotten, once the pod is on the node; the cache shows its claims by then.
	until time.Time
}

// classes are the DeviceClasses, at a version.
type classes struct {
	all     []*resourceapi.DeviceClass
	of      func(corev1.ResourceName) *resourceapi.DeviceClass
	version uint64
}

// fleet is the cluster's nodes, each of which is read again when something of it has changed.
type fleet struct {
	caches cache.Cluster
	pods   cache.Live

	mu    sync.Mutex
	dirty map[string]bool
	// changes counts those of the DeviceClasses.
	changes uint64

	// What follows is for one goroutine at a time. version counts the changes, shaped those of what is offered, by which
	// classes, and reads the nodes that were read.
	version, shaped, reads uint64
	classes                classes
	known                  map[string]*node
	promises               map[types.UID]promise
	promised               map[string]map[types.UID]bool // by node
	rules                  []*resourceapi.DeviceTaintRule
	pools                  *view.Pools
	index                  *score.Index
}

func newFleet(c *cache.Reader) *fleet {
	return &fleet{caches: c.Cluster(), pods: c.LivePods(), changes: 1, dirty: map[string]bool{},
		known: map[string]*node{}, promises: map[types.UID]promise{}, promised: map[string]map[types.UID]bool{},
		pools: view.NewPools(false), index: score.New()}
}

// watch has noted which nodes change, and calls changed for each.
func (f *fleet) watch(changed func()) {
	note := func(name string) {
		f.changed(name)
		changed()
	}
	f.caches.Nodes.On(cache.Noting(func(n *cache.Node) { note(n.Name) }, cache.SameVersion))
	f.caches.Slices.OnChange(note)
	ofClaim := func(c *resourceapi.ResourceClaim) { note(gpuclaim.AllocatedFrom(c)) }
	f.caches.Claims.On(cache.Handler[*resourceapi.ResourceClaim]{Seen: ofClaim, Gone: ofClaim,
		Changed: func(before, after *resourceapi.ResourceClaim) {
			if !cache.SameVersion(before, after) {
				f.changed(gpuclaim.AllocatedFrom(before))
				ofClaim(after)
			}
		}})
	f.pods.On(cache.Noting(func(pod *corev1.Pod) { note(pod.Spec.NodeName) }, func(before, after *corev1.Pod) bool {
		return before.Spec.NodeName == after.Spec.NodeName &&
			equality.Semantic.DeepEqual(before.Spec.Resources, after.Spec.Resources)
	}))
	f.caches.Classes.On(cache.Noting(func(*resourceapi.DeviceClass) {
		f.mu.Lock()
		f.changes++
		f.mu.Unlock()
		changed()
	}, cache.SameVersion))
}

// classesOf are the DeviceClasses as they are now.
func (f *fleet) classesOf() classes {
	f.mu.Lock()
	changes := f.changes
	f.mu.Unlock()
	if f.classes.version != changes {
		all := f.caches.Classes.List()
		f.classes = classes{all, scheduling.ClassOf(all), changes}
		f.version++
		f.shaped++
	}
	return f.classes
}

// poolsMost is how many nodes' slices are decoded until what they share is forgotten: shapes that are published no
// more would be kept.
const poolsMost = 10_000

// changed notes that a node is to be read again.
func (f *fleet) changed(name string) {
	if name == "" {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dirty[name] = true
}

// setRules has the nodes read with other DeviceTaintRules, if these are others.
func (f *fleet) setRules(rules []*resourceapi.DeviceTaintRule) {
	if slices.EqualFunc(f.rules, rules, func(a, b *resourceapi.DeviceTaintRule) bool {
		return a.UID == b.UID && a.ResourceVersion == b.ResourceVersion
	}) {
		return
	}
	f.rules = rules
	for name, n := range f.known {
		again := *n.offering
		again.from = nil
		n.offering = &again
		f.changed(name)
	}
}

// refresh reads the nodes that have changed.
func (f *fleet) refresh() error {
	f.classesOf()
	f.mu.Lock()
	dirty := f.dirty
	f.dirty = map[string]bool{}
	f.mu.Unlock()
	if len(dirty) == 0 {
		return nil
	}
	f.version++
	for name := range dirty {
		if err := f.read(name); err != nil {
			f.changed(name)
			return err
		}
	}
	return nil
}

// read reads a node.
func (f *fleet) read(name string) error {
	of, there := f.caches.Nodes.Get(name)
	newest, whole := view.Newest(name, f.caches.Slices.OnNode(name))
	if !there || !whole {
		delete(f.known, name)
		f.index.Delete(name)
		return nil
	}
	// The index has them in any order, and a node is read again when its slices are others.
	slices.SortFunc(newest, func(a, b *view.Slice) int { return cmp.Compare(a.Name, b.Name) })
	offering, err := f.offering(name, newest)
	if err != nil {
		return err
	}
	n := &node{Node: of.Node(), offering: offering, claims: f.caches.Claims.OnNode(name),
		beside: scheduling.NodeResources{Allocatable: of.Allocatable}, version: f.version}
	// Of the promised pods alone, which are few: the node may have a hundred others.
	placed, reserved := map[types.UID]bool{}, map[types.UID]bool{}
	for _, pod := range f.pods.OnNode(name) {
		n.beside.Add(pod.Spec.Resources.Requests)
		if f.promised[name][pod.UID] {
			placed[pod.UID] = true
		}
	}
	for _, claim := range n.claims {
		for _, user := range claim.Status.ReservedFor {
			if f.promised[name][user.UID] {
				reserved[user.UID] = true
			}
		}
	}
	for uid := range f.promised[name] {
		if placed[uid] && reserved[uid] {
			f.forget(uid, name) // the caches show it all
			continue
		}
		p := f.promises[uid]
		if !reserved[uid] {
			for i := range p.allocated {
				n.claims = append(n.claims, &resourceapi.ResourceClaim{
					Status: resourceapi.ResourceClaimStatus{Allocation: &p.allocated[i]}})
			}
		}
		if !placed[uid] {
			n.beside.Add(p.requests)
		}
	}
	f.known[name] = n
	cpu, memory := n.beside.Left(corev1.ResourceCPU), n.beside.Left(corev1.ResourceMemory)
	f.index.Set(name, score.Node{CPU: cpu.MilliValue(), Memory: memory.Value(), GPUs: n.offer.Left(n.claims)})
	return nil
}

// offering is what a node offers by its slices, as it was read before where these are the same.
func (f *fleet) offering(name string, newest []*view.Slice) (*offering, error) {
	was := f.known[name]
	if was != nil && slices.Equal(was.from, newest) {
		return was.offering, nil
	}
	if f.reads++; f.reads%poolsMost == 0 {
		f.pools = view.NewPools(false)
	}
	published, err := f.pools.ForAllocator(name, newest)
	if err != nil {
		return nil, fmt.Errorf("read what node %s offers: %w", name, err)
	}
	o := &offering{from: newest, published: scheduling.WithRules(published, f.rules)}
	o.offer = offer.Of(o.published)
	for i, slice := range newest {
		o.shapes, o.offered = append(o.shapes, slice.Shape), append(o.offered, published[i].Spec.Devices)
	}
	if was == nil || !slices.Equal(was.shapes, o.shapes) {
		f.shaped++
	}
	return o, nil
}

// offers are the devices that nodes offer, by shape, those of nodes that are alike once.
func (f *fleet) offers() (shapes []view.Shape, offered [][]resourceapi.Device) {
	seen := map[view.Shape]bool{}
	for _, name := range slices.Sorted(maps.Keys(f.known)) {
		n := f.known[name]
		for i, shape := range n.shapes {
			if !seen[shape] {
				seen[shape], shapes, offered = true, append(shapes, shape), append(offered, n.offered[i])
			}
		}
	}
	return shapes, offered
}

// searched are the slices that the node publishes, as far as an allocator needs them which looks for what a question
// asks for: what is taken counts, also of others.
func (n *node) searched(q question) []*resourceapi.ResourceSlice {
	taken, closed := map[string]bool{}, n.offer.Closed(n.claims)
	for _, claim := range n.claims {
		for _, of := range claim.Status.Allocation.Devices.Results {
			taken[of.Device] = true
		}
	}
	out := make([]*resourceapi.ResourceSlice, len(n.published))
	for i, slice := range n.published {
		rest := *slice
		rest.Spec.Devices = without(slice.Spec.Devices, func(j int) bool {
			name := slice.Spec.Devices[j].Name
			return !taken[name] && (q.isForeign(n.shapes[i], j) || q.ranked && closed(name))
		})
		out[i] = &rest
	}
	return out
}

// without are those of devices that are not left out.
func without(devices []resourceapi.Device, leftOut func(int) bool) []resourceapi.Device {
	var out []resourceapi.Device
	for i := range devices {
		if !leftOut(i) {
			out = append(out, devices[i])
		}
	}
	return out
}

// placedAsks are what the pods on nodes asked for, the oldest first.
func (f *fleet) placedAsks() []score.Ask {
	var all []offer.Placed
	for name, n := range f.known {
		all = append(all, n.offer.Placed(f.pods.OnNode(name), f.caches.Claims.OnNode(name))...)
	}
	return offer.Asks(all)
}

// promise has a pod counted on a node, or no more where the node is empty.
func (f *fleet) promise(p promise) {
	if was, is := f.promises[p.uid]; is {
		f.changed(was.node)
		f.forget(p.uid, was.node)
	}
	if p.node == "" {
		return
	}
	f.changed(p.node)
	if f.promised[p.node] == nil {
		f.promised[p.node] = map[types.UID]bool{}
	}
	f.promises[p.uid], f.promised[p.node][p.uid] = p, true
}

// forget forgets what a pod was promised on a node.
func (f *fleet) forget(uid types.UID, node string) {
	delete(f.promises, uid)
	if delete(f.promised[node], uid); len(f.promised[node]) == 0 {
		delete(f.promised, node)
	}
}

// placed has a pod that has a node count there for as long as the cache may not show its claims, and nowhere else.
func (f *fleet) placed(pod *corev1.Pod, until time.Time) {
	p, is := f.promises[pod.UID]
	switch {
	case !is:
	case p.node != pod.Spec.NodeName:
		f.promise(promise{uid: pod.UID})
	case p.until.IsZero():
		p.until = until
		f.promises[pod.UID] = p
	}
}

// settle forgets what was promised to pods that are on their nodes.
func (f *fleet) settle(now time.Time) {
	for uid, p := range f.promises {
		if !p.until.IsZero() && now.After(p.until) {
			f.promise(promise{uid: uid})
		}
	}
}

// changedSince reports whether a node has changed since a version of the fleet.
func (f *fleet) changedSince(name string, version uint64) bool {
	n := f.known[name]
	return n == nil || n.version > version
}

// closed reports whether a node takes no such pod, whatever is left of its GPUs.
func (f *fleet) closed(ctx context.Context, n *node, pod *corev1.Pod, may scheduling.Where,
	requests corev1.ResourceList) bool {
	byDevices := func(name corev1.ResourceName) bool { return f.classes.of(name) != nil }
	return scheduling.ClosedTo(ctx, n.Node, pod, may).By != scheduling.Open ||
		len(n.beside.Short(requests, byDevices)) > 0
}
