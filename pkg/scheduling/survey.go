// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// awayMost is for how long a node whose GPUs are away counts as one that is about to offer
// something: a restart or a rollout takes less.
const awayMost = 10 * time.Minute

// Surveyor makes Surveys. What it found out about GPUs for one, it knows for the next. It, and
// the Surveys, are for one goroutine at a time.
type Surveyor struct {
	engine   *Engine
	programs programs
	ids      map[view.Shape]int
	nextID   int
	kinds    map[string]*kind
	// away is since when nodes are seen to lack GPUs that they are about to offer.
	away map[string]time.Time
}

// NewSurveyor makes one that has seen nothing.
func (e *Engine) NewSurveyor() *Surveyor {
	return &Surveyor{engine: e, programs: newPrograms(e.compiled), ids: map[view.Shape]int{},
		kinds: map[string]*kind{}}
}

// Published is what is known of the cluster.
type Published struct {
	// Slices are the driver's, of all nodes.
	Slices []*view.Slice
	// Labels are those of all nodes, by the nodes' names. Closed is what keeps pods from a node when it is asked: that
	// changes often, and is asked only where a selector fails.
	Labels  map[string]map[string]string
	Closed  func(node string) corev1.NodeSpec
	Classes []*resourceapi.DeviceClass
	// Now is when it is known.
	Now time.Time
}

// Survey is what the nodes offered at one time. It knows whether something could fit, and not
// what is free.
type Survey struct {
	// Labels are the keys of the labels that any node has, Modes those of the GPUs there are.
	Labels map[string]bool
	Modes  []mode.Mode
	// Settled is false while some node is about to offer something else.
	Settled bool
	// ClassOf is the DeviceClass by which an extended resource is handed out, nil for none.
	ClassOf func(corev1.ResourceName) *resourceapi.DeviceClass

	surveyor *Surveyor
	pools    []pool
	groups   []group
	// split are the groups where each node is one of its own, with the GPUs'
	// UUIDs; nil as long as nobody needed that.
	split []group
	// nodes are those with a pool, with their labels; closed is Published.Closed.
	nodes  map[string]*corev1.Node
	closed func(node string) corev1.NodeSpec
	// published are all classes, classes those by their names.
	published []*resourceapi.DeviceClass
	classes   map[string]*resourceapi.DeviceClass
	// hasGPUs are the nodes that offer any, partial those of which something is
	// missing for the moment.
	hasGPUs map[string]bool
	partial []string
	// until is when a node that is away stops to count as such, zero where there is none.
	until time.Time
}

// pool is what the slices of one node offer.
type pool struct {
	node   string
	slices []*view.Slice
}

// group are the nodes of one kind, ordered by name.
type group struct {
	*kind
	Nodes []string
}

// Look makes a Survey of what is published now.
func (e *Surveyor) Look(p Published) (*Survey, error) {
	c := &Survey{
		surveyor: e, Settled: true, published: p.Classes, closed: p.Closed,
		nodes: map[string]*corev1.Node{}, classes: map[string]*resourceapi.DeviceClass{},
		hasGPUs: map[string]bool{}, Labels: map[string]bool{}, ClassOf: ClassOf(p.Classes),
	}
	for _, class := range p.Classes {
		c.classes[class.Name] = class
	}
	for _, labels := range p.Labels {
		for key := range labels {
			c.Labels[key] = true
		}
	}
	c.readPools(p.Slices)
	for _, pool := range c.pools {
		c.nodes[pool.node] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pool.node, Labels: p.Labels[pool.node]}}
	}
	e.forget(c.pools)
	known := e.kinds
	e.kinds = map[string]*kind{}
	var err error
	if c.groups, err = c.group(known, false); err != nil {
		return nil, err
	}
	for _, g := range c.groups {
		c.Settled = c.Settled && !g.has(v1alpha1.TaintSwitching)
		for _, node := range g.Nodes {
			c.hasGPUs[node] = len(g.Devices) > 0
		}
		for _, d := range g.Devices {
			m := mode.Mode(ptr.Deref(d.Attributes[v1alpha1.AttrMode].StringValue, ""))
			if m != "" && m != mode.Monitor && !slices.ContainsFunc(d.Taints, isPruned) {
				c.Modes = append(c.Modes, m)
			}
		}
	}
	slices.Sort(c.Modes)
	c.Modes = slices.Compact(c.Modes)
	c.waitForAway(p)
	return c, nil
}

// Until is when what is found may come to be another though nothing was published: a
// node whose GPUs are away is not waited for any longer. Zero: never.
func (c *Survey) Until() time.Time { return c.until }

