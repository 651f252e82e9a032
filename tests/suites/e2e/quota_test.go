// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const quotaOfGiB corev1.ResourceName = "gib.quota.gpu.aliyun.com.deviceclass.resource.k8s.io/devices"

// quotaUses waits until the namespace's quota shows so many GiB in use, by that line.
func quotaUses(t *testing.T, ns *harness.Namespace, line corev1.ResourceName, want int64) {
	t.Helper()
	harness.Eventually(t, fmt.Sprintf("%d GiB of the quota to be used", want), func(ctx context.Context) error {
		quota, err := ns.Client.CoreV1().ResourceQuotas(ns.Name).Get(ctx, "gpu", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if used, ok := quota.Status.Used[line]; !ok || used.Value() != want {
			return fmt.Errorf("used is %v", quota.Status.Used)
		}
		return nil
	})
}

// countGiB gives a namespace a quota of GiB, by that line, and waits until new claims are counted. The option is for
// namespaces with such a quota, so that other tests do not meet it.
func countGiB(t *testing.T, ns *harness.Namespace, line corev1.ResourceName, most string) {
	t.Helper()
	option := filepath.Join("..", "..", "..", "deployments", "options", "quota")
	if output, err := ns.Kubectl(t, "apply", "-k", option); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{line: resource.MustParse(most)}}}
	if _, err := ns.Client.CoreV1().ResourceQuotas(ns.Name).Create(t.Context(), quota,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "claims to be counted", func(ctx context.Context) error {
		made, err := ns.Client.ResourceV1().ResourceClaims(ns.Name).Create(ctx, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: harness.Requests(harness.Share("gpu", "3Gi")),
		}, metav1.CreateOptions{DryRun: harness.DryRun})
		if err != nil {
			return err
		}
		if len(made.Spec.Devices.Requests[0].FirstAvailable) != 2 {
			return errors.New("a claim is stored as it was written")
		}
		return nil
	})
	quotaUses(t, ns, line, 0)
}

// A quota from ACK counts as it is.
func TestQuotaAsOnACK(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	const line = "requests.aliyun.com/gpu-mem"
	countGiB(t, ns, line, "6")
	one := harness.GoingTo(harness.Asking("mem 4"), "one", "share")
	ns.Run(t, one)
	quotaUses(t, ns, line, 4)
	two := harness.GoingTo(harness.Asking("mem 4"), "two", "share")
	ns.Create(t, two)
	ns.WaitPodEvent(t, two.Name, "FailedResourceClaimCreation", "exceeded quota: gpu, requested: "+line+"=4, used: "+line+
		"=4, limited: "+line+"=6")
	ns.WaitPodEvent(t, two.Name, "GPUQuotaExceeded", "ResourceQuota gpu allows the namespace 6 GiB of GPU memory, of "+
		"which 4 are used, and the pod asks for 4: it goes on by itself when enough of them are free again")
	ns.Delete(t, one.Name)
	ns.WaitRunning(t, two.Name)
	quotaUses(t, ns, line, 4)
}

func TestOptionQuotaOfGiB(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	countGiB(t, ns, quotaOfGiB, "10")

	// Shares of a pod as on ACK, and of a claim template that a user wrote.
	legacy := harness.GoingTo(harness.Asking("mem 2", "mem 3"), "legacy", "share")
	ns.Template(t, "mine", harness.Requests(harness.Share("gpu", "4Gi")))
	own := harness.Pod("own", "share", harness.FromTemplate("mine"))
	ns.Run(t, legacy, own)
	grants := ns.Granted(t, legacy.Name)
	if len(grants) != 2 || grants[0].GPU.UUID != grants[1].GPU.UUID {
		t.Fatalf("granted %+v, want two shares of one GPU", grants)
	}
	index := grants[0].GPU.Index
	ns.HasEnv(t, legacy.Name, "c0", harness.LegacyEnv(2, 22, 5, index))
	ns.HasEnv(t, legacy.Name, "c1", harness.LegacyEnv(3, 22, 5, index))
	ns.SeesItsGPUs(t, legacy.Name, "c1", grants)
	isAnnotated(t, ns, legacy.Name, fmt.Sprintf(`{"0":{"%[1]d":2},"1":{"%[1]d":3}}`, index))
	quotaUses(t, ns, quotaOfGiB, 9)

	// One more GiB than is left: a claim is refused, a pod waits, and both are told.
	more := harness.GoingTo(harness.Asking("mem 2"), "more", "share")
	ns.Create(t, more)
	ns.WaitPodEvent(t, more.Name, "FailedResourceClaimCreation", "exceeded quota: gpu, requested: "+string(quotaOfGiB)+
		"=2, used: "+string(quotaOfGiB)+"=9, limited: "+string(quotaOfGiB)+"=10")
	ns.WaitPodEvent(t, more.Name, "GPUQuotaExceeded", "ResourceQuota gpu allows the namespace 10 GiB of GPU memory, of "+
		"which 9 are used, and the pod asks for 2: it goes on by itself when enough of them are free again")
	harness.CheckRefusal(t, "claim", "exceeded quota: gpu", createClaim(t.Context(), ns,
		harness.Requests(harness.Share("gpu", "2Gi"))))
	harness.CheckRefusal(t, "claim", "", createClaim(t.Context(), ns, harness.Requests(harness.Share("gpu", "1Gi"))))
	// Nor does it count less for saying that the scheduler made it.
	marked := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "marked"}}
	marked.Spec.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
	marked.Spec.Spec = harness.Requests(harness.Share("gpu", "2Gi"))
	if _, err := ns.Client.ResourceV1().ResourceClaimTemplates(ns.Name).Create(t.Context(), marked,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ns.Create(t, harness.Pod("marked", "share", harness.FromTemplate("marked")))
	ns.WaitPodEvent(t, "marked", "FailedResourceClaimCreation", "exceeded quota: gpu, requested: "+string(quotaOfGiB)+"=2")
	ns.Delete(t, "marked")

	ns.Delete(t, own.Name)
	ns.WaitRunning(t, more.Name)
	quotaUses(t, ns, quotaOfGiB, 7)
}
