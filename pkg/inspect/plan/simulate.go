// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"

	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/why"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// simulation is the cluster as it would be.
type simulation struct {
	in *Input
	state
	classOf func(corev1.ResourceName) *resourceapi.DeviceClass
	rank    ranking
	nodeOf  map[string]*corev1.Node
	// waiting are pods that wait, by workload: further ones of it wait for the same.
	waiting map[*Workload]*Pod
	// looked is what was found for pods of a workload before.
	looked map[*Workload]*looked
}

// state is what pods change. What it points to is not changed, but replaced.
type state struct {
	slices []*resourceapi.ResourceSlice
	claims []*resourceapi.ResourceClaim
	nodes  map[string]capacity
	// left is how much GPU memory nobody has, in GiB, of the nodes of which it was counted since they changed.
	left map[string]int64
}

func (s state) clone() state {
	return state{slices.Clone(s.slices), slices.Clone(s.claims), maps.Clone(s.nodes), maps.Clone(s.left)}
}

func newSimulation(in *Input, rank ranking) *simulation {
	byResource := extendedresourcecache.NewExtendedResourceCache(logr.Discard())
	for _, class := range in.Snapshot.Classes {
		byResource.OnAdd(class, true)
	}
	nodeOf := map[string]*corev1.Node{}
	for _, node := range in.Nodes {
		nodeOf[node.Name] = node
	}
	return &simulation{
		in: in, classOf: byResource.GetDeviceClass, rank: rank, nodeOf: nodeOf, waiting: map[*Workload]*Pod{},
		looked: map[*Workload]*looked{},
		state: state{slices.Clone(in.Slices), slices.Clone(in.Snapshot.Claims), capacities(in),
			map[string]int64{}},
	}
}

// plan places a pod and notes where.
func (s *simulation) plan(ctx context.Context, p *Plan, pod *pending) error {
	placed, err := s.place(ctx, pod)
	if err != nil {
		return fmt.Errorf("%s of %s: pod %s: %w", pod.from, pod.from.Source, pod.pod.Name, err)
	}
	p.Pods = append(p.Pods, placed)
	return nil
}

// planGang places all pods of a gang, or none.
func (s *simulation) planGang(ctx context.Context, p *Plan, pods []*pending, first *pending) error {
	before, from := s.clone(), len(p.Pods)
	for _, pod := range pods {
		if pod.gang == first.gang {
			if err := s.plan(ctx, p, pod); err != nil {
				return err
			}
		}
	}
	there, placed := s.in.there(first.gang), 0
	for _, pod := range p.Pods[from:] {
		if pod.Node != "" {
			placed++
		}
	}
	if there+placed >= first.least {
		return nil
	}
	s.state = before
	clear(s.looked)
	for i := range p.Pods[from:] {
		pod := &p.Pods[from+i]
		if pod.Node != "" {
			running := ""
			if there > 0 {
				running = fmt.Sprintf("%d are there already, ", there)
			}
			pod.Why = fmt.Sprintf("of its gang %s %s%d would find room at once, and it needs %d", first.gang, running, placed,
				first.least)
			pod.Node, pod.Devices = "", nil
		}
	}
	return nil
}

// place places a pod.
func (s *simulation) place(ctx context.Context, p *pending) (Pod, error) {
	out := Pod{Source: p.from.Source, Workload: p.from.String(), Namespace: p.pod.Namespace, Name: p.pod.Name}
	claims, missing := s.claimsOf(p)
	out.Asked = explain.Asked(claims)
	if alike := s.waiting[p.from]; alike != nil {
		out.Why, out.Lacks, out.Help = alike.Why, alike.Lacks, alike.Help
		return out, nil
	}
	switch {
	case p.refused != "":
		out.Why = p.refused
	case len(p.pod.Spec.SchedulingGates) == 0 && len(missing) == 0:
		found, room, err := s.find(ctx, p, claims)
		if err != nil {
			return out, err
		}
		if found != nil {
			s.take(p, claims, found)
			out.Node, out.Devices = found.Name, found.Devices
			return out, nil
		}
		if len(claims) == 0 {
			out.sayFull(room)
			out.Why = strings.Join(slices.DeleteFunc([]string{out.Why, p.left},
				func(s string) bool { return s == "" }), ", and ")
		}
	}
	if out.Why == "" {
		if err := s.explain(ctx, p, claims, missing, &out); err != nil {
			return out, err
		}
	}
	if !p.from.PerNode {
		s.waiting[p.from] = &out
	}
	return out, nil
}

