// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const quotaOfGiB corev1.ResourceName = "gib.quota.gpu.aliyun.com.deviceclass.resource.k8s.io/devices"

type used = map[corev1.ResourceName]int64

// A quota from ACK counts as it is.
func TestQuotaAsOnACK(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	const line = "requests.aliyun.com/gpu-mem"
	ns.Quota(t, used{line: 6})
	one := harness.GoingTo(harness.Asking("mem 4"), "one", "share")
	ns.Run(t, one)
	ns.QuotaUses(t, used{line: 4})
	two := harness.GoingTo(harness.Asking("mem 4"), "two", "share")
	ns.Create(t, two)
	ns.WaitPodEvent(t, two.Name, "FailedResourceClaimCreation", "exceeded quota: gpu, requested: "+line+"=4, used: "+line+
		"=4, limited: "+line+"=6")
	ns.WaitPodEvent(t, two.Name, "GPUQuotaExceeded", "ResourceQuota gpu allows the namespace 6 GiB of GPU memory, of "+
		"which 4 are used, and the pod asks for 4: it goes on by itself when enough of them are free again")
	ns.Delete(t, one.Name)
	ns.WaitRunning(t, two.Name)
	ns.QuotaUses(t, used{line: 4})
}

func TestOptionQuotaOfGiB(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	ns.Quota(t, used{quotaOfGiB: 10})

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
	ns.QuotaUses(t, used{quotaOfGiB: 9})

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
	harness.Make(t, ns.Client.ResourceV1().ResourceClaimTemplates(ns.Name), marked)
	ns.Create(t, harness.Pod("marked", "share", harness.FromTemplate("marked")))
	ns.WaitPodEvent(t, "marked", "FailedResourceClaimCreation", "exceeded quota: gpu, requested: "+string(quotaOfGiB)+"=2")
	ns.Delete(t, "marked")

	ns.Delete(t, own.Name)
	ns.WaitRunning(t, more.Name)
	ns.QuotaUses(t, used{quotaOfGiB: 7})
}
