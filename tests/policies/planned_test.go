// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/published"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// `kubectl inspect cgpu plan` places pods and claims as the policies of the options nvidia-dra and other-manifests
// convert them: a pod for HAMi and two claims for a part of a GPU of NVIDIA's driver get shares of one GPU.
func TestOptionsArePlannedAsThePoliciesConvert(t *testing.T) {
	hami, err := withOthers(t).create(pod("hami", nil, limited("c", "nvidia.com/gpu 1 nvidia.com/gpumem 3000")))
	expect.NoError(t, err)
	written := claimWith(team, ofNVIDIA("r", "memory", "4Gi"))
	claim, err := withNVIDIADRA(t).admitClaim(&user.DefaultInfo{Name: "somebody"}, written.DeepCopy(), nil)
	expect.NoError(t, err)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1",
		Labels: map[string]string{ack.NodeLabelSchedule: "cgpu"}}}
	offered, err := published.Of(node, &gpu.Machine{GPUs: []gpu.GPU{{UUID: "GPU-0", Model: "Tesla-T4", MemoryMiB: 15360},
		{Index: 1, UUID: "GPU-1", Model: "Tesla-T4", MemoryMiB: 15360}}}, true)
	expect.NoError(t, err)
	classes, err := deviceclasses.All()
	expect.NoError(t, err)
	uses := corev1.PodTemplateSpec{Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{
		{Name: "gpu", ResourceClaimTemplateName: ptr.To("part")}}}}
	made, err := plan.Of(t.Context(), plan.Input{Now: time.Unix(0, 0),
		Snapshot: scheduling.Snapshot{Nodes: []*corev1.Node{node}, Slices: offered, Classes: classes},
		Manifests: plan.Manifests{
			Templates: []*resourceapi.ResourceClaimTemplate{{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "part"},
				Spec: resourceapi.ResourceClaimTemplateSpec{Spec: written.Spec}}},
			Workloads: []plan.Workload{
				{Kind: "pod", Namespace: team, Name: "hami", Pods: 1,
					Admitted: &corev1.PodTemplateSpec{ObjectMeta: hami.ObjectMeta, Spec: hami.Spec}},
				{Kind: "deployment", Namespace: team, Name: "parts", Pods: 2, Template: uses, Admitted: &uses}}},
		AdmittedClaims: map[string]resourceapi.ResourceClaimSpec{"ResourceClaimTemplate/" + team + "/part": claim.Spec}})
	expect.NoError(t, err)
	for _, p := range made.Pods {
		if !slices.Equal(p.Devices, []string{"gpu-0-cgpu"}) {
			t.Errorf("pod %s, which asks for %q, would have %q: %s", p.Name, p.Asked, p.Devices, p.Why)
		}
	}
}