// claimsOf are the claims of a pod, those of the scheduler's own among them, and why others
// are not there.
func (s *simulation) claimsOf(p *pending) (claims []*resourceapi.ResourceClaim, missing []string) {
	for i := range p.pod.Spec.ResourceClaims {
		asked := &p.pod.Spec.ResourceClaims[i]
		switch {
		case p.claims[asked.Name] != nil:
			claims = append(claims, p.claims[asked.Name])
		case asked.ResourceClaimTemplateName != nil:
			missing = append(missing, s.in.notThere("ResourceClaimTemplate", p.pod.Namespace, *asked.ResourceClaimTemplateName))
		case asked.ResourceClaimName != nil:
			if claim := s.claim(p.pod.Namespace, *asked.ResourceClaimName); claim != nil {
				claims = append(claims, claim)
				continue
			}
			missing = append(missing, s.in.notThere("ResourceClaim", p.pod.Namespace, *asked.ResourceClaimName))
		}
	}
	if own := scheduling.ClaimForExtended(p.pod, s.classOf); own != nil {
		claims = append(claims, own)
	}
	return claims, missing
}

// notThere says why something that a pod names cannot be planned with.
func (in *Input) notThere(kind, namespace, name string) string {
	if why := in.Unread[kind+"/"+namespace+"/"+name]; why != "" {
		return why
	}
	return fmt.Sprintf("the %s %s does not exist in namespace %s, and the manifests have none", kind, name, namespace)
}

func (s *simulation) claim(namespace, name string) *resourceapi.ResourceClaim {
	for _, claim := range s.claims {
		if claim.Namespace == namespace && claim.Name == name {
			return claim
		}
	}
	return nil
}

// situation is the cluster for a pod.
func (s *simulation) situation(pod *corev1.Pod) scheduling.Snapshot {
	return scheduling.Snapshot{Nodes: s.in.Nodes, Slices: s.slices, Claims: s.claims, Classes: s.in.Snapshot.Classes,
		Closed: s.closed(pod, s.classOf)}
}

// find looks for a node, and picks one of several, the pod's own if that is one of them; nil is
// for none.
func (s *simulation) find(ctx context.Context, p *pending, claims []*resourceapi.ResourceClaim) (*scheduling.NodeRoom,
	scheduling.Room, error) {
	pod, on := p.pod, p.from.On
	situation := s.situation(pod)
	room, err := s.look(ctx, situation, p, claims)
	if err == nil && !room.Fits() && room.Refused == nil {
		// What is held back to spread shares is let go for a pod that needs it.
		if situation.Slices = letGo(s.slices); !slices.Equal(situation.Slices, s.slices) {
			room, err = s.in.engine.FindRoom(ctx, situation, pod, claims)
		}
	}
	if err == nil && !room.Fits() && room.Refused == nil {
		room, err = s.findPlugin(ctx, pod, claims, room)
	}
	if err != nil || !room.Fits() {
		return nil, room, err
	}
	var best *scheduling.NodeRoom
	better := s.preferring(pod)
	for i := range room.Nodes {
		n := &room.Nodes[i]
		if n.Open() && (best == nil || n.Name == on || best.Name != on && better(n, best)) {
			best = n
		}
	}
	return best, room, nil
}

