// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/published"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/why"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// simulation is the cluster as it would be.
type simulation struct {
	*scheduling.Simulation
	in *Input
	// fill has the GiB of GPU memory that were left on each node. If it is set, one node is filled after the other,
	// those with the least left first.
	fill map[string]int64
	// waiting are pods that wait, by workload: further ones of it wait for the same.
	waiting map[*Workload]*Pod
}

// run places all pods, those of a gang where the first of them is.
func run(ctx context.Context, in *Input, pods []*pending, fill bool) (*Plan, *simulation, error) {
	beside := scheduling.Resources{}
	if !in.PodsUnknown {
		beside = scheduling.ResourcesOf(in.Nodes, in.Bound)
	}
	s := &simulation{Simulation: in.engine.Simulate(in.Snapshot, beside), in: in, waiting: map[*Workload]*Pod{}}
	if fill {
		s.fill = map[string]int64{}
		for _, n := range s.table().Nodes {
			s.fill[n.Name] = n.MemoryGiB.Total - ptr.Deref(n.MemoryGiB.Allocated, 0)
		}
	}
	p := &Plan{Pods: []Pod{}}
	gangs := map[string]bool{}
	for i, pod := range pods {
		together := pods[i : i+1]
		if pod.gang != "" {
			if gangs[pod.gang] {
				continue
			}
			gangs[pod.gang] = true
			together = slices.DeleteFunc(slices.Clone(pods), func(other *pending) bool { return other.gang != pod.gang })
		}
		placed, err := s.placeTogether(ctx, together)
		if err != nil {
			return nil, nil, err
		}
		p.Pods = append(p.Pods, placed...)
	}
	for _, pod := range p.Pods {
		switch {
		case pod.Node != "":
			p.Fits++
		case pod.Unsearched:
			p.Unsearched++
		default:
			p.Waits++
		}
	}
	return p, s, nil
}

// placeTogether places a pod, or all pods of a gang or none.
func (s *simulation) placeTogether(ctx context.Context, pods []*pending) ([]Pod, error) {
	gang, least := pods[0].gang, pods[0].least
	before, there, placed, unsearched := s.Simulation, 0, 0, 0
	if gang != "" {
		s.Simulation, there = before.Clone(), s.in.there(gang)
	}
	var out []Pod
	for _, p := range pods {
		pod, err := s.place(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("%s of %s: pod %s: %w", p.from, p.from.Source, p.pod.Name, err)
		}
		if out = append(out, pod); pod.Node != "" {
			placed++
		} else if pod.Unsearched {
			unsearched++
		}
	}
	if gang == "" || there+placed >= least {
		return out, nil
	}
	s.Simulation = before
	running := ""
	if there > 0 {
		running = fmt.Sprintf("%d are there already, ", there)
	}
	for i := range out {
		if pod := &out[i]; pod.Node != "" {
			pod.Why = fmt.Sprintf("of its gang %s %s%d would find room at once, and it needs %d", gang, running, placed, least)
			if pod.Unsearched = there+placed+unsearched >= least; pod.Unsearched {
				pod.Why += fmt.Sprintf("; of %d more it is not known", unsearched)
			}
			pod.Node, pod.Devices = "", nil
		}
	}
	return out, nil
}

