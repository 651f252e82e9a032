// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// GPU is a GPU as its node's ResourceSlice shows it.
type GPU struct {
	Node, Device, UUID, Model string
	Index, Minor              int64
	// MemoryBytes is the capacity "memory".
	MemoryBytes int64
}

// DevicePath is where a container has the GPU.
func (c GPU) DevicePath() string { return fmt.Sprintf("/dev/nvidia%d", c.Minor) }

// Grant is a part of a claim's allocation.
type Grant struct {
	GPU     GPU
	Request string
	// Units is the memory that was charged, in GiB; 0 for a whole GPU.
	Units int64
	Admin bool
}

// Slice waits until a node has exactly one ResourceSlice for which the condition
// holds, and returns it. Nodes whose mode counts GPUs have several, see Devices.
func (c *Cluster) Slice(t *testing.T, node, what string,
	condition func(*resourceapi.ResourceSlice) error) *resourceapi.ResourceSlice {
	t.Helper()
	var slice *resourceapi.ResourceSlice
	Eventually(t, fmt.Sprintf("the ResourceSlice of node %s: %s", node, what), func(ctx context.Context) error {
		var err error
		if slice, err = c.slice(ctx, node); err != nil {
			return err
		}
		return condition(slice)
	})
	return slice
}

// PublishesNothing waits until the node has no ResourceSlice of the driver.
func (c *Cluster) PublishesNothing(t *testing.T, node string) {
	t.Helper()
	Eventually(t, "node "+node+" to have no ResourceSlice", func(ctx context.Context) error {
		switch pool, err := c.pool(ctx, node); {
		case errors.Is(err, errNoSlices):
			return nil
		case err != nil:
			return err
		default:
			return fmt.Errorf("it has %d", len(pool))
		}
	})
}

func (c *Cluster) slice(ctx context.Context, node string) (*resourceapi.ResourceSlice, error) {
	pool, err := c.pool(ctx, node)
	if err != nil {
		return nil, err
	}
	if len(pool) != 1 {
		return nil, fmt.Errorf("there are %d slices, want 1", len(pool))
	}
	return &pool[0], nil
}

// Devices waits until the devices of a node's pool, which may be in several
// slices, fulfil the condition, and returns them in the scheduler's order.
func (c *Cluster) Devices(t *testing.T, node, what string,
	condition func([]resourceapi.Device) error) []resourceapi.Device {
	t.Helper()
	var found []resourceapi.Device
	Eventually(t, fmt.Sprintf("the devices of node %s: %s", node, what), func(ctx context.Context) error {
		pool, err := c.pool(ctx, node)
		if err != nil {
			return err
		}
		found = devicesOfPool(pool)
		return condition(found)
	})
	return found
}

// pool lists the slices of a node, ordered by name. It is an error where they
// are not the whole of a pool, as in the midst of a change.
var errNoSlices = errors.New("there are no slices")