// findPlugin looks for a node on which a device plugin has what else the scheduler would make a
// claim of its own for. Where there is none, or the pod has no such claim, room is the answer.
func (s *simulation) findPlugin(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim,
	room scheduling.Room) (scheduling.Room, error) {
	others := withoutOwn(claims)
	if len(others) == len(claims) || s.in.PodsUnknown {
		return room, nil
	}
	situation := s.situation(pod)
	situation.Closed = s.closed(pod, func(corev1.ResourceName) *resourceapi.DeviceClass { return nil })
	for _, node := range s.in.Nodes {
		if s.nodes[node.Name].allocatable == nil {
			situation.Closed[node.Name] = scheduling.Closed{By: scheduling.ResourcesUnknown}
		}
	}
	found, err := s.in.engine.FindRoom(ctx, situation, pod, others)
	if err != nil || !found.Fits() {
		return room, err
	}
	return found, nil
}

// withoutOwn leaves out the claim that the scheduler would make itself.
func withoutOwn(claims []*resourceapi.ResourceClaim) []*resourceapi.ResourceClaim {
	return slices.DeleteFunc(slices.Clone(claims), scheduling.OfScheduler)
}

// take gives a pod what was found for it.
func (s *simulation) take(p *pending, claims []*resourceapi.ResourceClaim, found *scheduling.NodeRoom) {
	next := 0
	for _, claim := range claims {
		if claim.Status.Allocation != nil {
			s.replace(claim, reservedFor(claim, p.pod))
			continue
		}
		if next == len(found.Allocations) {
			continue // a device plugin serves it instead
		}
		allocated := reservedFor(claim, p.pod)
		if scheduling.OfScheduler(allocated) {
			allocated.Name = p.pod.Name + "-extended-resources"
		}
		allocated.Status.Allocation = &found.Allocations[next]
		next++
		s.replace(claim, allocated)
	}
	s.occupy(found.Name, p.pod)
	for _, l := range s.looked {
		l.changed[found.Name] = true
	}
	s.slices = publishedAfter(s.slices, s.claims, found.Name)
	delete(s.left, found.Name)
}

// reservedFor is the claim with the pod as one more user.
func reservedFor(claim *resourceapi.ResourceClaim, pod *corev1.Pod) *resourceapi.ResourceClaim {
	claim = claim.DeepCopy()
	claim.Status.ReservedFor = append(claim.Status.ReservedFor,
		resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name})
	return claim
}

// replace puts a claim in the place of what it was, or adds it.
func (s *simulation) replace(was, is *resourceapi.ResourceClaim) {
	if i := slices.Index(s.claims, was); i >= 0 {
		s.claims[i] = is
		return
	}
	s.claims = append(s.claims, is)
}

// explain says why a pod waits, as kubectl inspect cgpu explain would.
func (s *simulation) explain(ctx context.Context, p *pending, claims []*resourceapi.ResourceClaim, missing []string,
	out *Pod) error {
	situation := s.situation(p.pod)
	situation.Slices = letGo(s.slices)
	answer, err := why.Of(ctx, why.Input{Snapshot: situation, Engine: s.in.engine, Now: s.in.Now, Pod: p.pod,
		PodClaims: withoutOwn(claims), Missing: missing,
		OthersUnknown: s.in.OthersUnknown, NodesUnknown: s.in.NodesUnknown})
	if err != nil {
		return err
	}
	out.Help, out.Why = answer.Help, answer.Why
	for _, n := range answer.Nodes {
		out.Lacks = append(out.Lacks, NodeLack{Node: n.Name, GPUs: n.GPUs, Lacks: n.Lacks})
	}
	return nil
}

// sayFull is for a pod that needs no devices.
func (p *Pod) sayFull(room scheduling.Room) {
	p.Why = "no node takes it"
	for _, n := range room.Nodes {
		if n.Closed.By != scheduling.Open {
			p.Lacks = append(p.Lacks, NodeLack{Node: n.Name, GPUs: n.GPUs, Lacks: []string{explain.Closed(n)}})
		}
	}
}