// place places a pod.
func (s *simulation) place(ctx context.Context, p *pending) (Pod, error) {
	out := Pod{Source: p.from.Source, Workload: p.from.String(), Namespace: p.pod.Namespace, Name: p.pod.Name}
	claims, missing := s.claimsOf(p)
	out.Asked = explain.Asked(claims)
	if alike := s.waiting[p.from]; alike != nil {
		out.Why, out.Lacks, out.Help, out.Unsearched = alike.Why, alike.Lacks, alike.Help, alike.Unsearched
		return out, nil
	}
	var room *scheduling.Room
	out.Why = cmp.Or(p.refused, s.in.unconverted(claims))
	if out.Why == "" && len(p.pod.Spec.SchedulingGates) == 0 && len(missing) == 0 {
		var alike any
		if !p.from.PerNode {
			alike = p.from
		}
		looked, err := s.Find(ctx, p.pod, claims, alike)
		if err != nil {
			return out, err
		}
		room = &looked
		if found := s.pick(p, looked); found != nil {
			s.Take(p.pod, claims, found)
			s.Slices = published.After(s.Slices, s.Claims, found.Name)
			out.Node, out.Devices = found.Name, found.Devices()
			return out, nil
		}
	}
	// Where nodes are filled one after the other, it counts how many fit.
	if out.Why == "" && s.fill == nil {
		if err := s.explain(ctx, p, claims, missing, room, &out); err != nil {
			return out, err
		}
		if len(claims) == 0 && room != nil {
			out.sayFull(*room, p.left)
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
	for _, asked := range p.pod.Spec.ResourceClaims {
		if template := asked.ResourceClaimTemplateName; template != nil {
			if t := s.in.Template(p.pod.Namespace, *template); t != nil {
				claims = append(claims, s.in.admitted("ResourceClaimTemplate", *template, &resourceapi.ResourceClaim{
					Spec: t.Spec.Spec, ObjectMeta: metav1.ObjectMeta{Namespace: p.pod.Namespace,
						Name: p.pod.Name + "-" + asked.Name, Labels: t.Spec.Labels, Annotations: t.Spec.Annotations}}))
			} else {
				missing = append(missing, s.in.notThere("ResourceClaimTemplate", p.pod.Namespace, *template))
			}
		} else if name := asked.ResourceClaimName; name != nil {
			if c := scheduling.Named(s.Claims, p.pod.Namespace, *name); c == nil {
				missing = append(missing, s.in.notThere("ResourceClaim", p.pod.Namespace, *name))
			} else if c.DeletionTimestamp != nil {
				// The scheduler places no pod with it.
				missing = append(missing, "claim "+c.Name+" is being deleted")
			} else {
				claims = append(claims, c)
			}
		}
	}
	if own := scheduling.ClaimForExtended(p.pod, s.ClassOf); own != nil {
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

// explain says why a pod waits, as kubectl inspect cgpu explain would of what was found, if anybody looked.
func (s *simulation) explain(ctx context.Context, p *pending, claims []*resourceapi.ResourceClaim, missing []string,
	room *scheduling.Room, out *Pod) error {
	answer, err := why.Of(ctx, why.Input{Snapshot: s.For(p.pod), Engine: s.in.engine, Room: room, Now: s.in.Now,
		Pod: p.pod, PodClaims: slices.DeleteFunc(claims, scheduling.OfScheduler), Missing: missing,
		OthersUnknown: s.in.OthersUnknown, NodesUnknown: s.in.NodesUnknown})
	if err != nil {
		return err
	}
	out.Help, out.Why, out.Unsearched = answer.Help, answer.Why, answer.Unsearched
	for _, n := range answer.Nodes {
		out.Lacks = append(out.Lacks, NodeLack{Node: n.Name, GPUs: n.GPUs, Lacks: n.Lacks})
	}
	return nil
}

// sayFull tells why a pod that needs no devices finds no node. left is why the pod is not converted; if it is not
// empty, no other advice helps.
func (p *Pod) sayFull(room scheduling.Room, left string) {
	p.Why = "no node takes it"
	if left != "" {
		p.Why, p.Help = p.Why+", and "+left, nil
	}
	for _, n := range room.Nodes {
		if n.Closed.By != scheduling.Open {
			p.Lacks = append(p.Lacks, NodeLack{Node: n.Name, GPUs: n.GPUs, Lacks: []string{explain.Closed(n)}})
		}
	}
}

// pick is the node with room that a pod lands on: its own if that is one of them; nil is for none.
func (s *simulation) pick(p *pending, room scheduling.Room) *scheduling.NodeRoom {
	stays := slices.IndexFunc(room.Nodes, func(n scheduling.NodeRoom) bool { return n.Name == p.from.On && n.Open() })
	if stays >= 0 && room.Fits() {
		return &room.Nodes[stays]
	}
	rank := s.LeastRequested
	if s.fill != nil {
		rank = func(a, b string) int { return cmp.Compare(s.fill[a], s.fill[b]) }
	}
	return s.Best(p.pod, room, rank)
}

// table returns what is allocated and what is left. The MIG instances that a GPU could have count its memory once.
func (s *simulation) table() *inspect.Table {
	return inspect.New(inspect.Input{Slices: s.Slices, Claims: s.Claims, Nodes: s.in.Nodes, Pods: s.in.Bound,
		PodsUnknown: s.in.PodsUnknown})
}

// there is how many pods of a gang count as placed without being planned: those on nodes, and
// those that need no GPU.
func (in *Input) there(gang string) int {
	return len(slices.DeleteFunc(slices.Concat(in.Bound, in.Beside), func(pod *corev1.Pod) bool {
		name, _ := legacy.GangOf(pod)
		return name != gang
	}))
}
