// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// nodeFacts is what the publisher goes by of a Node object.
type nodeFacts struct {
	labels map[string]string
	// devicePlugin lists the resources of GPU device plugins that the node
	// offers, in order.
	devicePlugin []string
	// withDevices lists the resources of which one has devices, healthy or not, in order. It is
	// empty where a label is required: it tells whether the device plugin is gone.
	withDevices []string
	// hadDevicePlugin says that one has offered some, now or before.
	hadDevicePlugin bool
	// waiting says who waits for what is held back to spread shares, a placement.Waiting.
	waiting string
	// missingLabel is the label that the node lacks to be offered at all.
	missingLabel string
	// hasGPUs says that a label tells so: the mode, or the model that outlasts what was published.
	hasGPUs bool
}

func factsOf(node *corev1.Node, requiredLabel string) *nodeFacts {
	f := &nodeFacts{labels: map[string]string{}, waiting: node.Annotations[v1alpha1.AnnotationWaiting]}
	if _, ok := node.Labels[requiredLabel]; !ok {
		f.missingLabel = requiredLabel
	}
	f.hasGPUs = node.Labels[ack.NodeLabelSchedule] != "" || node.Labels[ack.NodeLabelModel] != ""
	for _, key := range append(mode.Labels(), v1alpha1.LabelMPSDaemon, v1alpha1.LabelGPUDriver) {
		if value, ok := node.Labels[key]; ok {
			f.labels[key] = value
		}
	}
	// Nobody but a kubelet writes these: where a DeviceClass stands for nvidia.com/gpu
	// it does not come into the status. Capacity does not count by itself: the kubelet
	// keeps it for minutes after the device plugin is gone.
	for _, name := range slices.Sorted(maps.Keys(node.Status.Allocatable)) {
		if quantity := node.Status.Allocatable[name]; deviceplugin.Native(name) && !quantity.IsZero() {
			f.devicePlugin = append(f.devicePlugin, string(name))
		}
	}
	// gpu-compat-controller shows some of these for tools to read.
	owners := legacy.ReadOwners(node.ManagedFields)
	for _, name := range owners.Offered(node.Status.Allocatable) {
		f.devicePlugin = append(f.devicePlugin, string(name))
	}
	// The kubelet leaves an amount of 0 in the capacity of what device plugins offered.
	ours, _ := owners.OursAlone()
	for _, name := range slices.Sorted(maps.Keys(node.Status.Capacity)) {
		if !deviceplugin.OfPlugin(name) || slices.Contains(ours, name) {
			continue
		}
		f.hadDevicePlugin = true
		if quantity := node.Status.Capacity[name]; requiredLabel == "" && !quantity.IsZero() {
			f.withDevices = append(f.withDevices, string(name))
		}
	}
	return f
}
