// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
)

// Room is where a pod finds devices now.
type Room struct {
	// Nodes are all nodes, by name.
	Nodes []NodeRoom
	// Refused is why the scheduler gives up before it has looked at all nodes, or places the pod on none of them; nil
	// if it does not.
	Refused error
	// TooMany is the node at which it gives up because a request for all devices matches more of its devices than a
	// claim can have; empty where it does not.
	TooMany string
}

// ErrUsers is the Room.Refused of a pod one of whose claims takes no more users.
var ErrUsers = fmt.Errorf("%d users, as many as Kubernetes lets a claim have: it takes another when one of them is "+
	"gone", resourceapi.ResourceClaimReservedForMaxSize)

// ErrNoClass is in the Room.Refused of a pod that asks for devices of a class that is missing.
var ErrNoClass = stockallocator.ErrNoClass

// usersFull is an ErrUsers if the pod cannot become a user of one of the claims. The scheduler finds that out when it
// has chosen a node.
func usersFull(pod *corev1.Pod, claims []*resourceapi.ResourceClaim) error {
	for _, c := range claims {
		// Pods that are planned have no UID.
		if len(c.Status.ReservedFor) >= resourceapi.ResourceClaimReservedForMaxSize &&
			(pod.UID == "" || !resourceclaim.IsReservedForPod(pod, c, true)) {
			return fmt.Errorf("claim %s/%s has %w", c.Namespace, c.Name, ErrUsers)
		}
	}
	return nil
}

// NodeRoom is whether a pod finds devices on a node.
type NodeRoom struct {
	Name string
	// GPUs is how many of them the driver offers there.
	GPUs int
	// Closed is what keeps the pod from the node, whatever is free.
	Closed Closed
	// Fits reports whether the scheduler's allocator finds all devices there.
	Fits bool
	// Allocations are what the claims that were not allocated would get there, in their order.
	Allocations []resourceapi.AllocationResult
	// Lacks say why it does not, Farthest is the one that stands most in the way.
	Lacks    []Lack
	Farthest Lack
}

// Open reports whether the pod would get all its devices on the node.
func (n *NodeRoom) Open() bool { return n.Fits && n.Closed.By == Open }

