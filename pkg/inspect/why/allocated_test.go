// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/why"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// on has a claim hold a share of a node, as the scheduler writes it: with the node that it binds its pods to.
func on(in *why.Input, name, node string) *resourceapi.ResourceClaim {
	claim := hold(in, "team-a", name, node, "gpu-0-share", "8Gi")
	claim.Name = name
	claim.Status.Allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn,
			Values: []string{node}}}}}}
	return claim
}

// beyond has a claim hold a device of another driver, which pods can use from the nodes of the selector, from all if it
// is nil.
func beyond(in *why.Input, name string, selector *corev1.NodeSelector) *resourceapi.ResourceClaim {
	claim := on(in, name, "n3")
	result := &claim.Status.Allocation.Devices.Results[0]
	result.Driver, result.Pool, result.Device = "net.example.com", "net", "vf-0"
	result.ShareID, result.ConsumedCapacity = nil, nil
	claim.Status.Allocation.NodeSelector = selector
	return claim
}

// A pod that shares claims which have their GPUs can be where these are alone.
func TestClaimsThatAreAllocatedWhereThePodCannotBe(t *testing.T) {
	const waits, free = "Pod team-a/train waits: ", "has the GPUs free"
	const excludes = "the pod's nodeSelector, its affinity or its other claims exclude it"
	checkAnswers(t, stage, map[string]situation{
		"a taint": {func(in *why.Input) { waiting(in, on(in, "c", "n3")) }, []string{
			waits + "claim c is allocated on node n3, but the pod does not tolerate its taint dedicated:NoSchedule.\n",
			"LACKS\nn3    1     the pod does not tolerate"}, []string{free, "no node has room", "What would help"}},
		"two claims, and many nodes before theirs": {func(in *why.Input) {
			*in = many(t, mode.Share, "", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
			in.Nodes[12].Spec.Unschedulable = true
			waiting(in, on(in, "c", "m13"), on(in, "d", "m13"))
		}, []string{waits + "claims c, d are allocated on node m13, but it takes no new pods (kubectl uncordon m13 ends " +
			"that).\n", "LACKS\nm13   4     it takes no new pods"}, []string{free}},
		"the pod's own selector": {func(in *why.Input) {
			waiting(in, on(in, "c", "n2"))
			in.Pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n1"}
		}, []string{waits + "claim c is allocated on node n2, but " + excludes + ".\n"}, []string{free}},
		"claims of two nodes": {func(in *why.Input) { waiting(in, on(in, "c", "n2"), on(in, "d", "n3")) }, []string{
			waits + "claim c is allocated on node n2, but " + excludes + "; claim d is allocated on node n3, but " + excludes +
				".\n"}, []string{free}},
		"a node that is gone": {func(in *why.Input) { waiting(in, on(in, "c", "n4")) }, []string{
			waits + "claim c is allocated on no node that is known.\n"}, []string{free}},
		"one whose node is known, and one for all nodes": {func(in *why.Input) {
			waiting(in, on(in, "c", "n3"), beyond(in, "net", nil))
		}, []string{waits + "claim c is allocated on node n3, but the pod does not tolerate its taint " +
			"dedicated:NoSchedule.\n"}, []string{free, "net is allocated", "on node n1"}},
		"one whose node is gone, and one for all nodes": {func(in *why.Input) {
			waiting(in, on(in, "c", "n4"), beyond(in, "net", nil))
		}, []string{waits + "claim c is allocated on no node that is known.\n"}, []string{free}},
		"one for all nodes": {func(in *why.Input) {
			waiting(in, beyond(in, "net", nil))
			cordonAll(in)
		}, []string{waits + "no node has room for its GPUs now.\n", "What would help:\n- node n1 has the GPUs free, but it " +
			"takes no new pods"}, []string{"allocated on"}},
		"one for a zone": {func(in *why.Input) {
			waiting(in, beyond(in, "net", &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone,
					Operator: corev1.NodeSelectorOpIn, Values: []string{"z"}}}}}}))
			cordonAll(in)
			for _, node := range in.Nodes[1:] {
				node.Labels = map[string]string{corev1.LabelTopologyZone: "z"}
			}
		}, []string{waits + "no node has room for its GPUs now.\n", "What would help:\n- node n2 has the GPUs free, but it " +
			"takes no new pods"}, []string{"allocated on"}},
		"one of two claims": {func(in *why.Input) {
			*in = many(t, mode.Share, "", 0, 0, 0, 0)
			in.Nodes[3].Spec.Unschedulable = true
			waiting(in, on(in, "c", "m04"), asking("team-a", "d", "share.gpu.aliyun.com", "1Gi"))
		}, []string{waits + "no node has room for its GPUs now.\n", "LACKS\nm04   4     it takes no new pods",
			"What would help:\n- node m04 has the GPUs free, but it takes no new pods"}, nil},
		"a node that takes the pod": {func(in *why.Input) { waiting(in, on(in, "c", "n2")) }, []string{
			"waits, but not for GPUs: those it asks for are free on node n2."}, nil},
	})
}

