// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// What the API server itself refuses, and some of what each policy does: the module tests/policies tests all of that.
func TestLegacyPodsThatAreRefused(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	for name, test := range map[string]struct {
		pod     *corev1.Pod
		refused string
	}{
		"bytes": {harness.Asking("mem 10G"), "aliyun.com/gpu-mem 10G of container c0 is not a plain whole " +
			"number of GiB"},
		"Gi":       {harness.Asking("mem 10Gi"), "aliyun.com/gpu-mem 10Gi of container c0 is not a plain"},
		"half":     {harness.Asking("mem 0.5"), "must be an integer"},
		"negative": {harness.Asking("mem -3"), "must be greater than or equal to 0"},
		"different resources": {harness.Asking("mem 3", "mem 3 core 20"), "The requested gpu resource types should be " +
			"consistent for all containers"},
		"a number, in init": {harness.WithInit(harness.Asking("mem 3"), harness.Limited("i", "count 1")),
			"asks for aliyun.com/gpu-count, which gives it no GPU"},
		"a number, opted out": {harness.Labelled(harness.Asking("count 1"), v1alpha1.LabelLegacy, "false"),
			"asks for aliyun.com/gpu-count and was not given a claim instead: it opted out by its label"},
		"negative count": {harness.Labelled(harness.Asking("mem 8"), ack.PodLabelCount, "-1"),
			`"-1": a valid label must be`},
		"seven over two": {harness.Labelled(harness.Asking("mem 7"), ack.PodLabelCount, "2"), "invalid replica for " +
			"resource aliyun.com/gpu-mem,because 7 / 2 = 3.5"},
		"seventeen GPUs": {harness.Asking("gpu 17"), "more GPUs than the scheduler can look for while all pods wait"},
		"33 GPUs": {harness.Asking("gpu 33"), "aliyun.com/gpu 33 of container c0 is not a plain whole " +
			"number of GPUs, from 1 to 32"},
		"33 GPUs of two": {harness.Asking("gpu 16", "gpu 17"), "a pod can be given 32 GPUs or shares at most"},
		"claim's name taken": {harness.Changed(harness.Asking("mem 3"), func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpushare", ResourceClaimName: ptr.To("x")}}
		}), `the pod has an entry "gpushare"`},
		"opted out": {harness.Labelled(harness.Asking("mem 3"), v1alpha1.LabelLegacy, "false"),
			"it opted out by its label gpu.aliyun.com/legacy=false. It would run without a GPU"},
		"opted out, asks wrongly": {harness.Labelled(harness.Asking("gpu 50"), v1alpha1.LabelLegacy, "false"),
			"asks for aliyun.com/gpu and was not given a claim instead: it opted out by its label"},
		"requests only": {harness.Changed(harness.Asking("mem 3"), func(p *corev1.Pod) {
			r := &p.Spec.Containers[0].Resources
			r.Requests, r.Limits = r.Limits, nil
		}), "Limit must be set for non overcommitable resources"},
		"other requests": {harness.Changed(harness.Asking("mem 3"), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{ack.ResourceMemory: resource.MustParse("2")}
		}), "must be equal to aliyun.com/gpu-mem limit of 3"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ns.Admitted(t.Context(), test.pod)
			harness.CheckRefusal(t, "pod", test.refused, err)
		})
	}
}
