// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

// GPU is a GPU and what pods without a claim hold of it.
type GPU struct {
	gpu.GPU
	WithoutClaim deviceplugin.GPU
}

// Node is what there is on a node at one time. The order of claims and pods does not
// matter. Claims that are not allocated there, and pods that have ended, may be among
// them.
type Node struct {
	Name string
	GPUs []GPU
	// Partitioned are the GPUs in MIG mode, with the instances that the node offers, or could make.
	Partitioned []gpu.Partitioned
	Claims      []*resourceapi.ResourceClaim
	Pods        []*corev1.Pod
}

// Conflict is a pod that the driver cannot prepare a claim for.
type Conflict struct {
	Pod   *corev1.Pod
	Claim *resourceapi.ResourceClaim
	// Own says that the claim was made for this pod, and goes with it.
	Own bool
	// Reason is what the driver says: which GPU, and what of it is held.
	Reason error
}

// holds says whether what the pod's claims hold stays held.
func holds(pod *corev1.Pod) bool {
	return !deviceplugin.Ended(pod) && pod.DeletionTimestamp == nil && podstate.Started(pod)
}

// Conflicts lists the pods that wait and have a claim that does not fit beside those
// of pods that have started and stay, by the driver's own rule; ordered by namespace
// and name. Of pods that have not started none keeps another away: which of them is
// first is for the driver to decide.
func (n Node) Conflicts() []Conflict {
	claims := n.byName()
	return n.conflicts(claims, n.prepared(claims))
}

// concerned says whether a pod waits for a claim that was allocated the node's GPUs.
func (n Node) concerned() bool {
	claims := n.byName()
	return slices.ContainsFunc(n.Pods, func(pod *corev1.Pod) bool {
		return podstate.AwaitsClaims(pod) && len(used(pod, claims)) > 0
	})
}

// suspicious says whether there would be conflicts if all others had started that hold
// claims on the node; of Pods there need be only those that wait.
func (n Node) suspicious() bool {
	claims := n.byName()
	pendingPods, wanted := map[types.UID]bool{}, map[*resourceapi.ResourceClaim]bool{}
	for _, pod := range n.Pods {
		pendingPods[pod.UID] = true
		for _, u := range used(pod, claims) {
			wanted[u.claim] = true
		}
	}
	prepared := map[*resourceapi.ResourceClaim]bool{}
	for _, c := range claims {
		users, others := claim.Pods(c)
		others = others || slices.ContainsFunc(users,
			func(pod resourceapi.ResourceClaimConsumerReference) bool { return !pendingPods[pod.UID] })
		if !wanted[c] || others {
			prepared[c] = true
		}
	}
	return len(n.conflicts(claims, prepared)) > 0
}

// conflicts are those of the pods that wait, beside the claims that are prepared.
func (n Node) conflicts(claims map[name]*resourceapi.ResourceClaim,
	prepared map[*resourceapi.ResourceClaim]bool) []Conflict {
	var others []usage.Claim
	for _, c := range n.Claims {
		if !prepared[c] {
			continue
		}
		if grants, err := n.grants(c); err == nil {
			others = append(others, granted(c, grants))
		}
	}
	var conflicts []Conflict
	for _, pod := range n.Pods {
		if !podstate.AwaitsClaims(pod) {
			continue
		}
		for _, u := range used(pod, claims) {
			if prepared[u.claim] {
				continue
			}
			// What else is wrong with a claim the driver says; another GPU may not help.
			grants, err := n.grants(u.claim)
			if err != nil {
				continue
			}
			if err := usage.CheckOvercommit(others, n.withoutClaim, anyNumber, granted(u.claim, grants)); err != nil {
				conflicts = append(conflicts, Conflict{Pod: pod, Claim: u.claim, Own: u.own, Reason: err})
				break
			}
		}
	}
	slices.SortFunc(conflicts, func(a, b Conflict) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
	})
	return conflicts
}

// prepared are the claims that pods use which have started and stay: those that their specs
// name, and those that are reserved for them. A pod's author can have the first not be
// true, by what the claim says of its owner.
func (n Node) prepared(claims map[name]*resourceapi.ResourceClaim) map[*resourceapi.ResourceClaim]bool {
	stays := map[types.UID]bool{}
	prepared := map[*resourceapi.ResourceClaim]bool{}
	for _, pod := range n.Pods {
		if !holds(pod) {
			continue
		}
		stays[pod.UID] = true
		for _, u := range used(pod, claims) {
			prepared[u.claim] = true
		}
	}
	for _, c := range claims {
		users, _ := claim.Pods(c)
		for _, pod := range users {
			if pod.UID != "" && stays[pod.UID] {
				prepared[c] = true
			}
		}
	}
	return prepared
}

// anyNumber leaves it to the driver how many shares its node's isolation can keep
// apart: the node knows what isolates them, and nobody else.
func anyNumber(claim.Grant) (int64, error) { return 0, nil }

// name is that of a claim.
type name struct{ namespace, name string }

func (n Node) byName() map[name]*resourceapi.ResourceClaim {
	claims := map[name]*resourceapi.ResourceClaim{}
	for _, c := range n.Claims {
		if allocatedFrom(c, v1alpha1.PoolName(n.Name)) {
			claims[name{c.Namespace, c.Name}] = c
		}
	}
	return claims
}

