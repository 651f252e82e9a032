// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/topologytest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

var unlimited = explain.Limits{Cost: math.MaxUint64, Time: time.Hour, Combined: 1000}

const never = "the pod can never be scheduled on this cluster as it is: "

// site is what the nodes of a cluster publish.
type site struct {
	t      testing.TB
	slices []*view.Slice
	labels map[string]map[string]string
	// cordoned are nodes that take no new pods.
	cordoned []string
}

func newSite(t testing.TB) *site { return &site{t: t, labels: map[string]map[string]string{}} }

func (s *site) cordon(node string) *site {
	s.cordoned = append(s.cordoned, node)
	return s
}

func machine(t testing.TB, name string) *gpu.Machine {
	t.Helper()
	m, err := topologytest.Machine(t.Context(), filepath.Join("..", "..", "demo", "machines", name+".yaml"))
	expect.NoError(t, err)
	return m
}

// node adds a node with a machine of demo/machines in a mode.
func (s *site) node(name, machineName string, m mode.Mode, options ...func(*devices.Options)) *site {
	s.t.Helper()
	o := devices.Options{Pool: v1alpha1.PoolName(name), Mode: m, Slots: 20, Isolation: "none"}
	for _, option := range options {
		option(&o)
	}
	return s.publish(name, devices.Build(machine(s.t, machineName), o))
}

func (s *site) dynamicNode(name, machineName string) *site {
	s.t.Helper()
	var perMode []devices.Options
	for _, m := range []mode.Mode{mode.Exclusive, mode.Share, mode.CGPU, mode.CoreMem, mode.MPS} {
		perMode = append(perMode, devices.Options{Pool: v1alpha1.PoolName(name), Mode: m, Slots: 20,
			Isolation: "none"})
	}
	return s.publish(name, devices.BuildDynamic(machine(s.t, machineName), perMode))
}

func (s *site) publish(node string, resources resourceslice.DriverResources) *site {
	s.labels[node] = map[string]string{corev1.LabelHostname: node}
	pool := resources.Pools[v1alpha1.PoolName(node)]
	for i, slice := range pool.Slices {
		for j := range slice.Devices {
			// UUIDs are unique in a cluster, which those of machine files are not.
			if uuid := slice.Devices[j].Attributes[v1alpha1.AttrUUID].StringValue; uuid != nil {
				slice.Devices[j].Attributes[v1alpha1.AttrUUID] = resourceapi.DeviceAttribute{StringValue: ptr.To(node + *uuid)}
			}
		}
		s.slices = append(s.slices, view.Read(&resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05d-%s", i, node)},
			Spec:       devices.SliceSpec(node, v1alpha1.PoolName(node), pool, slice),
		}))
	}
	return s
}

func taint(key string) func(*devices.Options) {
	return func(o *devices.Options) {
		o.Taints = []resourceapi.DeviceTaint{{Key: key, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
}

// room is what is left of every GPU of the machine of demo/machines.
func room(t *testing.T, machineName string, left gpu.Amount) func(*devices.Options) {
	rooms := map[string]gpu.Amount{}
	for _, g := range machine(t, machineName).GPUs {
		rooms[g.UUID] = left
	}
	return func(o *devices.Options) { o.Room = rooms }
}

// closed taints the last GPU of the machine of demo/machines, of which so much is left; nil is for all.
func closed(t *testing.T, machineName, key string, left *gpu.Amount) func(*devices.Options) {
	all := machine(t, machineName).GPUs
	uuid := all[len(all)-1].UUID
	return func(o *devices.Options) {
		o.GPUTaints = map[string][]resourceapi.DeviceTaint{
			uuid: {{Key: key, Effect: resourceapi.DeviceTaintEffectNoSchedule}}}
		if left != nil {
			o.Room = map[string]gpu.Amount{uuid: *left}
		}
	}
}

func (s *site) published() scheduling.Published {
	s.t.Helper()
	classes, err := deviceclasses.Modes()
	expect.NoError(s.t, err)
	models, err := deviceclasses.Model("NVIDIA-A100-SXM4-80GB", nil)
	expect.NoError(s.t, err)
	quotas, err := deviceclasses.Quota()
	expect.NoError(s.t, err)
	classes = append(classes, quotas...)
	other := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic.example.com"}}
	return scheduling.Published{Slices: s.slices, Labels: s.labels, Classes: append(append(classes, models...), other),
		Closed: func(node string) corev1.NodeSpec {
			return corev1.NodeSpec{Unschedulable: slices.Contains(s.cordoned, node)}
		}}
}

func (s *site) explain(pod *corev1.Pod, claims ...*resourceapi.ResourceClaim) explain.Explanation {
	s.t.Helper()
	_, ctx := ktesting.NewTestContext(s.t)
	cluster, err := explain.New(engine, unlimited).Look(s.published())
	expect.NoError(s.t, err)
	e, err := cluster.Explain(ctx, pod, claims)
	expect.NoError(s.t, err)
	return e
}

type option func(*resourceapi.ExactDeviceRequest)

func request(name, class string, options ...option) resourceapi.DeviceRequest {
	e := &resourceapi.ExactDeviceRequest{DeviceClassName: class,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
	for _, option := range options {
		option(e)
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: e}
}

func count(n int64) option {
	return func(e *resourceapi.ExactDeviceRequest) { e.Count = n }
}

// everyOne is for all devices that match.
func everyOne(e *resourceapi.ExactDeviceRequest) {
	e.AllocationMode, e.Count = resourceapi.DeviceAllocationModeAll, 0
}

// asAdmin is for access beside those that hold a device.
func asAdmin(e *resourceapi.ExactDeviceRequest) { e.AdminAccess = ptr.To(true) }

func amount(name resourceapi.QualifiedName, quantity string) option {
	return func(e *resourceapi.ExactDeviceRequest) {
		if e.Capacity == nil {
			e.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		}
		e.Capacity.Requests[name] = resource.MustParse(quantity)
	}
}

func matching(expression string) option {
	return func(e *resourceapi.ExactDeviceRequest) {
		e.Selectors = append(e.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{
			Expression: expression}})
	}
}

func attribute(condition string) option {
	return matching(`device.attributes["gpu.aliyun.com"].` + condition)
}

func tolerating(key string) option {
	return func(e *resourceapi.ExactDeviceRequest) {
		e.Tolerations = []resourceapi.DeviceToleration{{Key: key, Operator: resourceapi.DeviceTolerationOpExists}}
	}
}

// firstOf is a request with alternatives.
func firstOf(name string, requests ...resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	out := resourceapi.DeviceRequest{Name: name}
	for _, r := range requests {
		e := r.Exactly
		out.FirstAvailable = append(out.FirstAvailable, resourceapi.DeviceSubRequest{
			Name: r.Name, DeviceClassName: e.DeviceClassName, AllocationMode: e.AllocationMode, Count: e.Count,
			Selectors: e.Selectors, Capacity: e.Capacity, Tolerations: e.Tolerations,
		})
	}
	return out
}

func claim(requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	}
}

// sameAttribute lets all devices of a claim have one value of an attribute.
func sameAttribute(c *resourceapi.ResourceClaim, name resourceapi.FullyQualifiedName) *resourceapi.ResourceClaim {
	c.Spec.Devices.Constraints = append(c.Spec.Devices.Constraints, resourceapi.DeviceConstraint{MatchAttribute: &name})
	return c
}

func podOn(node string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	if node != "" {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	}
	return pod
}

const (
	topologyClass = "topology.gpu.aliyun.com"
	shareClass    = "share.gpu.aliyun.com"
	wholeClass    = "exclusive.gpu.aliyun.com"
)
