// SPDX-License-Identifier: Apache-2.0

package podannotations

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// byContainer is an amount of each GPU for each container, both named by their
// index in decimal.
type byContainer map[string]map[string]int64

func (b byContainer) add(container, g string, amount int64) {
	if b[container] == nil {
		b[container] = map[string]int64{}
	}
	b[container][g] += amount
}

// topology is the value of the annotation of that name.
type topology struct {
	Allocated  map[string][]string `json:"allocatedGPUs"`
	Visible    []string            `json:"visibleGPUs"`
	AssumeTime int64               `json:"assumeTime"`
	Assigned   bool                `json:"assigned"`
}

// allocation is what a claim gives the containers of a pod.
type allocation struct {
	memory, cores byContainer
	whole         map[string][]string
	// shared are the indices of the GPUs of which the pod has shares, all those of
	// the whole GPUs it has; both ascending.
	shared, all []int
	units       int64
	at          time.Time
}

// GPUUnits returns the memory of a GPU in GiB units; false where the GPU is not
// known.
type GPUUnits func(index int) (int64, bool)

// For returns the annotations of a pod whose claim is allocated. A request of the
// claim is for the container that uses it; other requests are for none. Sidecars come
// after the containers: tools add up what a pod has of each GPU, and number
// spec.containers only. With units, annotations of the first version are among them if
// all shares are of one GPU, and that is known.
//
// What "assigned" means is true from the start: a device plugin takes pods that are
// not assigned for its own.
func For(pod *corev1.Pod, claim *resourceapi.ResourceClaim, units GPUUnits) (map[string]string, error) {
	a, err := read(pod, claim)
	if err != nil {
		return nil, err
	}
	annotations := map[string]string{}
	if len(a.memory) > 0 {
		annotations[ack.AnnotationMemory], err = encode(a.memory)
	}
	if err == nil && len(a.cores) > 0 {
		annotations[ack.AnnotationCores], err = encode(a.cores)
	}
	if err == nil && len(a.all) > 0 {
		all := texts(a.all)
		annotations[ack.AnnotationGroup], annotations[ack.AnnotationVisible] = strings.Join(all, ","), strings.Join(all, ",")
		annotations[ack.AnnotationTopology],
			err = encode(topology{Allocated: a.whole, Visible: all, AssumeTime: a.at.UnixNano(), Assigned: true})
	}
	if err != nil {
		return nil, err
	}
	if units != nil && len(a.shared) == 1 {
		if g, known := units(a.shared[0]); known {
			annotations[ack.AnnotationV1Index] = strconv.Itoa(a.shared[0])
			annotations[ack.AnnotationV1Pod] = strconv.FormatInt(a.units, 10)
			annotations[ack.AnnotationV1GPU] = strconv.FormatInt(g, 10)
			annotations[ack.AnnotationV1Assigned] = "true"
			annotations[ack.AnnotationV1AssumeTime] = strconv.FormatInt(a.at.UnixNano(), 10)
		}
	}
	return annotations, nil
}

func read(pod *corev1.Pod, claim *resourceapi.ResourceClaim) (*allocation, error) {
	a := &allocation{memory: byContainer{}, cores: byContainer{}, whole: map[string][]string{},
		at: pod.CreationTimestamp.Time}
	if at := claim.Status.Allocation.AllocationTimestamp; at != nil {
		a.at = at.Time
	}
	containers := slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers)
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != v1alpha1.DriverName || ptr.Deref(result.AdminAccess, false) {
			continue
		}
		request := resourceclaim.BaseRequestRef(result.Request)
		i := user(containers, len(pod.Spec.Containers), request)
		if i < 0 {
			// A pod that was not converted may use the whole claim, or call it otherwise.
			i = slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == request })
		}
		if i < 0 {
			continue
		}
		if err := a.add(strconv.Itoa(i), result); err != nil {
			return nil, fmt.Errorf("request %q of claim %s/%s: %w", result.Request, claim.Namespace, claim.Name, err)
		}
	}
	return a, nil
}

// user is the container that has a request for its own, -1 where there is none. It does not use their names: a
// template may have containers' places instead. Those from lasting on are init containers, which use another's share
// if they are no sidecars.
func user(containers []corev1.Container, lasting int, request string) int {
	for i, c := range containers {
		own := i < lasting || ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways
		if own && slices.Contains(c.Resources.Claims, corev1.ResourceClaim{Name: legacy.ClaimName, Request: request}) {
			return i
		}
	}
	return -1
}

func (a *allocation) add(container string, result resourceapi.DeviceRequestAllocationResult) error {
	indices, m, err := devices.ParseDeviceName(result.Device)
	if err != nil {
		return err
	}
	switch {
	case m == mode.Topology:
		a.whole[container] = append(a.whole[container], texts(indices)...)
		a.all = insert(a.all, indices)
	case m.Shared():
		memory, cores := result.ConsumedCapacity[v1alpha1.CapMemory], result.ConsumedCapacity[v1alpha1.CapCores]
		units, g := memory.Value()/devices.GiB, strconv.Itoa(indices[0])
		a.units += units
		a.memory.add(container, g, units)
		if percent := cores.Value(); percent > 0 {
			a.cores.add(container, g, percent)
		}
		a.shared = insert(a.shared, indices)
	}
	return nil
}

func insert(sorted, more []int) []int {
	sorted = append(sorted, more...)
	slices.Sort(sorted)
	return slices.Compact(sorted)
}

func texts(indices []int) []string {
	out := make([]string, 0, len(indices))
	for _, index := range indices {
		out = append(out, strconv.Itoa(index))
	}
	return out
}

func encode(value any) (string, error) {
	content, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("write %T as JSON: %w", value, err)
	}
	return string(content), nil
}