// sharesGPUs says whether two claims were allocated devices of one pool that are, at
// least in part, the same GPUs.
func sharesGPUs(a, b *resourceapi.ResourceClaim) bool {
	of := indicesOf(a)
	for _, index := range indicesOf(b) {
		if slices.Contains(of, index) {
			return true
		}
	}
	return false
}

func indicesOf(c *resourceapi.ResourceClaim) []int {
	var all []int
	if c.Status.Allocation == nil {
		return nil
	}
	for _, result := range c.Status.Allocation.Devices.Results {
		if result.Driver != v1alpha1.DriverName {
			continue
		}
		// What has another name is no GPU of the driver's.
		indices, _, err := devices.ParseDeviceName(result.Device)
		if err == nil {
			all = append(all, indices...)
		}
	}
	return all
}

func allocatedFrom(c *resourceapi.ResourceClaim, pool string) bool {
	return c.Status.Allocation != nil && slices.ContainsFunc(c.Status.Allocation.Devices.Results, func(
		r resourceapi.DeviceRequestAllocationResult) bool {
		return r.Driver == v1alpha1.DriverName && r.Pool == pool
	})
}

// use is a claim that a pod uses.
type use struct {
	claim *resourceapi.ResourceClaim
	own   bool
}

// used lists those of the claims that a pod uses.
func used(pod *corev1.Pod, claims map[name]*resourceapi.ResourceClaim) []use {
	var uses []use
	for claimName, mustOwn := range resourceclaim.PodClaims(pod) {
		c := claims[name{pod.Namespace, claimName}]
		if c == nil || mustOwn && resourceclaim.IsForPod(pod, c, true) != nil {
			continue
		}
		uses = append(uses, use{c, mustOwn && resourceclaim.IsForPod(pod, c, false) == nil})
	}
	return uses
}

func (n Node) grants(c *resourceapi.ResourceClaim) ([]claim.Grant, error) {
	m := &gpu.Machine{Partitioned: n.Partitioned}
	for _, g := range n.GPUs {
		m.GPUs = append(m.GPUs, g.GPU)
	}
	return claim.Grants(c, v1alpha1.PoolName(n.Name), m)
}

func granted(c *resourceapi.ResourceClaim, grants []claim.Grant) usage.Claim {
	return usage.Claim{Namespace: c.Namespace, Name: c.Name, UID: c.UID, Grants: grants}
}

func (n Node) withoutClaim(uuid string) deviceplugin.GPU {
	i := slices.IndexFunc(n.GPUs, func(c GPU) bool { return c.UUID == uuid })
	if i < 0 {
		return deviceplugin.GPU{}
	}
	withoutClaim := n.GPUs[i].WithoutClaim
	if withoutClaim.Taken == (deviceplugin.Taken{}) {
		return withoutClaim
	}
	for _, pod := range n.Pods {
		if deviceplugin.Holds(pod) {
			withoutClaim.Pods = append(withoutClaim.Pods, pod.Namespace+"/"+pod.Name)
		}
	}
	slices.Sort(withoutClaim.Pods)
	if len(withoutClaim.Pods) == 0 {
		// The node knows whose claim it was.
		withoutClaim.Pods = []string{"a claim that is gone, while its pod's containers run: see the Events of node " + n.Name}
	}
	return withoutClaim
}

// GPUsOf returns the GPUs that a node publishes, ordered by index. It is false
// where its pool is not whole at the moment.
func GPUsOf(node string, published []*view.Slice) (found []GPU, whole bool, err error) {
	newest, whole := view.Newest(node, published)
	if !whole {
		return nil, false, nil
	}
	for _, slice := range newest {
		devices, _, err := slice.Shape.Offer()
		if err != nil {
			return nil, false, fmt.Errorf("GPUs of node %s: ResourceSlice %s: %w", node, slice.Name, err)
		}
		for i := range devices {
			if g, ok := read(&devices[i], slice.UUIDs[i]); ok {
				found = append(found, g)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b GPU) int { return cmp.Compare(a.Index, b.Index) })
	return merge(found), true, nil
}

// read returns the GPU that a device stands for; false where it stands for several, for a MIG
// instance, or for a monitor.
func read(d *resourceapi.Device, uuid string) (GPU, bool) {
	indices, m, err := devices.ParseDeviceName(d.Name)
	if err != nil || len(indices) != 1 || !m.OfNode() {
		return GPU{}, false
	}
	units, cores, closed := devices.Reserved(d)
	return GPU{
		GPU: gpu.GPU{
			Index: indices[0], UUID: uuid, Model: ptr.Deref(d.Attributes[v1alpha1.AttrModel].StringValue, ""),
			MemoryMiB: ptr.Deref(d.Attributes[v1alpha1.AttrMemoryMiB].IntValue, 0),
		},
		WithoutClaim: deviceplugin.GPU{
			Taken: deviceplugin.Taken{Amount: gpu.Amount{Units: units, Cores: cores}, Whole: closed},
		},
	}, true
}

// merge makes one GPU of those of an index, which on a dynamic node has a device for
// each mode. Only what holds in all modes is closed for sure.
func merge(devices []GPU) []GPU {
	var merged []GPU
	for _, g := range devices {
		if len(merged) == 0 || merged[len(merged)-1].Index != g.Index {
			merged = append(merged, g)
			continue
		}
		known := &merged[len(merged)-1].WithoutClaim
		known.Units, known.Cores = max(known.Units, g.WithoutClaim.Units), max(known.Cores, g.WithoutClaim.Cores)
		known.Whole = known.Whole && g.WithoutClaim.Whole
	}
	return merged
}
