// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package workloads

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// A pod as in HAMi's documents, with a selector of GPU Feature Discovery's.
const hami = `apiVersion: v1
kind: Pod
metadata:
  name: hami
  annotations: {nvidia.com/use-gputype: "A100,V100"}
spec:
  schedulerName: hami-scheduler
  restartPolicy: Never
  terminationGracePeriodSeconds: 5
  nodeSelector: {nvidia.com/gpu.product: Tesla-V100-SXM2-16GB, nvidia.com/gpu.family: volta}
  containers:
  - name: main
    image: %s
    imagePullPolicy: Never
    resources:
      limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 3000}
`

// Manifests of other projects, as docs/other-manifests.md has them, with the options that it names: the container has
// the limit that its author wrote, rounded up to a GiB. Other words are refused.
func TestManifestsOfOthers(t *testing.T) {
	ns := cluster.Namespace(t, func(n *corev1.Namespace) {
		n.Labels = map[string]string{v1alpha1.LabelReplicaGiB: "5"}
	})
	file := filepath.Join(t.TempDir(), "hami.yaml")
	expect.NoError(t, os.WriteFile(file, fmt.Appendf(nil, hami, harness.ProbeImage), 0o600))
	limited := func(pod, container string, gib int) {
		t.Helper()
		ns.WaitRunning(t, pod)
		env := ns.GPUEnv(t, pod, container)
		if want := fmt.Sprintf("0=%dM", gpuMiB*gib/gpuGiB); env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] != want {
			t.Errorf("pod %s has %v, want the limit %s", pod, env, want)
		}
	}
	if planned := ns.Planned(t, "", "-f", file).Pods[0]; len(planned.Devices) != 1 ||
		!strings.HasSuffix(planned.Devices[0], "-cgpu") || !strings.Contains(planned.Asked[0], "memory 3Gi") {
		t.Errorf("it is planned as %+v", planned)
	}
	for range 2 { // the manifest can be applied again
		ns.MustKubectl(t, "apply", "-f", file)
		limited("hami", "main", 3)
	}
	replica := harness.Asking("nvidia.com/gpu.shared 1")
	replica.Name, replica.Spec.NodeSelector = "replica", map[string]string{corev1.LabelHostname: mpsNode}
	ns.Run(t, replica)
	limited("replica", "c0", 5)
	whole := harness.Asking("volcano.sh/vgpu-number 1")
	whole.Name = "whole"
	ns.Run(t, whole)
	if gpus := ns.GPUNodes(t, "whole", "c0"); len(gpus) != 1 {
		t.Errorf("a pod of a whole GPU has %q", gpus)
	}
	_, err := ns.Admitted(t.Context(), harness.Asking("nvidia.com/gpu 1 nvidia.com/gpumem-percentage 50"))
	harness.CheckRefusal(t, "a percentage", "a percentage of memory needs a size", err)
}
