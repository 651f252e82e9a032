// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// ofOneGPU is what a claim asks for of one GPU: the alternatives of each request, and how much that is together.
type ofOneGPU struct {
	requests [][]scheduling.Request
	gpu.Amount
}

// wish is what a pod waits for.
type wish struct {
	pod *corev1.Pod
	may scheduling.Where
	// claim is one that waits, parts are what all of them ask for.
	claim types.UID
	parts []ofOneGPU
}

// waiting is what a node is told of it.
func (w *wish) waiting(now time.Time) placement.Waiting {
	said := placement.Waiting{Claim: string(w.claim), At: now.UTC()}
	for _, p := range w.parts {
		said.GiB, said.Shares = max(said.GiB, p.Units), max(said.Shares, p.Shares)
	}
	return said
}

// wishOf is what a pod waits for; nil where it waits for no GPUs of this driver, or its claims are not there yet.
func (r *reconciler) wishOf(ctx context.Context, pod *corev1.Pod) (*wish, error) {
	claims, made, err := podstate.Claims(ctx, r.Client, pod)
	if err != nil || !made {
		return nil, err
	}
	w := &wish{pod: pod}
	if w.may, err = scheduling.Possible(pod, claims); err != nil {
		return nil, err
	}
	for _, claim := range claims {
		if claim.Status.Allocation != nil {
			continue
		}
		if parts := r.partsOf(claim.Spec.Devices); len(parts) > 0 {
			w.claim, w.parts = claim.UID, append(w.parts, parts...)
		}
	}
	if len(w.parts) == 0 {
		return nil, nil
	}
	return w, nil
}

// partsOf is what a claim asks for of this driver: the requests that a constraint has on one GPU together, all others
// by themselves.
func (r *reconciler) partsOf(claim resourceapi.DeviceClaim) []ofOneGPU {
	var parts []ofOneGPU
	at := map[int]int{}
	for i := range claim.Requests {
		request := &claim.Requests[i]
		served := slices.DeleteFunc(scheduling.Served(request), func(of scheduling.Request) bool {
			class, _ := r.caches.Classes.Get(of.Class)
			return !of.OfDriver(class)
		})
		if len(served) == 0 {
			continue
		}
		together := slices.IndexFunc(claim.Constraints, func(c resourceapi.DeviceConstraint) bool {
			return c.MatchAttribute != nil && string(*c.MatchAttribute) == v1alpha1.DriverName+"/"+string(v1alpha1.AttrUUID) &&
				(len(c.Requests) == 0 || slices.Contains(c.Requests, request.Name))
		})
		j, known := at[together]
		if together < 0 || !known {
			j, parts = len(parts), append(parts, ofOneGPU{})
			at[together] = j
		}
		p := &parts[j]
		p.requests = append(p.requests, served)
		p.Amount = gpu.Amount{Units: p.Units + memoryOf(served), Shares: p.Shares + 1}
	}
	return parts
}

// memoryOf is the least GiB that one of the alternatives asks for.
func memoryOf(alternatives []scheduling.Request) int64 {
	var all []int64
	for _, r := range alternatives {
		memory := r.Capacity[v1alpha1.CapMemory]
		all = append(all, memory.Value()/devices.GiB)
	}
	return slices.Min(all)
}

// mayFit reports whether a node takes the pod and has, for each request, a GPU that suits with room for all that is
// asked for of it, and shares of one of these are spread. Whether the requests fit together the scheduler finds out.
func (r *reconciler) mayFit(ctx context.Context, w *wish, name string) (bool, error) {
	node, exists := r.caches.Nodes.Get(name)
	newest, whole := view.Newest(name, r.caches.Slices.OnNode(name))
	if !exists || !whole || scheduling.ClosedTo(ctx, node.Node(), w.pod, w.may).By != scheduling.Open {
		return false, nil
	}
	taken := takenOf(name, r.caches.Claims.OnNode(name))
	var offered []resourceapi.Device
	for _, slice := range newest {
		some, _, err := slice.Offer()
		if err != nil {
			return false, err
		}
		offered = append(offered, some...)
	}
	hasRoom := func(d *resourceapi.Device, units int64) bool {
		memory, shared := d.Capacity[v1alpha1.CapMemory]
		return !shared || memory.Value.Value()/devices.GiB-taken[d.Name] >= units
	}
	ctx, cancel := context.WithTimeout(ctx, lookMost)
	defer cancel()
	spread := false
	for _, p := range w.parts {
		for _, alternatives := range p.requests {
			found := false
			for _, of := range alternatives {
				for _, d := range r.Engine.Suitable(ctx, r.caches.Classes.List(), offered, of) {
					room := hasRoom(&d, p.Units)
					found = found || room
					spread = spread || room && d.Attributes[v1alpha1.AttrMaxShares].IntValue != nil
				}
			}
			if !found {
				return false, nil
			}
		}
	}
	return spread, nil
}

// takenOf is how many GiB claims have of a node's devices, by name.
func takenOf(node string, claims []*resourceapi.ResourceClaim) map[string]int64 {
	taken := map[string]int64{}
	for _, claim := range claims {
		for _, r := range claim.Status.Allocation.Devices.Results {
			if r.Driver == v1alpha1.DriverName && r.Pool == v1alpha1.PoolName(node) {
				memory := r.ConsumedCapacity[v1alpha1.CapMemory]
				taken[r.Device] += memory.Value() / devices.GiB
			}
		}
	}
	return taken
}
