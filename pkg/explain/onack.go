// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// The words of ACK's scheduler where it finds no GPUs (source: its plugins for shares
// and for topology). People search for them.
const (
	ackUnmatched = "node(s) owns gpu resources are not matched that pod requests"
	ackShort     = "node(s) didn't have enough device resources to allocate"
	ackFewGPUs   = "not enough gpus with topology on the node"
)

const (
	// oneGPUEach is added to the message for a pod that waits for several GPUs where MPS
	// is what limits shares. ACK's scheduler says nothing of the kind.
	oneGPUEach = ". The pod asks for shares of several GPUs (label " + ack.PodLabelCount + "), and with MPS a " +
		"process can use one GPU: the pod needs a node in mode share, one whose shares something else than MPS limits, or " +
		"one whose GPUs have one MPS daemon (label " + v1alpha1.LabelMPSDaemon + "=" + v1alpha1.MPSDaemonNode + ")"
	// bothOfDynamic is added to the message for a pod that asks for a share in the manner of ACK
	// and for whole GPUs by nvidia.com/gpu, or another extended resource.
	bothOfDynamic = ". The pod asks for a share of a GPU (" + string(ack.ResourceMemory) +
		") and for whole GPUs: a node that gives it both is in mode dynamic"

	// allOfGPU is added to the message for a pod whose share has to be all of a GPU.
	allOfGPU = ". By its label " + ack.PodLabelPlacement + "=" + ack.RequireWholeDevice + ", the pod asks for a GPU " +
		"that has exactly its amounts: write those of a whole GPU, or remove the label"
)

// OnACK returns what is added to the message for a pod that asked in the manner of ACK: what it was
// told there; nothing for others, and where ACK's scheduler has no words of its own.
func (e Explanation) OnACK(claims []*resourceapi.ResourceClaim) string {
	var asked []resourceapi.DeviceRequest
	for _, claim := range claims {
		if isLegacy(claim) {
			asked = append(asked, claim.Spec.Devices.Requests...)
		}
	}
	const onACK = ". On ACK: "
	switch {
	case len(asked) == 0 || e.Message == "":
		return ""
	case e.Unoffered:
		return onACK + ackUnmatched
	case !e.Busy && !e.Short:
		return ""
	case slices.ContainsFunc(asked, forWholeGPUs):
		return onACK + ackFewGPUs
	default:
		return onACK + ackShort
	}
}

// More returns what is added to the message for a pod that asked in the manner of ACK, where it is not Busy.
func (c *Cluster) More(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim, e Explanation) (
	string, error) {
	several, err := c.withMPS(ctx, pod, claims, e)
	switch {
	case err != nil:
		return "", err
	case several:
		return oneGPUEach, nil
	case asksForBoth(e, claims):
		return bothOfDynamic + e.OnACK(claims), nil
	case !e.Busy && e.Message != "" && slices.ContainsFunc(pod.Spec.ResourceClaims, forAllOfAGPU):
		return allOfGPU + e.OnACK(claims), nil
	default:
		return e.OnACK(claims), nil
	}
}

func isLegacy(claim *resourceapi.ResourceClaim) bool {
	return claim.Labels[v1alpha1.LabelLegacy] == "true"
}

// withMPS reports whether a pod waits because it asks for several GPUs in the manner of
// ACK, and MPS limits the shares of those that it could have.
func (c *Cluster) withMPS(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim, e Explanation) (
	bool, error) {
	if !e.Short {
		return false, nil
	}
	several := false
	others := slices.Clone(claims)
	for i, claim := range claims {
		if !isLegacy(claim) {
			continue
		}
		other, is := legacy.AlsoMPS(claim)
		others[i], several = other, several || is
	}
	if !several {
		return false, nil
	}
	also, err := c.Explain(ctx, pod, others)
	return also.Busy, err
}

// asksForBoth reports whether a pod cannot have both because no node that it could go to serves
// both.
func asksForBoth(e Explanation, claims []*resourceapi.ResourceClaim) bool {
	share, whole := false, false
	for _, claim := range claims {
		requests := claim.Spec.Devices.Requests
		share = share || isLegacy(claim) && !slices.ContainsFunc(requests, forWholeGPUs)
		whole = whole || scheduling.OfScheduler(claim) || legacy.IsForNVIDIA(claim)
	}
	return share && whole && !e.Busy && e.Message != ""
}

// forAllOfAGPU reports whether a claim's template is that of a pod with PodLabelPlacement.
func forAllOfAGPU(c corev1.PodResourceClaim) bool {
	r, err := legacy.ParseName(ptr.Deref(c.ResourceClaimTemplateName, ""))
	return err == nil && r.Whole
}

func forWholeGPUs(r resourceapi.DeviceRequest) bool {
	const ofTopology = ".topology.gpu.aliyun.com"
	return r.Exactly != nil && strings.HasSuffix(r.Exactly.DeviceClassName, ofTopology) ||
		slices.ContainsFunc(r.FirstAvailable, func(s resourceapi.DeviceSubRequest) bool {
			return strings.HasSuffix(s.DeviceClassName, ofTopology)
		})
}
