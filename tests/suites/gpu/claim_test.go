// SPDX-License-Identifier: Apache-2.0

//go:build gpu

package gpu

import (
	"context"
	"fmt"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	upstream "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/preparetest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

const pool = "here/gpu"

func TestSliceDescribesTheGPUs(t *testing.T) {
	n := openNode(t)
	for _, m := range []mode.Mode{mode.Exclusive, mode.Share} {
		devices := devices.Build(n.machine, devices.Options{Pool: pool, Mode: m, Slots: mode.DefaultSlots,
			Isolation: "none"}).Pools[pool].Slices[0].Devices
		if len(devices) != len(n.machine.GPUs) {
			t.Fatalf("%s: %d devices for %d GPUs", m, len(devices), len(n.machine.GPUs))
		}
		for i, d := range devices {
			g := n.machine.GPUs[i]
			if got := ptr.Deref(d.Attributes[v1alpha1.AttrUUID].StringValue, ""); got != g.UUID {
				t.Errorf("%s: uuid %q, want %q", d.Name, got, g.UUID)
			}
			for _, name := range []resourceapi.QualifiedName{v1alpha1.AttrModel, v1alpha1.AttrDriverVersion,
				v1alpha1.AttrCUDADriverVersion, v1alpha1.AttrComputeCapability} {
				if _, ok := d.Attributes[name]; !ok {
					t.Errorf("%s has no %s", d.Name, name)
				}
			}
			memory := d.Capacity[v1alpha1.CapMemory].Value
			t.Log(d.Name, g.Model, "memory", memory.String())
		}
	}
}

// A claim on each GPU, prepared as for a pod; then the container runtime's
// own library applies its CDI devices to a container.
func TestPreparedClaimGivesAContainerItsGPU(t *testing.T) {
	n := openNode(t)
	ctx := t.Context()
	cdiDir := t.TempDir()
	p := n.preparer(t, cdi.Dir(cdiDir), &isolation.Registry{})
	for _, g := range n.machine.GPUs {
		c := claimOf(g.Index, g.Index, mode.Share, g.MemoryUnits(), 0)
		prepared, err := p.Prepare(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		checkContainer(t, containerWith(t, cdiDir, prepared.Devices[0].CDIDeviceIDs), g.Minor)
		if err := p.Unprepare(ctx, c.UID); err != nil {
			t.Error(err)
		}
	}
}

// preparer prepares claims on this machine, as the plugin does.
func (n node) preparer(t *testing.T, specs cdi.Dir, backends isolation.Backends) *prepare.Preparer {
	t.Helper()
	store, err := state.Open(t.TempDir())
	if err == nil {
		err = store.SetComplete()
	}
	if err != nil {
		t.Fatal(err)
	}
	p := prepare.New(prepare.Options{
		Pool: pool, Store: store, Specs: specs, BootID: "test", Isolation: backends,
		Cluster: preparetest.Cluster{}, Node: preparetest.Node{},
		Listener: preparetest.Listener{OnDamaged: func(_ context.Context, d state.Damaged) { t.Error(d) }},
	})
	p.SetInventory(&prepare.Inventory{Machine: n.machine, Base: n.base(t)})
	return p
}

// containerWith is a container with the CDI devices, as the container runtime's
// own library makes it.
func containerWith(t *testing.T, cdiDir string, ids []string) *oci.Spec {
	t.Helper()
	cache, err := upstream.NewCache(upstream.WithSpecDirs(cdiDir), upstream.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	container := &oci.Spec{}
	if unresolved, err := cache.InjectDevices(container, ids...); err != nil {
		t.Fatalf("%v, unresolved: %v", err, unresolved)
	}
	return container
}

// claimOf is a claim that was allocated a share of the GPU with the index.
func claimOf(number, index int, m mode.Mode, units, cores int64) *resourceapi.ResourceClaim {
	uid := types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", number))
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "test", Name: string(uid), UID: uid},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{
					Request: "gpu", Driver: v1alpha1.DriverName, Pool: pool, Device: devices.DeviceName(index, m),
					ShareID: ptr.To(uid),
					ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
						v1alpha1.CapMemory: *resource.NewQuantity(units*devices.GiB, resource.BinarySI),
						v1alpha1.CapCores:  *resource.NewQuantity(cores, resource.DecimalSI),
						v1alpha1.CapSlots:  *resource.NewQuantity(1, resource.DecimalSI),
					},
				}},
			}}},
	}
}

func checkContainer(t *testing.T, container *oci.Spec, minor int) {
	t.Helper()
	edits := specs.ContainerEdits{}
	for _, m := range container.Mounts {
		edits.Mounts = append(edits.Mounts, &specs.Mount{HostPath: m.Source, ContainerPath: m.Destination})
	}
	checkPaths(t, edits)
	gpus := map[string]bool{}
	for _, d := range container.Linux.Devices {
		var number int
		if _, err := fmt.Sscanf(d.Path, "/dev/nvidia%d", &number); err == nil {
			gpus[d.Path] = true
		}
	}
	if want := fmt.Sprintf("/dev/nvidia%d", minor); len(gpus) != 1 || !gpus[want] {
		t.Errorf("the container has the GPUs %v, want just %s", gpus, want)
	}
}
