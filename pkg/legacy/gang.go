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
	n, ok := needed(text)
	if !ok {
		return 0, fmt.Errorf("its label %s is %q, which is not a number from 1 to %d", ack.LabelMinAvailable, text,
			mostOfGang)
	}
	return n, nil
}

// needed reads how many pods of a gang are needed at least, and reports whether a gang can need so many.
func needed(text string) (int32, bool) {
	n, err := strconv.ParseInt(text, 10, 32)
	return int32(n), err == nil && n >= 1 && n <= mostOfGang
}

// GangOf returns the gang that a pod's labels, or Koordinator's annotations, name, and the least number of its pods to
// place together. The name is empty if the pod is in no gang that would be held.
func GangOf(pod *corev1.Pod) (gang string, least int) {
	name, number := pod.Labels[ack.LabelPodGroup], pod.Labels[ack.LabelMinAvailable]
	if name == "" {
		name, number = pod.Annotations[ack.AnnotationGang], pod.Annotations[ack.AnnotationGangMin]
	}
	n, ok := needed(number)
	if name == "" || !ok {
		return "", 0
	}
	return pod.Namespace + "/" + name, int(n)
}
