// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Quota gives the namespace a ResourceQuota with these lines of the option quota, and waits until new claims are
// counted. It leaves the option installed, which affects only namespaces with such a quota.
func (n *Namespace) Quota(t *testing.T, hard map[corev1.ResourceName]int64) {
	t.Helper()
	n.MustKubectl(t, "apply", "-k", "../../../deployments/options/quota")
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}}}
	none := map[corev1.ResourceName]int64{}
	for line, most := range hard {
		quota.Spec.Hard[line], none[line] = *resource.NewQuantity(most, resource.DecimalSI), 0
	}
	Make(t, n.Client.CoreV1().ResourceQuotas(n.Name), quota)
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "counted"},
		Spec: Requests(Share("gpu", "1Gi"))}
	Eventually(t, "claims to be counted", func(ctx context.Context) error {
		made, err := n.Client.ResourceV1().ResourceClaims(n.Name).Create(ctx, claim, metav1.CreateOptions{DryRun: DryRun})
		if err == nil && len(made.Spec.Devices.Requests[0].FirstAvailable) != 2 {
			err = errors.New("one is stored as it was written")
		}
		return err
	})
	n.QuotaUses(t, none)
}

// QuotaUses waits until the quota's lines have these values of use.
func (n *Namespace) QuotaUses(t *testing.T, want map[corev1.ResourceName]int64) {
	t.Helper()
	quotas, what := n.Client.CoreV1().ResourceQuotas(n.Name), fmt.Sprintf("%v of the quota to be used", want)
	Becomes(t, quotas, "gpu", what, func(quota *corev1.ResourceQuota) error {
		for line, amount := range want {
			if used, known := quota.Status.Used[line]; !known || used.Value() != amount {
				return fmt.Errorf("used is %v", quota.Status.Used)
			}
		}
		return nil
	})
}
