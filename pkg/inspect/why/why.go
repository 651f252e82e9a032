// SPDX-License-Identifier: Apache-2.0

// Package why answers what kubectl inspect cgpu explain asks: of a pod or a claim that waits,
// which GPUs were looked at, what each lacks and what would help; of one that has its GPUs,
// which they are. Whether there is room is the scheduler's allocator's to say
// (scheduling.Engine.FindRoom), and the words for what never fits are those of the controller's
// Events (explain.Cluster).
package why

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	gpuclaim "github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain/advice"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// messageMost is how much is shown, in bytes and on one line, of what an object says: it can
// quote what the pod's owner wrote.
const messageMost = 1024

// Input is what is known of a pod or a claim, and of its cluster.
type Input struct {
	scheduling.Snapshot
	// Engine is what answers all questions; nil is a new one.
	Engine *scheduling.Engine
	// Room is where the pod finds devices, nil where nobody has looked.
	Room *scheduling.Room
	// Now is when that was so.
	Now time.Time
	// Pod is the pod; where a claim is asked for, one that uses it, or nil.
	Pod *corev1.Pod
	// Claim is the claim that is asked for; nil where it is a pod.
	Claim *resourceapi.ResourceClaim
	// PodClaims are those of the pod that are there, in its order; Missing says of each other
	// one why it is not.
	PodClaims []*resourceapi.ResourceClaim
	Missing   []string
	// NotPrepared is why the kubelet could not prepare the claims of a pod that does not run yet; empty where it said
	// nothing.
	NotPrepared string
	// Group is that of a pod that waits; nil where it is of none, or that could not be read.
	Group *Group
	// OthersUnknown says that claims of other namespaces could not be read.
	OthersUnknown bool
	// NodesUnknown says that nodes could not be read: only their names are known. PodsUnknown
	// says that who uses the claim could not be read.
	NodesUnknown, PodsUnknown bool
	// Used is what claims of the pod's namespace use; nil where that is not known.
	Used map[ClaimGPU]Use
	// Notes say what could not be read.
	Notes []string
}

// ClaimGPU is a claim and one of its GPUs, by its index on the node. Where a container has the GPU by several claims,
// Claim is their names, joined by commas.
type ClaimGPU struct {
	Claim string
	GPU   int
}

// Use is what the processes of a claim's containers use of a GPU.
type Use struct {
	MemoryBytes int64
	Processes   int
	// Unknown says that more is used, of which it is not known whether it is the pod's.
	Unknown bool
}

// HasGPUs reports whether the pod has devices of the driver by a claim.
func (in *Input) HasGPUs() bool {
	return slices.ContainsFunc(in.PodClaims, func(c *resourceapi.ResourceClaim) bool {
		return c.Status.Allocation != nil && slices.ContainsFunc(c.Status.Allocation.Devices.Results,
			func(r resourceapi.DeviceRequestAllocationResult) bool { return r.Driver == v1alpha1.DriverName })
	})
}

// Answer is what there is to say. Its JSON form is an interface: fields are added, never renamed.
type Answer struct {
	// Headline is the answer in a sentence.
	Headline string `json:"headline"`
	// Why is what the headline says of a pod that waits, without who waits.
	Why string `json:"-"`
	// Fits reports whether there is room now; nil where it was not looked for, or Unsearched: not searched to the end.
	Fits       *bool `json:"fits,omitempty"`
	Unsearched bool  `json:"unsearched,omitempty"`
	// Asked are the requests, a line for each.
	Asked []string `json:"asked,omitempty"`
	// Gang is the group of a pod that waits.
	Gang *Gang `json:"gang,omitempty"`
	// Nodes are those that were looked at, the nearest first. More is how many are left out,
	// GPUs how many GPUs all of them have.
	Nodes []Node `json:"nodes,omitempty"`
	More  int    `json:"moreNodes,omitempty"`
	GPUs  int    `json:"gpus,omitempty"`
	// Help are ways out, Said what others said: the scheduler, the kubelet.
	Help []string `json:"help,omitempty"`
	Said []string `json:"said,omitempty"`
	// Has are the devices that it has.
	Has []Device `json:"has,omitempty"`
	// Notes say what could not be read.
	Notes []string `json:"notes,omitempty"`
}

// Node is what a node lacks; it has room where that is nothing.
type Node struct {
	Name  string   `json:"name"`
	GPUs  int      `json:"gpus"`
	Lacks []string `json:"lacks,omitempty"`
}

// nodesMost is how many nodes are shown: those after it lack more.
const nodesMost = 12

// Limits of what an explanation may cost: who asks waits for it, and asks once.
var limits = explain.Limits{
	Cost: 100 * resourceapi.CELSelectorExpressionMaxCost, Time: 20 * time.Second, Combined: 20,
}

