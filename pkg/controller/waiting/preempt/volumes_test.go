// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
)

// Nobody goes for a pod whose volume cannot follow it to the node, or may not.
func TestVolumes(t *testing.T) {
	of := func(source corev1.VolumeSource) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}} }
	}
	claimed := of(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "p-v"}})
	ephemeral := of(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}})
	at := func(host string) func(*corev1.PersistentVolume) {
		return func(pv *corev1.PersistentVolume) {
			pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{host}}}}}}}
		}
	}
	bound := corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}
	for name, test := range map[string]struct {
		pod    func(*corev1.Pod)
		claim  *corev1.PersistentVolumeClaim
		volume func(*corev1.PersistentVolume)
		want   []string
	}{
		"of the pod alone": {of(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}), nil, nil, []string{"b"}},
		"that any node can have": {claimed, &corev1.PersistentVolumeClaim{Status: bound}, func(*corev1.PersistentVolume) {},
			[]string{"b"}},
		"that the node can have":   {claimed, &corev1.PersistentVolumeClaim{Status: bound}, at("n1"), []string{"b"}},
		"ephemeral":                {ephemeral, &corev1.PersistentVolumeClaim{Status: bound}, at("n1"), []string{"b"}},
		"that another node has":    {claimed, &corev1.PersistentVolumeClaim{Status: bound}, at("n2"), nil},
		"without a claim":          {claimed, nil, at("n1"), nil},
		"that is yet to be chosen": {claimed, &corev1.PersistentVolumeClaim{}, at("n1"), nil},
		"that is gone":             {claimed, &corev1.PersistentVolumeClaim{Status: bound}, nil, nil},
		"of a kind not looked at":  {of(corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{}}), nil, nil, nil},
		"that one pod alone may use": {claimed, &corev1.PersistentVolumeClaim{Status: bound,
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}}}, at("n1"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				if test.claim != nil {
					test.claim.ObjectMeta = metav1.ObjectMeta{Namespace: "ns", Name: "p-v"}
					test.claim.Spec.VolumeName = "pv"
					apitest.Create(s, s.client, test.claim)
				}
				if test.volume != nil {
					pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
					test.volume(pv)
					apitest.Create(s, s.client, pv)
				}
				s.waits(podOf("p", 9, test.pod), 1)
				s.after(time.Minute, test.want...)
			})
		})
	}
}
