// SPDX-License-Identifier: Apache-2.0

package legacy_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// A plan takes the same pods for a gang as the controller, which makes PodGroups by MinAvailable.
func TestGangOf(t *testing.T) {
	for number, least := range map[string]int{"1": 1, "99999": 99999, "": 0, "0": 0, "100000": 0, "two": 0} {
		byLabels := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a",
			Labels: map[string]string{ack.LabelPodGroup: "g", ack.LabelMinAvailable: number}}}
		byAnnotations := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a",
			Annotations: map[string]string{ack.AnnotationGang: "g", ack.AnnotationGangMin: number}}}
		want := ""
		if least > 0 {
			want = "a/g"
		}
		for _, pod := range []*corev1.Pod{byLabels, byAnnotations} {
			gang, got := legacy.GangOf(pod)
			expect.Equal(t, want, gang, "gang of %q pods", number)
			expect.Equal(t, least, got, "least number of %q pods", number)
		}
		n, _ := legacy.MinAvailable(byLabels)
		expect.Equal(t, int32(least), n, "MinAvailable of %q", number)
	}
	gang, least := legacy.GangOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Labels: map[string]string{ack.LabelMinAvailable: "2"}}})
	expect.Equal(t, "", gang, "gang without a name")
	expect.Equal(t, 0, least, "pods of it")
}
