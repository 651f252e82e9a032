// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
)

// mostOfGang is the largest gang: as many pods as the admission policy takes a number for.
const mostOfGang = 99999

// MinAvailable is how many pods of its gang a pod's label says are needed at least.
func MinAvailable(pod *corev1.Pod) (int32, error) {
	text := pod.Labels[ack.LabelMinAvailable]
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 1 || n > mostOfGang {
		return 0, fmt.Errorf("its label %s is %q, which is not a number from 1 to %d", ack.LabelMinAvailable, text,
			mostOfGang)
	}
	return int32(n), nil
}

// GangOf returns the gang that a pod's labels, or Koordinator's annotations, name, and the least number of its pods to
// place together. The name is empty if the pod is in no gang that would be held.
func GangOf(pod *corev1.Pod) (gang string, least int) {
	name, needed := pod.Labels[ack.LabelPodGroup], pod.Labels[ack.LabelMinAvailable]
	if name == "" {
		name, needed = pod.Annotations[ack.AnnotationGang], pod.Annotations[ack.AnnotationGangMin]
	}
	n, err := strconv.Atoi(needed)
	if name == "" || err != nil || n < 1 {
		return "", 0
	}
	return pod.Namespace + "/" + name, n
}
