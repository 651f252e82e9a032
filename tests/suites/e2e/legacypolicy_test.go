// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

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
		"half":     {harness.Asking("mem 0.5"), "must be an integer"},
		"negative": {harness.Asking("mem -3"), "must be greater than or equal to 0"},
		"different resources": {harness.Asking("mem 3", "mem 3 core 20"), "The requested gpu resource types should be " +
			"consistent for all containers"},
		"negative count": {harness.Labelled(harness.Asking("mem 8"), ack.PodLabelCount, "-1"),
			`"-1": a valid label must be`},
		"opted out": {harness.Labelled(harness.Asking("mem 3"), v1alpha1.LabelLegacy, "false"),
			"it opted out by its label gpu.aliyun.com/legacy=false. It would run without a GPU"},
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