// waitForAway finds the nodes that are about to offer something: those whose pool is
// published in part, and those that had GPUs. Labels stay while a node's GPUs are
// away, as when its kubelet is restarted; but they also stay when the GPUs are gone
// for good, and that is no reason to leave all pods of the cluster in hope.
func (c *Survey) waitForAway(p Published) {
	away := map[string]time.Time{}
	for node, labels := range p.Labels {
		if labels[ack.NodeLabelModel] != "" && !c.hasGPUs[node] {
			c.partial = append(c.partial, node)
		}
	}
	for _, node := range c.partial {
		since, known := c.surveyor.away[node]
		if !known {
			since = p.Now
		}
		away[node] = since
		if end := since.Add(awayMost); p.Now.Before(end) {
			c.Settled = false
			if c.until.IsZero() || end.Before(c.until) {
				c.until = end
			}
		}
	}
	c.surveyor.away = away
}

// readPools finds the pools that the scheduler allocates from, ordered by node.
func (c *Survey) readPools(published []*view.Slice) {
	byNode := map[string][]*view.Slice{}
	for _, slice := range published {
		if slice.Node != "" {
			byNode[slice.Node] = append(byNode[slice.Node], slice)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		newest, whole := view.Newest(node, byNode[node])
		if !whole {
			c.partial = append(c.partial, node)
			continue
		}
		slices.SortFunc(newest, func(a, b *view.Slice) int { return strings.Compare(a.Name, b.Name) })
		c.pools = append(c.pools, pool{node, newest})
	}
}

// forget keeps the numbers of shapes that are still published, and of no others.
func (e *Surveyor) forget(pools []pool) {
	ids := map[view.Shape]int{}
	for _, pool := range pools {
		for _, slice := range pool.slices {
			id, known := e.ids[slice.Shape]
			if _, again := ids[slice.Shape]; !known && !again {
				id = e.nextID
				e.nextID++
			} else if again {
				continue
			}
			ids[slice.Shape] = id
		}
	}
	e.ids = ids
}

// group finds the nodes that are alike. Kinds that are known are taken over.
func (c *Survey) group(known map[string]*kind, withUUIDs bool) ([]group, error) {
	var groups []group
	index := map[string]int{}
	for _, pool := range c.pools {
		// Nodes whose pools have the same key offer the same.
		var shapes strings.Builder
		for _, slice := range pool.slices {
			shapes.WriteString(strconv.Itoa(c.surveyor.ids[slice.Shape]))
			shapes.WriteByte('/')
			if withUUIDs {
				shapes.WriteString(strings.Join(slice.UUIDs, "/"))
			}
		}
		key := shapes.String()
		if i, ok := index[key]; ok {
			groups[i].Nodes = append(groups[i].Nodes, pool.node)
			continue
		}
		k := known[key]
		if k == nil {
			made, err := newKind(pool.slices, withUUIDs)
			if err != nil {
				return nil, fmt.Errorf("read the ResourceSlices of node %s: %w", pool.node, err)
			}
			k = made
		}
		c.surveyor.kinds[key], index[key] = k, len(groups)
		groups = append(groups, group{k, []string{pool.node}})
	}
	return groups, nil
}

func isPruned(t resourceapi.DeviceTaint) bool { return t.Key == v1alpha1.TaintWithdrawn }

// groupsFor returns the groups to look at for a request.
func (c *Survey) groupsFor(ctx context.Context, m *Meter, expressions []string) ([]group, error) {
	reads := false
	for _, expression := range expressions {
		compiled, err := c.surveyor.programs.compile(ctx, m, expression)
		if err != nil {
			return nil, err
		}
		reads = reads || compiled.readsUUID
	}
	if !reads {
		return c.groups, nil
	}
	if c.split == nil {
		split, err := c.group(c.surveyor.kinds, true)
		if err != nil {
			return nil, err
		}
		c.split = split
	}
	return c.split, nil
}

// TellsApart reports whether claims ask for GPUs by what nodes that are alike differ in.
func (c *Survey) TellsApart(ctx context.Context, m *Meter, claims []*resourceapi.ResourceClaim) bool {
	for _, expression := range c.selectorsOf(claims) {
		if compiled, err := c.surveyor.programs.compile(ctx, m, expression); err != nil || compiled.readsUUID {
			return true
		}
	}
	return false
}

// Ours reports whether a claim asks for devices of the driver, and whether for those of others.
func (c *Survey) Ours(claim *resourceapi.ResourceClaim) (some, others bool) {
	for i := range claim.Spec.Devices.Requests {
		for _, r := range Served(&claim.Spec.Devices.Requests[i]) {
			if c.IsOurs(r) {
				some = true
			} else {
				others = true
			}
		}
	}
	return some, others
}

// IsOurs reports whether a request is for devices of the driver.
func (c *Survey) IsOurs(r Request) bool { return r.OfDriver(c.classes[r.Class]) }

// Class is the DeviceClass of the name, nil if there is none.
func (c *Survey) Class(name string) *resourceapi.DeviceClass { return c.classes[name] }
