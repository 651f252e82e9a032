// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"fmt"
	"maps"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// These are what the policies of deployments/options/other-manifests convert: limits, and GPUs that an annotation
// chooses.
var (
	converted = regexp.MustCompile(`^nvidia\.com/(gpumem|gpumem-percentage|(gpu)?cores|priority|gpu\.shared|` +
		`vgpu(-(number|memory|cores?))?)$|^volcano\.sh/(vgpu-(number|memory|memory-percentage|cores)|gpu-(memory|number))$`)
	chooses = regexp.MustCompile(
		`^nvidia\.com/((use|nouse)-gpu(type|uuid|indexes)|(include|exclude)-gpu-(type|uuid)|vgpu-mode|numa-bind)$`)
)

// Option returns, for a pod that is written for another project, that the option other-manifests would convert it. It
// is empty for other pods, and for those that opted out.
func Option(pod *corev1.Pod) string {
	if pod.Labels[v1alpha1.LabelLegacy] == "false" {
		return ""
	}
	chosen := slices.ContainsFunc(slices.Collect(maps.Keys(pod.Annotations)), chooses.MatchString)
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		// The API server lets both be the same. A manifest may have limits alone, and a cache keep requests alone.
		for _, asked := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
			for _, name := range slices.Sorted(maps.Keys(asked)) {
				amount := asked[name]
				if !amount.IsZero() && (converted.MatchString(string(name)) || name == wholeGPU && chosen) {
					return fmt.Sprintf("With the option other-manifests, the API server converts %s of container %s when it creates "+
						"the pod: docs/other-manifests.md", name, c.Name)
				}
			}
		}
	}
	return ""
}
