// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// NativeResources lists what NVIDIA's device plugin serves GPUs as. The second is the
// name that it can be told to give to GPUs that it shares (source: k8s-device-plugin,
// renameByDefault).
func NativeResources() []corev1.ResourceName {
	return []corev1.ResourceName{"nvidia.com/gpu", "nvidia.com/gpu.shared"}
}

// Native reports whether NVIDIA's device plugin serves GPUs, or MIG instances, as the resource. With its
// strategy "mixed" each profile has a resource of its own, and which there are nobody can list.
func Native(name corev1.ResourceName) bool {
	return slices.Contains(NativeResources(), name) || strings.HasPrefix(string(name), v1alpha1.MIGResourcePrefix)
}

// Resources lists all that device plugins served GPUs as, but for MIG instances; see Native.
func Resources() []corev1.ResourceName {
	return append(NativeResources(), ack.ResourceMemory, ack.ResourceCores, ack.ResourceGPUs)
}

// OfPlugin reports whether a device plugin serves GPUs, parts of them or MIG instances as the resource.
func OfPlugin(name corev1.ResourceName) bool {
	return Native(name) || slices.Contains(Resources(), name)
}

// Container names a container of a pod.
type Container struct{ Namespace, Pod, Name string }

// Devices is what a container was given by device plugins.
type Devices struct {
	// Resources are those of Resources of which it has devices.
	Resources []corev1.ResourceName `json:"resources,omitempty"`
	// IDs are those of the devices of NativeResources. The others' say nothing.
	IDs []string `json:"ids,omitempty"`
}

// Kubelet is what the node's kubelet says of the devices that it gave to containers.
// Who writes pods has no part in it.
type Kubelet struct {
	// Containers has each container that the kubelet lists, also those without devices.
	Containers map[Container]Devices
	// Asked is when it was asked, by the clock that Observations.Observe is told.
	Asked time.Time
	// Err says why that is not known, nil if it is. Containers are then those that it listed before.
	Err error
}

// Node is what is known of the node that pods are bound to.
type Node struct {
	// GPUs are all that it is known to have, also those that are not handed out.
	GPUs []gpu.GPU
	// Instances are the indices of the GPUs that MIG instances are part of, by their UUIDs.
	Instances map[string]int
	Kubelet   Kubelet
	// Left is when the node was without a device plugin for the last time before none
	// came any more, by its clock: to pods that its kubelet took later none can have given anything. It
	// is zero where that is not known, or one may serve.
	Left time.Time
	// Observed is what pods were first seen with, by UID.
	Observed Observations
}

// Started reports whether a container of the pod has ever been started.
func Started(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning ||
		slices.ContainsFunc(pod.Status.ContainerStatuses, everStarted) ||
		slices.ContainsFunc(pod.Status.InitContainerStatuses, everStarted)
}

func everStarted(s corev1.ContainerStatus) bool {
	return s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil ||
		s.RestartCount > 0
}

// possible reports whether a device plugin may have given the pod what the kubelet does
// not tell.
func (n Node) possible(pod *corev1.Pod) bool {
	return Started(pod) && (n.Left.IsZero() || pod.Status.StartTime == nil || !pod.Status.StartTime.After(n.Left))
}

// devices is what the container was given, as it was seen first, or else as the kubelet
// says; false where the kubelet does not list it.
func (r *reader) devices(c corev1.Container) (Devices, bool) {
	if devices, ok := r.observed.Devices[c.Name]; ok {
		return devices, true
	}
	devices, ok := r.node.Kubelet.Containers[containerOf(r.pod, c)]
	return devices, ok && r.node.Kubelet.Err == nil
}

func containerOf(pod *corev1.Pod, c corev1.Container) Container {
	return Container{Namespace: pod.Namespace, Pod: pod.Name, Name: c.Name}
}

// given reports whether a container that asks for one of the resources was given devices
// of it, or may have been.
func (r *reader) given(names ...corev1.ResourceName) bool {
	return slices.ContainsFunc(r.pod.Spec.Containers, func(c corev1.Container) bool {
		asks := slices.ContainsFunc(names, func(name corev1.ResourceName) bool { return limit(c, name) > 0 })
		devices, listed := r.devices(c)
		switch {
		case !asks:
			return false
		case !listed:
			return r.possible
		default:
			return slices.ContainsFunc(names, func(name corev1.ResourceName) bool {
				return slices.Contains(devices.Resources,
					name)
			})
		}
	})
}
