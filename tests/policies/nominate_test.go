// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// With the option best-node the controller has a right to the status of all pods. Its token is good for the nominated
// node alone, and nobody else is kept from anything.
func TestControllerWritesTheNominatedNodeAlone(t *testing.T) {
	s := newServer(t)
	const no = "gpu-compat-controller may change nothing of a pod's status but nominatedNodeName, and that while the " +
		"pod has no node"
	condition := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse}
	waiting := func() *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "p", UID: "u", Labels: map[string]string{"a": "b"},
				Annotations: map[string]string{"a": "b"}, Finalizers: []string{"a/b"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			Status: corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBestEffort,
				Conditions: []corev1.PodCondition{condition}},
		}
	}
	nominated := func() *corev1.Pod {
		p := waiting()
		p.Status.NominatedNodeName = "n1"
		return p
	}
	onNode := func() *corev1.Pod {
		p := waiting()
		p.Spec.NodeName = "n1"
		return p
	}
	for name, test := range map[string]struct {
		old     *corev1.Pod
		change  func(*corev1.Pod)
		refused string
	}{
		"a nomination":     {waiting(), func(p *corev1.Pod) { p.Status.NominatedNodeName = "n1" }, ""},
		"another node":     {nominated(), func(p *corev1.Pod) { p.Status.NominatedNodeName = "n2" }, ""},
		"no node any more": {nominated(), func(p *corev1.Pod) { p.Status.NominatedNodeName = "" }, ""},
		"managed fields": {waiting(), func(p *corev1.Pod) {
			p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
		}, ""},
		"of a pod on a node": {onNode(), func(p *corev1.Pod) { p.Status.NominatedNodeName = "n1" }, no},
		"the phase":          {waiting(), func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, no},
		"a condition":        {waiting(), func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionTrue }, no},
		"no condition":       {waiting(), func(p *corev1.Pod) { p.Status.Conditions = nil }, no},
		"an address beside a nomination": {waiting(), func(p *corev1.Pod) {
			p.Status.NominatedNodeName, p.Status.PodIP = "n1", "10.0.0.1"
		}, no},
		"a claim": {waiting(), func(p *corev1.Pod) {
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu"}}
		}, no},
		"since when it runs": {waiting(), func(p *corev1.Pod) {
			p.Status.StartTime = &metav1.Time{Time: time.Unix(1, 0)}
		}, no},
		"a label":       {waiting(), func(p *corev1.Pod) { p.Labels["c"] = "d" }, no},
		"an annotation": {waiting(), func(p *corev1.Pod) { p.Annotations["c"] = "d" }, no},
		// By way of the pod itself the annotation would be the controller's to write.
		"its own annotation": {waiting(), func(p *corev1.Pod) {
			p.Annotations["gpu.aliyun.com/sync-requested-at"] = "d"
		}, no},
		"no finalizer": {waiting(), func(p *corev1.Pod) { p.Finalizers = nil }, no},
		"an owner": {waiting(), func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "j"}}
		}, no},
	} {
		t.Run(name, func(t *testing.T) {
			written := test.old.DeepCopy()
			test.change(written)
			write := func(who user.Info, subresource string) error {
				return s.validateSubresource(who, written, test.old, subresource)
			}
			for _, namespace := range []string{metav1.NamespaceSystem, "other"} {
				expect.Error(t, write(account(namespace, "gpu-compat-controller", "n1"), "status"), test.refused)
			}
			for _, other := range []user.Info{&user.DefaultInfo{Name: "system:kube-scheduler"},
				&user.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:nodes"}}, account("other", "scaler", "n1")} {
				expect.Error(t, write(other, "status"), "")
			}
		})
	}
	t.Run("by way of another subresource", func(t *testing.T) {
		expect.Error(t, s.validateSubresource(account("other", "gpu-compat-controller", "n1"), nominated(), waiting(),
			"resize"), "may change nothing of a pod but the annotations")
	})
}
