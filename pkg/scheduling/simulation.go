// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	componentresource "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// Simulation is a cluster in which pods are placed one after the other, each beside those before
// it. It is for one goroutine at a time.
type Simulation struct {
	// Snapshot is the cluster with the pods that were placed. Slices may be replaced with what
	// drivers publish then, those of nodes alone that were given pods.
	Snapshot
	// Resources are what its nodes have beside devices.
	Resources Resources
	// ClassOf is the DeviceClass by which an extended resource is handed out, nil for none.
	ClassOf func(corev1.ResourceName) *resourceapi.DeviceClass

	engine *Engine
	// last are the last looks for pods, by what these are alike in.
	last map[any]*lastLook
}

// lastLook is where a pod found room, and which nodes were given pods since.
type lastLook struct {
	room    Room
	changed map[string]bool
}

// Simulate begins a Simulation. What is given is not changed.
func (e *Engine) Simulate(s Snapshot, beside Resources) *Simulation {
	return (&Simulation{Snapshot: s, Resources: beside, ClassOf: ClassOf(s.Classes), engine: e}).Clone()
}

// Clone is another Simulation that begins with the pods of this one.
func (s *Simulation) Clone() *Simulation {
	clone := *s
	clone.Claims, clone.Resources, clone.last = slices.Clone(s.Claims), maps.Clone(s.Resources), map[any]*lastLook{}
	return &clone
}

// For is the cluster for a pod: nodes that have too little of what it requests beside devices are closed to it.
func (s *Simulation) For(pod *corev1.Pod) Snapshot {
	out := s.Snapshot
	out.Closed = s.Resources.closed(s.Nodes, pod, s.ClassOf)
	return out
}

// Find is FindRoom beside the pods that were placed: of devices, and of all else that a pod
// requests. Pods for which alike is the same, and not nil, differ in their names and those of their
// claims alone: nodes that were given no pod since the last of them are not looked at again.
func (s *Simulation) Find(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim, alike any) (Room,
	error) {
	room, err := s.look(ctx, pod, claims, alike)
	if err != nil || room.Fits() || room.Refused != nil {
		return room, err
	}
	if letGo, from := s.For(pod).LetGo(); len(from) > 0 {
		if room, err = s.engine.FindRoom(ctx, letGo, pod, claims); err != nil || room.Fits() || room.Refused != nil {
			return room, err
		}
	}
	others := slices.DeleteFunc(slices.Clone(claims), OfScheduler)
	if len(others) == len(claims) {
		return room, nil
	}
	// A device plugin may have what the scheduler would make a claim of its own for.
	plugged := s.Snapshot
	plugged.Closed = s.Resources.closed(s.Nodes, pod, nil)
	found, err := s.engine.FindRoom(ctx, plugged, pod, others)
	if err != nil || !found.Fits() {
		return room, err
	}
	return found, nil
}

// look is FindRoom, on what may have changed since the last look for pods that are alike.
func (s *Simulation) look(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim, alike any) (Room,
	error) {
	// Devices of slices that name no node are of many nodes, and claims that are there of many pods:
	// what one pod takes changes what there is on all nodes.
	ofMany := func(slice *resourceapi.ResourceSlice) bool { return ptr.Deref(slice.Spec.NodeName, "") == "" }
	there := func(claim *resourceapi.ResourceClaim) bool { return slices.Contains(s.Claims, claim) }
	apart := alike == nil || slices.ContainsFunc(s.Slices, ofMany) || slices.ContainsFunc(claims, there)
	last, of := s.last[alike], s.Snapshot
	if last != nil && !apart {
		of.Nodes = slices.DeleteFunc(slices.Clone(s.Nodes), func(n *corev1.Node) bool { return !last.changed[n.Name] })
		of.Slices = slices.DeleteFunc(slices.Clone(s.Slices),
			func(slice *resourceapi.ResourceSlice) bool { return !last.changed[*slice.Spec.NodeName] })
	}
	of.Closed = s.Resources.closed(of.Nodes, pod, s.ClassOf)
	room, err := s.engine.FindRoom(ctx, of, pod, claims)
	switch {
	case err != nil || room.Refused != nil || apart:
		return room, err
	case last == nil:
		s.last[alike] = &lastLook{room, map[string]bool{}}
		return room, nil
	}
	for _, n := range room.Nodes {
		i := slices.IndexFunc(last.room.Nodes, func(was NodeRoom) bool { return was.Name == n.Name })
		last.room.Nodes[i] = n
	}
	clear(last.changed)
	return last.room, nil
}

