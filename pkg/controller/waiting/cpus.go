// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// CPUs of a container's own are published by another driver. What is free of its devices is not known here, only how it
// publishes them.
const (
	// orCPUs is added to the message for a pod that could have its GPUs.
	orCPUs = ". CPUs may be missing, too: the pod asks for %d of class " + legacy.ClassCPUs
	// onlyCPUs is for a pod that asks for no GPU by a claim.
	onlyCPUs = "no node for the pod has the %d exclusive CPUs free that it asks for by claims of class " +
		legacy.ClassCPUs + ": the CPUs of a claim must be of one NUMA node, or half of them of each of two (annotation " +
		ack.AnnotationCPUSet + ")"
	// cpusMost is how many slices are read of that driver.
	cpusMost = 500
	// faultyNodesMost is how many nodes a message names.
	faultyNodesMost = 3
)

// askedCPUs are those that a pod asks for, and why devices that there are cannot serve it.
type askedCPUs struct {
	amount int64
	faults string
}

// withoutCPUs returns the claims without what they ask of the driver for CPUs, those that
// ask for nothing else left out, and how many CPUs that is.
func withoutCPUs(claims []*resourceapi.ResourceClaim) (others []*resourceapi.ResourceClaim, cpus int64) {
	for _, claim := range claims {
		without, amount := legacy.WithoutCPUs(claim)
		if claim.Status.Allocation == nil {
			cpus += amount
		}
		if len(without.Spec.Devices.Requests) > 0 || claim.Status.Allocation != nil {
			others = append(others, without)
		}
	}
	return others, cpus
}

// mayBeMissing is added for a pod that asks for CPUs, too.
func (c askedCPUs) mayBeMissing() string {
	if c.amount == 0 {
		return ""
	}
	return fmt.Sprintf(orCPUs, c.amount) + c.faults
}

// missing is what there is to say to a pod that waits for CPUs alone.
func (c askedCPUs) missing(said string) string {
	if c.amount == 0 || !strings.Contains(said, podstate.NoDevices) {
		return ""
	}
	return fmt.Sprintf(onlyCPUs, c.amount) + c.faults
}

// cpuFaults says why devices of the driver for CPUs cannot serve pods with GPUs, and what would.
func (e *explainer) cpuFaults(ctx context.Context) (string, error) {
	now := e.rooms.now()
	if now.Sub(e.cpusRead) < fresh {
		return e.cpusTold, nil
	}
	published, err := e.client.ResourceSlices().List(ctx, metav1.ListOptions{Limit: cpusMost,
		FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + legacy.ClassCPUs})
	if err != nil {
		return "", fmt.Errorf("list the ResourceSlices of driver %s, for which a pod waits: %w", legacy.ClassCPUs, err)
	}
	told, faulty := ". No node publishes devices of class "+legacy.ClassCPUs, map[string][]string{}
	for _, slice := range published.Items {
		if slice.Spec.Driver != legacy.ClassCPUs {
			continue
		}
		told = ""
		if why, do := explain.CPUsUnfit(slice.Spec.Devices); why != "" {
			fault := " " + why + ". It takes " + do
			faulty[fault] = append(faulty[fault], ptr.Deref(slice.Spec.NodeName, ""))
		}
	}
	for _, fault := range slices.Sorted(maps.Keys(faulty)) {
		nodes := slices.Compact(slices.Sorted(slices.Values(faulty[fault])))
		told += ". On node " + text.List(nodes, faultyNodesMost) + fault
	}
	e.cpusRead, e.cpusTold = now, told
	return told, nil
}
