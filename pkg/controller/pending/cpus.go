// SPDX-License-Identifier: Apache-2.0

package pending

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// CPUs of a container's own are published by another driver, whose devices are not known
// here.
const (
	// orCPUs is added to the message for a pod that could have its GPUs.
	orCPUs = ". It may also be CPUs that are missing: of class " + legacy.ClassCPUs + " the pod asks for %d"
	// onlyCPUs is for a pod that asks for no GPU by a claim.
	onlyCPUs = "no node that the pod can go to has the %d CPUs of its own free that it asks for by claims of class " +
		legacy.ClassCPUs + ": those of a claim have to be of one NUMA node, or half of them each of two (annotation " +
		ack.AnnotationCPUSet + ")"
)

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

// noCPUs is what there is to say to a pod that waits for CPUs alone.
func noCPUs(cpus int64, said string) string {
	if cpus == 0 || !strings.Contains(said, podstate.NoDevices) {
		return ""
	}
	return fmt.Sprintf(onlyCPUs, cpus)
}