// Of answers. An error is one of the objects that were read, or the context's.
func Of(ctx context.Context, in Input) (*Answer, error) {
	if in.Engine == nil {
		in.Engine = scheduling.NewEngine(scheduling.ExpressionsMost)
	}
	a := &Answer{Notes: in.Notes}
	what := nameOf(in)
	switch {
	case in.Pod == nil && in.Claim.Status.Allocation == nil:
		a.Headline = what + " is not allocated"
		if !in.PodsUnknown {
			a.Headline += ", and no pod waits for it"
		}
		a.Headline += ": a claim is allocated when a pod that names it is scheduled"
		_, err := a.room(ctx, in, in.tolerant(), []*resourceapi.ResourceClaim{in.Claim}, what)
		return a, err
	case in.Claim != nil && in.Claim.Status.Allocation != nil:
		a.Headline = what + " is allocated" + reserved(in.Claim)
		a.has(in, []*resourceapi.ResourceClaim{in.Claim})
	case gpuclaim.Ended(in.Pod):
		a.Headline = fmt.Sprintf("%s has ended (%s): it holds no GPUs", what, in.Pod.Status.Phase)
	case in.Claim != nil && in.Pod.Spec.NodeName != "":
		a.Headline = fmt.Sprintf("%s is not allocated, though pod %s, which uses it, is on node %s: a claim is allocated "+
			"when the scheduler places a pod, and it does not look at one whose nodeName is set", what, in.Pod.Name,
			in.Pod.Spec.NodeName)
	case in.Pod.Spec.NodeName != "":
		a.onNode(in, what)
	default:
		return a, a.waits(ctx, in, what)
	}
	return a, nil
}

// nameOf is how the answer calls what was asked for.
func nameOf(in Input) string {
	if in.Claim != nil {
		return "Claim " + in.Claim.Namespace + "/" + in.Claim.Name
	}
	return "Pod " + in.Pod.Namespace + "/" + in.Pod.Name
}

// waits answers for a pod that is on no node.
func (a *Answer) waits(ctx context.Context, in Input, what string) error {
	pod := in.anywhere(in.Pod)
	if in.Claim != nil {
		what += ", for which pod " + pod.Name + " waits,"
	}
	classOf, claims := scheduling.ClassOf(in.Classes), in.PodClaims
	if own := scheduling.ClaimForExtended(pod, classOf); own != nil && pod.Status.ExtendedResourceClaimStatus == nil {
		claims = append(claims[:len(claims):len(claims)], own)
		// On nodes of device plugins the scheduler uses what those have free.
		for _, name := range scheduling.ExtendedOf(in.Pod, classOf) {
			if in.offered(name) {
				a.Notes = append(a.Notes, "Some nodes have a device plugin that serves "+string(name)+": what it has free "+
					"is not looked at.")
			}
		}
	}
	a.Asked = explain.Asked(claims)
	a.Said = saidOf(pod, in.Group != nil)
	if advised := advice.Of(pod, advice.Cluster{
		Served:     func(name corev1.ResourceName) bool { return classOf(name) != nil || in.offered(name) },
		OnSomeNode: in.onSomeNode,
	}); advised != "" {
		a.Help = append(a.Help, advised)
	}
	if option := advice.Option(pod); option != "" {
		a.Help = append(a.Help, option)
	}
	switch {
	case pod.DeletionTimestamp != nil:
		a.say(what, "is being deleted")
		return nil
	case len(pod.Spec.SchedulingGates) > 0:
		a.say(what, "is not looked at by the scheduler: its schedulingGates hold it back ("+gates(pod)+")")
		switch {
		case placement.AtCostlyGate(pod):
			a.Help = append(a.Help, "gpu-compat-controller removes "+v1alpha1.GateCostlyClaims+" when the scheduler's search "+
				"is sure to be short; its Event "+v1alpha1.ReasonClaimWaiting+" says what is missing: "+
				"docs/packing.md#the-gate.")
		case placement.AtGate(pod):
			a.Help = append(a.Help, "gpu-compat-controller removes "+v1alpha1.GateBestNode+" within seconds, while it runs: "+
				"docs/packing.md#the-gate.")
		}
		return nil
	case len(in.Missing) > 0:
		a.say(what, "waits for claims that are not there: "+strings.Join(in.Missing, "; "))
		return nil
	case len(claims) == 0:
		a.say(what, "asks for no GPUs of this driver")
		return nil
	}
	if same := explain.SameClaim(pod); same != "" {
		a.sayWaits(what, same)
		return nil
	}
	if in.Group != nil {
		gang, err := fitGang(ctx, in, classOf)
		if err != nil {
			return err
		}
		a.Gang = gang
	}
	room, err := a.room(ctx, in, pod, claims, what)
	if err != nil || room.Fits() {
		return err
	}
	reason, atOnce, err := in.reason(ctx, pod, claims, room)
	if err != nil {
		return err
	}
	if atOnce {
		a.Help = []string{explain.FewerAtOnce}
	}
	if reason == "" {
		reason, _ = explain.Unsearched(room)
	} else {
		a.Fits, a.Unsearched = ptr.To(false), false
	}
	a.sayWaits(what, reason)
	return nil
}