// Devices are those that the claims would get there, by name.
func (n *NodeRoom) Devices() []string {
	names := map[string]bool{}
	for _, allocation := range n.Allocations {
		for _, device := range allocation.Devices.Results {
			names[device.Device] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// Unsearched is the Lack of a node whose search was cut off: whether the pod would get its devices there is not known.
func (n *NodeRoom) Unsearched() (Lack, bool) {
	i := slices.IndexFunc(n.Lacks, func(l Lack) bool { return l.Kind == Unsearched })
	if i < 0 {
		return Lack{}, false
	}
	return n.Lacks[i], true
}

// Unsearched are the Lacks of the nodes that the pod can be on whose search was cut off, where none has room: then it
// is not known whether there is room.
func (r *Room) Unsearched() (lacks []Lack) {
	if r.Refused != nil || r.Fits() {
		return nil
	}
	for _, n := range r.Nodes {
		if lack, is := n.Unsearched(); is && n.Closed.By == Open {
			lacks = append(lacks, lack)
		}
	}
	return lacks
}

// Fits reports whether there is a node on which the pod would get all its devices now.
func (r *Room) Fits() bool {
	return r.Refused == nil && slices.ContainsFunc(r.Nodes, func(n NodeRoom) bool { return n.Open() })
}

// InUse reports whether it is plain that others' use of devices keeps a pod with one request from
// room: a node that the pod can be on has such a device, and on no node anything is unclear. Then
// it could fit, and there is no need of a Survey to find that out.
func (r *Room) InUse(claims []*resourceapi.ResourceClaim) bool {
	unallocated := waitingOf(claims)
	if r.Refused != nil || !trivial(unallocated) || unallocated[0].Spec.Devices.Requests[0].Exactly == nil {
		return false
	}
	used := false
	for _, n := range r.Nodes {
		if n.Fits || slices.ContainsFunc(n.Lacks, func(l Lack) bool { return l.Unclear || l.Err != nil }) {
			return false
		}
		used = used || n.Closed.By == Open && n.Farthest.Step >= Taken && n.Farthest.Step < Suits
	}
	return used
}

// Nearness orders nodes: those with room, those that may have, then those of which most of what is
// asked for is there, then those that are closed to the pod.
func (n *NodeRoom) Nearness() int {
	_, unsearched := n.Unsearched()
	switch {
	case n.Open():
		return 3 * int(Suits)
	case unsearched && n.Closed.By == Open:
		return 3*int(Suits) - 1
	case n.Closed.By == Open:
		return int(Suits) + int(n.Farthest.Step)
	default:
		return int(n.Farthest.Step)
	}
}

// Nearer orders nodes, the nearest first: by Nearness, then by how many devices are missing for the request that stands
// most in the way, then by how much of one of them.
func Nearer(a, b NodeRoom) int {
	return cmp.Or(cmp.Compare(b.Nearness(), a.Nearness()), cmp.Compare(a.Farthest.More, b.Farthest.More),
		a.Farthest.Missing.Cmp(b.Farthest.Missing))
}

// Finder looks for room in one Snapshot, for as many pods as ask. It is for one goroutine at a
// time.
type Finder struct {
	// nodes are all of them, by name, closed what Snapshot.Closed is.
	nodes     []*corev1.Node
	closed    map[string]Closed
	allocator *Allocator
	looker    *looker
}

// NewFinder makes the Finder of a snapshot.
func (e *Engine) NewFinder(ctx context.Context, s Snapshot) (*Finder, error) {
	allocator, err := e.Allocator(ctx, s, nil)
	if err != nil {
		return nil, err
	}
	return &Finder{s.ByName(), s.Closed, allocator, newLooker(s, allocator.held, e.compiled)}, nil
}

// FindRoom is what a new Finder finds on all nodes.
func (e *Engine) FindRoom(ctx context.Context, s Snapshot, pod *corev1.Pod, claims []*resourceapi.ResourceClaim) (
	Room, error) {
	f, err := e.NewFinder(ctx, s)
	if err != nil {
		return Room{}, err
	}
	return f.Find(ctx, pod, claims, EveryNode)
}

// FindLacks is FindRoom for who says what a pod lacks. Where that finds no room it looks again at the nodes that hold
// something back to spread shares: of one on which the pod would fit without that, this is what it lacks.
func (e *Engine) FindLacks(ctx context.Context, s Snapshot, pod *corev1.Pod, claims []*resourceapi.ResourceClaim) (
	Room, error) {
	room, err := e.FindRoom(ctx, s, pod, claims)
	if err != nil || room.Fits() || room.Refused != nil {
		return room, err
	}
	letGo, from := s.LetGo()
	if len(from) == 0 {
		return room, nil
	}
	letGo.Nodes = slices.DeleteFunc(slices.Clone(s.Nodes), func(n *corev1.Node) bool { return !from[n.Name] })
	then, err := e.FindRoom(ctx, letGo, pod, claims)
	if err != nil {
		return Room{}, err
	}
	fits := map[string]bool{}
	for _, n := range then.Nodes {
		fits[n.Name] = n.Fits
	}
	for i := range room.Nodes {
		n := &room.Nodes[i]
		_, unsearched := n.Unsearched()
		// Where one request alone waits for what is held back, it is known already, and of which GPUs.
		if !n.Fits && !unsearched && fits[n.Name] && n.Farthest.Step != HeldBack {
			n.Farthest = Lack{Kind: SharesHeldBack, Node: n.Name, Claims: waitingOf(claims), Step: HeldBack}
			n.Lacks = []Lack{n.Farthest}
		}
	}
	return room, nil
}

// Extent is how far a Finder looks.
type Extent int

const (
	// EveryNode: at all nodes.
	EveryNode Extent = iota
	// FirstRoom is for who asks often. It ends at the first node with room, does not look at those
	// that the pod excludes, and does not ask the allocator of nodes that lack something for one
	// request alone, on which it never finds devices. Asking it is most of what Find takes.
	FirstRoom
)

// Find looks at what is free, on each node. Whether the claims fit there is found out by the
// scheduler's allocator, as the scheduler uses it, within some Effort; only what they lack is found
// here. An error is that of a claim, or the context's.
func (f *Finder) Find(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim, extent Extent) (Room,
	error) {
	first, most := extent == FirstRoom, int64(everyEffort)
	if first {
		most = firstEffort
	}
	// What is looked at on nodes that are closed to the pod is not at the expense of the others.
	onOpen, onClosed := NewEffort(most), NewEffort(most)
	may, err := Possible(pod, claims)
	if err != nil {
		return Room{}, err
	}
	if err := usersFull(pod, claims); err != nil {
		return Room{Refused: err}, nil
	}
	unallocated := waitingOf(claims)
	f.looker.forget()
	var room Room
	for _, node := range f.nodes {
		if err := ended(ctx, node); err != nil {
			return Room{}, err
		}
		found := NodeRoom{Name: node.Name, Closed: ClosedTo(ctx, node, pod, may)}
		if found.Closed.By == Open {
			found.Closed = f.closed[node.Name]
		}
		if o := f.looker.offers[node.Name]; o != nil {
			found.GPUs = o.gpus
		}
		if first && found.Closed.By == ByPod {
			room.Nodes = append(room.Nodes, found)
			continue
		}
		effort := onOpen
		if found.Closed.By != Open {
			effort = onClosed
		}
		failed := f.search(ctx, node, unallocated, effort, first, &found)
		if err := ended(ctx, node); err != nil && !found.Fits {
			return Room{}, err
		}
		// A node that the pod cannot be on is passed over before its devices are looked at,
		// and of some errors, such as an invalid pool, the scheduler passes over the node alone.
		if failed != nil && found.Closed.By == Open && room.Refused == nil &&
			!errors.Is(failed, structured.ErrFailedAllocationOnNode) {
			room.Refused = failed
			if f.looker.tooMany(ctx, node.Name, unallocated) {
				room.TooMany = node.Name
			}
		}
		room.Nodes = append(room.Nodes, found)
		if first && found.Open() {
			break
		}
	}
	return room, nil
}

// search finds out whether the claims fit on a node, or what they lack there. It returns why the allocator failed, if
// it did.
func (f *Finder) search(ctx context.Context, node *corev1.Node, claims []*resourceapi.ResourceClaim, effort *Effort,
	first bool, found *NodeRoom) (failed error) {
	// Where one request alone lacks something, the claims never fit.
	lack := func() (hopeless bool) {
		found.Lacks, found.Farthest, hopeless = f.looker.lacks(ctx, node.Name, claims)
		return hopeless
	}
	_, err := f.allocator.selectorLooks(node.Name, claims)
	if first && err == nil && lack() {
		return nil
	}
	found.Lacks, found.Farthest = nil, Lack{}
	if err == nil {
		found.Allocations, found.Fits, err = f.allocator.Fit(ctx, node, claims, effort)
	}
	switch {
	case errors.Is(err, ErrUnsearched):
		if errors.Is(err, ErrSelectors) || !lack() {
			found.Lacks, found.Farthest = []Lack{{Kind: Unsearched, Err: err}}, Lack{}
		}
	case err != nil:
		found.Lacks = []Lack{{Kind: Failed, Err: err}}
		return err
	case !found.Fits:
		lack()
	}
	return nil
}

// ended is an error once the context has ended: a selector that was interrupted then counts as one
// that does not match, so that what is found of the node may be wrong.
func ended(ctx context.Context, node *corev1.Node) error {
	if ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("look for devices on node %s: %w", node.Name, context.Cause(ctx))
}

// waitingOf are the claims that are not allocated.
func waitingOf(claims []*resourceapi.ResourceClaim) []*resourceapi.ResourceClaim {
	var waiting []*resourceapi.ResourceClaim
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			waiting = append(waiting, claim)
		}
	}
	return waiting
}

// ClosedBy is what keeps a pod from a node, whatever devices are free there.
type ClosedBy int