// Take gives a pod what was found for it on a node.
func (s *Simulation) Take(pod *corev1.Pod, claims []*resourceapi.ResourceClaim, found *NodeRoom) {
	allocations := found.Allocations
	for _, was := range claims {
		claim := was.DeepCopy()
		claim.Status.ReservedFor = append(claim.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name})
		if was.Status.Allocation == nil {
			if len(allocations) == 0 {
				continue // a device plugin serves it instead
			}
			if OfScheduler(was) {
				claim.Name = pod.Name + "-extended-resources"
			}
			claim.Status.Allocation, allocations = &allocations[0], allocations[1:]
		}
		if i := slices.Index(s.Claims, was); i >= 0 {
			s.Claims[i] = claim
		} else {
			s.Claims = append(s.Claims, claim)
		}
	}
	beside := s.Resources[found.Name].with(pod)
	beside.Placed++
	s.Resources[found.Name] = beside
	for _, last := range s.last {
		last.changed[found.Name] = true
	}
}

// Pod is one that is to be placed, with its claims.
type Pod struct {
	Pod    *corev1.Pod
	Claims []*resourceapi.ResourceClaim
}

// Placed is the node on which a pod finds its devices, empty for one that finds none, and what its claims that were not
// allocated would get there; Unsearched says that it might find some, on a node that was not searched to the end.
type Placed struct {
	Node        string
	Allocations []resourceapi.AllocationResult
	Unsearched  bool
}

// Place places pods one after the other, each on the first node of the snapshot on which the
// scheduler's allocator finds its devices beside those of the pods before it. Which nodes the
// scheduler would choose depends on more than devices; a pod that finds none here might find some
// if others were elsewhere.
func (e *Engine) Place(ctx context.Context, s Snapshot, wanted []Pod) ([]Placed, error) {
	allocator, err := e.Allocator(ctx, s, nil)
	if err != nil {
		return nil, err
	}
	nodes, after := s.Nodes, e.Simulate(s, Resources{})
	// from is the first node on which equal pods may find room: those before it are no emptier
	// than they were.
	from, unsearched, effort := map[QuestionID]int{}, map[QuestionID]bool{}, NewEffort(everyEffort)
	placed := make([]Placed, len(wanted))
	for i, w := range wanted {
		failed := func(err error) ([]Placed, error) {
			return nil, fmt.Errorf("place pod %s/%s: %w", w.Pod.Namespace, w.Pod.Name, err)
		}
		claims := after.current(w.Claims)
		if usersFull(w.Pod, claims) != nil {
			continue
		}
		may, err := Possible(w.Pod, claims)
		if err != nil {
			return failed(err)
		}
		question, err := Question(w.Pod, claims)
		if err != nil {
			return failed(err)
		}
		unallocated := waitingOf(claims)
		for ; from[question] < len(nodes); from[question]++ {
			node := nodes[from[question]]
			if ClosedTo(ctx, node, w.Pod, may).By != Open || s.Closed[node.Name].By != Open {
				continue
			}
			results, fits, err := allocator.Fit(ctx, node, unallocated, effort)
			if ctx.Err() != nil {
				return failed(context.Cause(ctx))
			}
			unsearched[question] = unsearched[question] || errors.Is(err, ErrUnsearched)
			// Of a claim that nobody can allocate, the answer for the pod itself says more.
			if err != nil || !fits {
				continue
			}
			placed[i].Node, placed[i].Allocations = node.Name, results
			after.Take(w.Pod, claims, &NodeRoom{Name: node.Name, Allocations: results})
			if err := allocator.hold(ctx, results); err != nil {
				return failed(err)
			}
			break
		}
		placed[i].Unsearched = placed[i].Node == "" && unsearched[question]
	}
	return placed, nil
}

// current are claims as they are now: pods can share them.
func (s *Simulation) current(claims []*resourceapi.ResourceClaim) []*resourceapi.ResourceClaim {
	out := slices.Clone(claims)
	for i, claim := range out {
		out[i] = cmp.Or(Named(s.Claims, claim.Namespace, claim.Name), claim)
	}
	return out
}