// reason is why a pod for which there is no room waits; empty where it is not known whether there is any. atOnce says
// that no node has all that it asks for at once, whatever is given back.
func (in Input) reason(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim,
	room scheduling.Room) (reason string, atOnce bool, err error) {
	if errors.Is(room.Refused, scheduling.ErrUsers) {
		return room.Refused.Error(), false, nil
	}
	if allOnNodes(claims) {
		reason, err = in.elsewhere(claims, room)
		return reason, false, err
	}
	reason = "no node has room for its GPUs now"
	switch {
	case room.Refused != nil:
		reason = "the scheduler gives up before it has looked at all nodes: " + explain.Refused(room)
	case len(room.Unsearched()) > 0:
		reason = ""
	case slices.ContainsFunc(room.Nodes, func(n scheduling.NodeRoom) bool {
		return n.Closed.By == scheduling.Open && n.Farthest.Kind == scheduling.OfCPUs
	}):
		reason = "no node has room for its GPUs and its exclusive CPUs now"
	}
	if room.InUse(claims) {
		return reason, false, nil
	}
	never, err := in.never(ctx, pod, claims)
	return cmp.Or(never.Message, reason), never.AtOnce, err
}

// never is why a pod would find no devices whatever is free, in the controller's words; empty where it might.
func (in Input) never(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim) (explain.Explanation,
	error) {
	published := scheduling.Published{Labels: map[string]map[string]string{}, Classes: in.Classes, Now: in.Now}
	closed := map[string]corev1.NodeSpec{}
	published.Closed = func(node string) corev1.NodeSpec { return closed[node] }
	for _, node := range in.Nodes {
		published.Labels[node.Name], closed[node.Name] = node.Labels, node.Spec
	}
	for _, slice := range in.Slices {
		if slice.Spec.Driver == v1alpha1.DriverName {
			published.Slices = append(published.Slices, view.Read(slice))
		}
	}
	cluster, err := explain.New(in.Engine, limits).Look(published)
	if err != nil {
		return explain.Explanation{}, err
	}
	e, err := cluster.Explain(ctx, pod, claims)
	if err != nil || e.Busy || e.TooExpensive {
		return explain.Explanation{}, err
	}
	return e, nil
}

// anywhere is a pod without what its node has to be like, where that cannot be compared with
// nodes as only their names are known.
func (in Input) anywhere(pod *corev1.Pod) *corev1.Pod {
	if !in.NodesUnknown {
		return pod
	}
	pod = pod.DeepCopy()
	pod.Spec.NodeSelector, pod.Spec.Affinity = nil, nil
	return pod
}

// tolerant is a pod for a claim that none waits for. It tolerates the taints by which administrators keep nodes for
// GPUs, as the claim's pod would, and none by which Kubernetes says that a node is not well.
func (in Input) tolerant() *corev1.Pod {
	pod, tolerated := &corev1.Pod{}, map[string]bool{}
	for _, node := range in.Nodes {
		for _, taint := range node.Spec.Taints {
			if strings.HasPrefix(taint.Key, "node.kubernetes.io/") || tolerated[taint.Key] {
				continue
			}
			tolerated[taint.Key] = true
			pod.Spec.Tolerations = append(pod.Spec.Tolerations,
				corev1.Toleration{Key: taint.Key, Operator: corev1.TolerationOpExists})
		}
	}
	return pod
}

// byName are the nodes by their names.
func (in Input) byName() map[string]*corev1.Node {
	nodes := map[string]*corev1.Node{}
	for _, node := range in.Nodes {
		nodes[node.Name] = node
	}
	return nodes
}

// offered reports whether a device plugin of some node serves a resource.
func (in Input) offered(name corev1.ResourceName) bool {
	for _, node := range in.Nodes {
		if amount := node.Status.Allocatable[name]; !amount.IsZero() {
			return true
		}
	}
	return false
}

// onSomeNode reports whether any node has a label of the key.
func (in Input) onSomeNode(key string) bool {
	return slices.ContainsFunc(in.Nodes, func(n *corev1.Node) bool {
		_, has := n.Labels[key]
		return has
	})
}

func gates(pod *corev1.Pod) string {
	names := make([]string, 0, len(pod.Spec.SchedulingGates))
	for _, gate := range pod.Spec.SchedulingGates {
		names = append(names, gate.Name)
	}
	return strings.Join(names, ", ")
}

// saidOf is what the scheduler said of a pod; read says that its group is known.
func saidOf(pod *corev1.Pod, read bool) []string {
	var said []string
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse && condition.Message != "" {
			said = append(said, "The scheduler says: "+text.Bound(condition.Message, messageMost))
		}
	}
	if scheduler := advice.SilentScheduler(pod); scheduler != "" {
		said = append(said, "The "+advice.OfSilence(scheduler))
	}
	if group := pod.Spec.SchedulingGroup; group != nil && group.PodGroupName != nil && !read {
		said = append(said, "The pod is one of the gang (PodGroup) "+*group.PodGroupName+
			": it is placed when enough of the gang's pods find room at once")
	}
	return said
}