func cordonAll(in *why.Input) {
	for _, node := range in.Nodes {
		node.Spec.Unschedulable = true
	}
}

// Of a claim that is allocated it says whose it is: also pods of a group, which can come later.
func TestWhoHasAClaim(t *testing.T) {
	checkAnswers(t, stage, map[string]situation{
		"of a group of pods": {func(in *why.Input) {
			in.Claim = hold(in, "team-b", "big", "n2", "gpu-0-share", "17Gi")
			in.Claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{
				{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g"}}
		}, []string{"Claim team-b/big-gpu is allocated and reserved for podgroups g."}, []string{"no pod uses it"}},
		"of a pod and a group": {func(in *why.Input) {
			in.Claim = hold(in, "team-b", "big", "n2", "gpu-0-share", "17Gi")
			in.Claim.Status.ReservedFor = append(in.Claim.Status.ReservedFor,
				resourceapi.ResourceClaimConsumerReference{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g"})
		}, []string{"is allocated and used by pod team-b/big and reserved for podgroups g."}, nil},
		"of nobody": {func(in *why.Input) {
			in.Claim = hold(in, "team-b", "big", "n2", "gpu-0-share", "17Gi")
			in.Claim.Status.ReservedFor = nil
		}, []string{"is allocated, and no pod uses it: it holds its GPUs until it is deleted."}, nil},
	})
}

// Nobody knows what the pod of a claim would tolerate that none waits for.
func TestClaimWithoutPodWhereNodesAreTainted(t *testing.T) {
	checkAnswers(t, stage, map[string]situation{
		"on nodes that are for GPUs alone": {func(in *why.Input) {
			in.Claim = asking("team-a", "c", "share.gpu.aliyun.com", "8Gi")
			in.Nodes[1].Spec.Taints = append(in.Nodes[2].Spec.Taints, corev1.Taint{Key: "node.example.com/soft",
				Effect: corev1.TaintEffectPreferNoSchedule})
		}, []string{"It would fit on node n2 (gpu-0-share; tainted dedicated:NoSchedule), node n3 (gpu-0-share; tainted " +
			"dedicated:NoSchedule), for a pod that tolerates the taints.\n", "n3    1     nothing: it has room"},
			[]string{"does not tolerate", "soft"}},
		"on such a node and another": {func(in *why.Input) {
			in.Claim = asking("team-a", "c", "share.gpu.aliyun.com", "8Gi")
		}, []string{". It would fit on node n2 (gpu-0-share). It would fit on node n3 (gpu-0-share; tainted " +
			"dedicated:NoSchedule), for a pod that tolerates the taints.\n"}, nil},
		"where Kubernetes closes nodes": {func(in *why.Input) {
			in.Claim = asking("team-a", "c", "share.gpu.aliyun.com", "8Gi")
			in.Nodes[1].Spec.Unschedulable = true
			in.Nodes[2].Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute}}
		}, []string{"node n2 has the GPUs free, but it takes no new pods",
			"node n3 has the GPUs free, but the pod does not tolerate its taint node.kubernetes.io/not-ready:NoExecute"},
			[]string{"would fit"}},
	})
}

// used has a claim have as many users as Kubernetes takes, or fewer by some.
func used(claim *resourceapi.ResourceClaim, fewer int) *resourceapi.ResourceClaim {
	claim.Status.ReservedFor = nil
	for i := range resourceapi.ResourceClaimReservedForMaxSize - fewer {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{
			Resource: "pods", Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint("uid-", i))})
	}
	return claim
}

// The scheduler finds a node for one user more, and the API server takes no entry more in reservedFor.
func TestClaimOfAsManyPodsAsKubernetesTakes(t *testing.T) {
	const full = "waits: claim team-a/c has 256 users, as many as Kubernetes lets a claim have: it takes another when " +
		"one of them is gone."
	checkAnswers(t, stage, map[string]situation{
		"the next pod": {func(in *why.Input) { waiting(in, used(on(in, "c", "n2"), 0)) }, []string{full},
			[]string{"free on", "it has room", "What would help"}},
		"one of the pods": {func(in *why.Input) {
			waiting(in, used(on(in, "c", "n2"), 0))
			in.Pod.UID = "uid-7"
		}, []string{"free on node n2"}, []string{"users"}},
		"the last pod": {func(in *why.Input) { waiting(in, used(on(in, "c", "n2"), 1)) }, []string{"free on node n2"},
			[]string{"users"}},
		"beside a claim that is not allocated": {func(in *why.Input) {
			waiting(in, asking("team-a", "own", "share.gpu.aliyun.com", "1Gi"), used(on(in, "c", "n2"), 0))
		}, []string{full}, []string{"free on"}},
		"for a gang": {func(in *why.Input) {
			gangOf(in, 2, 0, 2, "1Gi")
			claim := used(on(in, "c", "n2"), 1)
			in.PodClaims = []*resourceapi.ResourceClaim{claim}
			for i := range in.Group.Members {
				in.Group.Members[i].Claims = in.PodClaims
			}
		}, []string{"1 find their GPUs now", "waits for room for 1 more"}, []string{"the gang fits"}},
	})
}