// Resources are what nodes have beside devices – CPU, memory and the like – by node.
type Resources map[string]NodeResources

// NodeResources are those of a node; Allocatable is nil where it is not known what it has.
type NodeResources struct {
	Allocatable, Requested corev1.ResourceList
	// Placed is how many pods a Simulation placed there.
	Placed int
}

// ResourcesOf are those of the nodes that say what they have, with what the pods on them request.
func ResourcesOf(nodes []*corev1.Node, pods []*corev1.Pod) Resources {
	out := Resources{}
	for _, node := range nodes {
		if len(node.Status.Allocatable) > 0 {
			out[node.Name] = NodeResources{Allocatable: node.Status.Allocatable}
		}
	}
	for _, pod := range pods {
		if of, is := out[pod.Spec.NodeName]; is {
			out[pod.Spec.NodeName] = of.with(pod)
		}
	}
	return out
}

// with are the resources with one more pod.
func (r NodeResources) with(pod *corev1.Pod) NodeResources {
	r.Requested = maps.Clone(r.Requested)
	r.Add(RequestsOf(pod))
	return r
}

// Add counts what a pod requests, by RequestsOf.
func (r *NodeResources) Add(requests corev1.ResourceList) {
	r.count(requests, (*resource.Quantity).Add)
}

// Sub counts what a pod requests no more.
func (r *NodeResources) Sub(requests corev1.ResourceList) {
	r.count(requests, (*resource.Quantity).Sub)
}

func (r *NodeResources) count(requests corev1.ResourceList, change func(*resource.Quantity, resource.Quantity)) {
	if r.Requested == nil {
		r.Requested = corev1.ResourceList{}
	}
	for name, amount := range requests {
		sum := r.Requested[name].DeepCopy()
		change(&sum, amount)
		r.Requested[name] = sum
	}
}

// Left is how much of a resource nobody requests, which may be less than nothing.
func (r NodeResources) Left(name corev1.ResourceName) resource.Quantity {
	left := r.Allocatable[name].DeepCopy()
	left.Sub(r.Requested[name])
	return left
}

// RequestsOf is what the scheduler counts of a pod.
func RequestsOf(pod *corev1.Pod) corev1.ResourceList {
	requests := componentresource.PodRequests(pod, componentresource.PodResourcesOptions{
		UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true,
	})
	requests[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return requests
}

// closed says which nodes have too little of what a pod requests beside devices. classOf is the
// DeviceClass by which a resource is handed out; without it, device plugins hand out all, and
// nodes of which it is not known what they have are closed.
func (r Resources) closed(nodes []*corev1.Node, pod *corev1.Pod,
	classOf func(corev1.ResourceName) *resourceapi.DeviceClass) map[string]Closed {
	requests := RequestsOf(pod)
	// Only a device plugin could serve what is asked for as on ACK: a node has what it says.
	needsPlugin := slices.ContainsFunc(legacy.Names(), func(name corev1.ResourceName) bool {
		amount := requests[name]
		return !amount.IsZero()
	})
	byDevices := func(name corev1.ResourceName) bool { return classOf != nil && classOf(name) != nil }
	out := map[string]Closed{}
	for _, node := range nodes {
		of := r[node.Name]
		switch {
		case of.Allocatable == nil && classOf == nil:
			out[node.Name] = Closed{By: ResourcesUnknown}
		case of.Allocatable == nil && needsPlugin:
			out[node.Name] = Closed{By: PluginsUnknown}
		case of.Allocatable == nil:
		default:
			if short := of.Short(requests, byDevices); len(short) > 0 {
				out[node.Name] = Closed{By: ByResources, Short: short}
			}
		}
	}
	return out
}

// Shortage is a resource of which a node has less free than a pod requests.
type Shortage struct {
	Name        corev1.ResourceName
	Asked, Free resource.Quantity
}

// Short are the resources, by name, of which less is left than is requested. Those that devices are handed out for do
// not count.
func (r NodeResources) Short(requested corev1.ResourceList, devices func(corev1.ResourceName) bool) []Shortage {
	var short []Shortage
	for name, asked := range requested {
		if asked.IsZero() || devices(name) {
			continue
		}
		if left := r.Left(name); asked.Cmp(left) > 0 {
			short = append(short, Shortage{name, asked, left})
		}
	}
	slices.SortFunc(short, func(a, b Shortage) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return short
}
