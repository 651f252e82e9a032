// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
)

// gangOf is the gang of a pod, in ACK's manner; none where it is not one that would be held.
func gangOf(pod *corev1.Pod) (string, int) {
	name, least := pod.Labels[ack.LabelPodGroup], pod.Labels[ack.LabelMinAvailable]
	if name == "" {
		name, least = pod.Annotations[ack.AnnotationGang], pod.Annotations[ack.AnnotationGangMin]
	}
	n, err := strconv.Atoi(least)
	if name == "" || err != nil || n < 1 {
		return "", 0
	}
	return pod.Namespace + "/" + name, n
}

// there is how many pods of a gang count as placed without being planned: those on nodes, and
// those that need no GPU.
func (in *Input) there(gang string) int {
	n := 0
	for _, pods := range [][]*corev1.Pod{in.Bound, in.Beside} {
		for _, pod := range pods {
			if name, _ := gangOf(pod); name == gang {
				n++
			}
		}
	}
	return n
}
