// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// tellStatic tells a static pod that asks for GPUs as on ACK, on a node that offers some of this driver's. It waits for
// nothing: the kubelet starts it, so it is told at once.
func (r *Reconciler) tellStatic(pod *corev1.Pod) {
	if !cache.IsStaticAsking(pod) || len(r.explainer.slices.OnNode(pod.Spec.NodeName)) == 0 {
		return
	}
	r.Events.Warn(report.Pod(pod.Namespace, pod.Name, pod.UID), v1alpha1.ReasonClaimTemplateNotMade,
		"A static pod runs without a GPU of this driver: the kubelet starts it without the scheduler, and it cannot have "+
			"claims. Have a DaemonSet or a Deployment start the pod: docs/legacy.md")
}
