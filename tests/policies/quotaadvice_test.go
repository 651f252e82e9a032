// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// A model's class of any mode may give a whole GPU, whatever amount is asked for: where GiB are counted
// its author is told by which class to ask.
func TestModelsOfAnyModeWithTheQuota(t *testing.T) {
	s := newServer(t)
	const want = "class nvidia-a10.gpu.aliyun.com may give a whole GPU, whose GiB ResourceQuota gpu of namespace "
	for name, request := range map[string]resourceapi.DeviceRequest{
		"an amount":      asking("nvidia-a10", "memory", "1Gi"),
		"no amount":      exactly("a", "nvidia-a10"),
		"an alternative": among("a", asking("share", "memory", "1Gi"), asking("nvidia-a10", "memory", "1Gi")),
	} {
		for namespace, refused := range map[string]bool{counted: true, countedAsOnACK: true, team: false} {
			claim := claimWith(namespace, request)
			_, err := s.admitClaim(somebody, claim, nil)
			for what, err := range map[string]error{"claim": err, "template": s.validate(somebody, templateOf(claim), nil)} {
				t.Run(fmt.Sprintf("%s with %s in namespace %s", what, name, namespace), func(t *testing.T) {
					if !refused {
						expect.Error(t, err)
						return
					}
					expect.Error(t, err, want+namespace+" cannot count", "write share.nvidia-a10.gpu.aliyun.com (or cgpu, core-mem, "+
						"mps) for a share", "or exclusive.nvidia-a10.gpu.aliyun.com for a whole GPU")
				})
			}
		}
	}
}

// Whoever brings a quota from ACK is told when it is written whether its lines count.
func TestAdviceOnQuotasAsOnACK(t *testing.T) {
	s := newServer(t)
	// What the option lets be known by.
	var marker string
	for _, object := range decoded(t, "testdata/deployments/options/quota/rbac.yaml") {
		switch o := object.(type) {
		case *rbacv1.ClusterRole:
			rule := o.Rules[0]
			if len(o.Rules) != 1 || rule.APIGroups[0] != "gpu.aliyun.com" || rule.Resources[0] != "quotas" ||
				rule.Verbs[0] != "count" {
				t.Errorf("the option has rules %v", o.Rules)
			}
		case *rbacv1.ClusterRoleBinding:
			marker = o.Subjects[0].Name
		}
	}
	const memory, cores = "requests.aliyun.com/gpu-mem", "requests.aliyun.com/gpu-core.percentage"
	const hami, ofOthers = "requests.nvidia.com/gpumem", " does not count the GPUs of dra-driver-gpushare: write"
	for name, test := range map[string]struct {
		line          corev1.ResourceName
		scoped        bool
		without, with string // the option
	}{
		"memory":  {memory, false, memory + " does not count the GPUs of dra-driver-gpushare: its option quota", ""},
		"compute": {cores, false, cores + " does not count the GPUs of dra-driver-gpushare: its option quota", ""},
		"with a scope": {memory, true, "its option quota", memory + " does not count the GPUs of dra-driver-gpushare in a " +
			"quota with scopes"},
		"whole GPUs": {"requests.aliyun.com/gpu", false, "add the line single.topology.gpu.aliyun.com.deviceclass",
			"add the line single.topology.gpu.aliyun.com.deviceclass"},
		"for HAMi: memory": {hami, false, hami + ofOthers, hami + ofOthers},
		"for HAMi: GPUs": {"limits.nvidia.com/gpu", false, "limits.nvidia.com/gpu" + ofOthers,
			"limits.nvidia.com/gpu" + ofOthers},
		"for HAMi, by another name": {"requests.nvidia.com/gpu-memory", false, "requests.nvidia.com/gpu-memory" + ofOthers,
			"requests.nvidia.com/gpu-memory" + ofOthers},
		"for replicas": {"requests.nvidia.com/gpu.shared", false, "requests.nvidia.com/gpu.shared" + ofOthers,
			"requests.nvidia.com/gpu.shared" + ofOthers},
		"for Volcano": {"requests.volcano.sh/vgpu-cores", false, "requests.volcano.sh/vgpu-cores" + ofOthers,
			"requests.volcano.sh/vgpu-cores" + ofOthers},
		"of Kubernetes'":  {"requests.nvidia.com/gpu", false, "", ""},
		"of the driver's": {"gib.quota.gpu.aliyun.com.deviceclass.resource.k8s.io/devices", false, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			q := quotaFor(team, "gpu", test.line)
			if test.scoped {
				q.Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeNotTerminating}
			}
			s.checkWarnings(t, test.without, q)
			rights[marker] = []string{"count quotas/"}
			defer delete(rights, marker)
			s.checkWarnings(t, test.with, q)
		})
	}
}