func (c *Cluster) pool(ctx context.Context, node string) ([]resourceapi.ResourceSlice, error) {
	list, err := c.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: fmt.Sprintf("spec.nodeName=%s,spec.driver=%s", node, v1alpha1.DriverName),
	})
	if err != nil {
		return nil, err
	}
	if len(list.Items) == 0 {
		return nil, errNoSlices
	}
	slices.SortFunc(list.Items, func(a, b resourceapi.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	for _, slice := range list.Items {
		pool := slice.Spec.Pool
		if pool.Generation != list.Items[0].Spec.Pool.Generation || pool.ResourceSliceCount != int64(len(list.Items)) {
			return nil, fmt.Errorf("there are %d slices, of which %s is of generation %d and one of %d", len(list.Items),
				slice.Name, pool.Generation, pool.ResourceSliceCount)
		}
	}
	return list.Items, nil
}

// devicesOfPool are the devices that claims can have something of, which a monitor is not.
func devicesOfPool(pool []resourceapi.ResourceSlice) []resourceapi.Device {
	var out []resourceapi.Device
	for _, slice := range pool {
		out = append(out, slice.Spec.Devices...)
	}
	return slices.DeleteFunc(out, func(d resourceapi.Device) bool {
		_, m, err := devices.ParseDeviceName(d.Name)
		return err == nil && m == mode.Monitor
	})
}

// GPUs lists the GPUs that a node publishes by themselves, ordered by index: the order of
// its devices changes with what is granted.
func (c *Cluster) GPUs(t *testing.T, node string) []GPU {
	t.Helper()
	found := newGPUs(node, c.Devices(t, node, "are there", func(devices []resourceapi.Device) error {
		if len(devices) == 0 {
			return errors.New("there are none")
		}
		return nil
	}))
	slices.SortStableFunc(found, func(a, b GPU) int { return cmp.Compare(a.Index, b.Index) })
	return found
}

func newGPUs(node string, published []resourceapi.Device) []GPU {
	out := make([]GPU, 0, len(published))
	for _, device := range published {
		if indices, _, err := devices.ParseDeviceName(device.Name); err == nil && len(indices) > 1 {
			continue
		}
		memory := device.Capacity[v1alpha1.CapMemory]
		out = append(out, GPU{
			Node:        node,
			Device:      device.Name,
			UUID:        ptr.Deref(device.Attributes[v1alpha1.AttrUUID].StringValue, ""),
			Model:       ptr.Deref(device.Attributes[v1alpha1.AttrModel].StringValue, ""),
			Index:       ptr.Deref(device.Attributes[v1alpha1.AttrIndex].IntValue, -1),
			Minor:       ptr.Deref(device.Attributes[v1alpha1.AttrMinor].IntValue, -1),
			MemoryBytes: memory.Value.Value(),
		})
	}
	return out
}

// Granted lists what the claims of a pod were allocated, in the order of the
// pod's claims and of their allocations.
func (n *Namespace) Granted(t *testing.T, pod string) []Grant {
	t.Helper()
	p := n.Get(t, pod)
	var names []string
	for _, status := range p.Status.ResourceClaimStatuses {
		names = append(names, ptr.Deref(status.ResourceClaimName, ""))
	}
	for _, claim := range p.Spec.ResourceClaims {
		if claim.ResourceClaimName != nil {
			names = append(names, *claim.ResourceClaimName)
		}
	}
	if extended := p.Status.ExtendedResourceClaimStatus; extended != nil {
		names = append(names, extended.ResourceClaimName)
	}
	var grants []Grant
	for _, name := range names {
		claim := Get(t, n.Client.ResourceV1().ResourceClaims(n.Name), name)
		grants = append(grants, n.grantsOf(t, claim)...)
	}
	return grants
}

func (n *Namespace) grantsOf(t *testing.T, claim *resourceapi.ResourceClaim) []Grant {
	t.Helper()
	if claim.Status.Allocation == nil {
		t.Fatalf("claim %s is not allocated", claim.Name)
	}
	published := map[string][]GPU{}
	var grants []Grant
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != v1alpha1.DriverName {
			continue
		}
		node := strings.TrimSuffix(result.Pool, "/gpu")
		if published[node] == nil {
			published[node] = n.GPUs(t, node)
		}
		memory := result.ConsumedCapacity[v1alpha1.CapMemory]
		for _, g := range gpusOf(t, claim.Name, result.Device, published[node]) {
			grants = append(grants, Grant{
				GPU: g, Request: result.Request, Units: memory.Value() / devices.GiB,
				Admin: ptr.Deref(result.AdminAccess, false),
			})
		}
	}
	return grants
}

// gpusOf are the GPUs that an allocated device stands for.
func gpusOf(t *testing.T, claim, device string, published []GPU) []GPU {
	t.Helper()
	indices, m, err := devices.ParseDeviceName(device)
	expect.NoError(t, err)
	var out []GPU
	for _, index := range indices {
		name := devices.DeviceName(index, m)
		if m == mode.MIG {
			name = device
		}
		i := slices.IndexFunc(published, func(c GPU) bool {
			return c.Device == name || m == mode.Monitor && c.Index == int64(index)
		})
		if i < 0 {
			t.Fatalf("claim %s holds device %s, and GPU %d is not published in its mode", claim, device, index)
		}
		out = append(out, published[i])
	}
	return out
}

// UnitsByGPU sums what all pods of the namespace hold of each GPU of a node,
// in the order of the GPUs.
func (n *Namespace) UnitsByGPU(t *testing.T, node string) []int64 {
	t.Helper()
	list, err := n.Client.ResourceV1().ResourceClaims(n.Name).List(t.Context(), metav1.ListOptions{})
	expect.NoError(t, err)
	published := n.GPUs(t, node)
	units := make([]int64, len(published))
	for i := range list.Items {
		if list.Items[i].Status.Allocation == nil {
			continue
		}
		for _, grant := range n.grantsOf(t, &list.Items[i]) {
			if grant.GPU.Node == node && !grant.Admin {
				units[grant.GPU.Index] += grant.Units
			}
		}
	}
	return units
}
