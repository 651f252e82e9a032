// SPDX-License-Identifier: Apache-2.0

package pending

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// What ACK's scheduler says where it finds no GPUs (source: its plugins for shares
// and for topology). People search for these words.
const (
	ackUnmatched = "node(s) owns gpu resources are not matched that pod requests"
	ackShort     = "node(s) didn't have enough device resources to allocate"
	ackFewGPUs   = "not enough gpus with topology on the node"
)

// oneGPUEach is added to the message for a pod that waits for several GPUs where MPS
// is what limits shares. ACK's scheduler says nothing of the kind.
const oneGPUEach = ". The pod asks for shares of several GPUs (label " + ack.PodLabelCount + "), and with MPS a " +
	"process can use one GPU: the pod needs a node in mode share, one whose shares something else than MPS limits, or " +
	"one whose GPUs have one MPS daemon (label " + v1alpha1.LabelMPSDaemon + "=" + v1alpha1.MPSDaemonNode + ")"

// withMPS says whether a pod waits because it asks for several GPUs in the manner of
// ACK, and MPS limits the shares of those that it could have.
func (w *watcher) withMPS(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim,
	e explain.Explanation) (bool, error) {
	if !e.Short {
		return false, nil
	}
	several := false
	others := slices.Clone(claims)
	for i, claim := range claims {
		if claim.Labels[v1alpha1.LabelLegacy] != "true" {
			continue
		}
		other, is := legacy.AlsoMPS(claim)
		others[i], several = other, several || is
	}
	if !several {
		return false, nil
	}
	also, err := w.cluster.Explain(ctx, pod, others)
	return also.Busy, err
}

// asOnACK adds to the message for a pod that asked in the manner of ACK what it was
// told there; nothing where ACK's scheduler has no words of its own.
func asOnACK(e explain.Explanation, claims []*resourceapi.ResourceClaim) string {
	var asked []resourceapi.DeviceRequest
	for _, claim := range claims {
		if claim.Labels[v1alpha1.LabelLegacy] == "true" {
			asked = append(asked, claim.Spec.Devices.Requests...)
		}
	}
	text := ""
	switch {
	case len(asked) == 0 || e.Message == "":
	case e.Unoffered:
		text = ackUnmatched
	case e.Busy || e.Short:
		text = ackShort
		if slices.ContainsFunc(asked, forWholeGPUs) {
			text = ackFewGPUs
		}
	}
	if text == "" {
		return ""
	}
	return ". On ACK: " + text
}

// bothOfDynamic is added to the message for a pod that asks for a share in the manner of ACK
// and for whole GPUs by nvidia.com/gpu, or another extended resource.
const bothOfDynamic = ". The pod asks for a share of a GPU (" + string(ack.ResourceMemory) +
	") and for whole GPUs: a node that gives it both is in mode dynamic"

// asksForBoth says whether a pod cannot have both because no node that it could go to serves
// both.
func asksForBoth(e explain.Explanation, claims []*resourceapi.ResourceClaim) bool {
	share, whole := false, false
	for _, claim := range claims {
		requests := claim.Spec.Devices.Requests
		share = share || claim.Labels[v1alpha1.LabelLegacy] == "true" && !slices.ContainsFunc(requests, forWholeGPUs)
		whole = whole || scheduling.OfScheduler(claim) ||
			legacy.IsForNVIDIA(claim)
	}
	return share && whole && !e.Busy && e.Message != ""
}

func forWholeGPUs(r resourceapi.DeviceRequest) bool {
	const ofTopology = ".topology.gpu.aliyun.com"
	return r.Exactly != nil && strings.HasSuffix(r.Exactly.DeviceClassName, ofTopology) ||
		slices.ContainsFunc(r.FirstAvailable, func(s resourceapi.DeviceSubRequest) bool {
			return strings.HasSuffix(s.DeviceClassName, ofTopology)
		})
}

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
