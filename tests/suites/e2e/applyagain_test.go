// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// A pod's manifest as on ACK, which is applied as often as anybody likes. The pod has
// to run nowhere for that.
const applied = `apiVersion: v1
kind: Pod
metadata:
  name: applied
  labels: {aliyun.com/gpu-count: "2", gpu.aliyun.com/test: FIRST}
spec:
  schedulerName: ack-co-scheduler
  nodeSelector: {gpu.aliyun.com/no-such-node: "true"}
  initContainers:
  - name: warm-up
    image: localhost/gpu-probe:latest
    resources: {limits: {cpu: 10m, aliyun.com/gpu-mem: 1}}
  containers:
  - name: a
    image: localhost/gpu-probe:latest
    resources: {limits: {aliyun.com/gpu-mem: 8}}
  - name: b
    image: localhost/gpu-probe:latest
    resources: {requests: {aliyun.com/gpu-mem: 2}, limits: {aliyun.com/gpu-mem: 2}}
`

func TestLegacyManifestsAreAppliedAgain(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"by the client": nil, "by the server": {"--server-side"}} {
		t.Run(name, func(t *testing.T) {
			ns := cluster.Namespace(t)
			file := filepath.Join(t.TempDir(), "pod.yaml")
			apply := func(manifest string) (string, error) {
				expect.NoError(t, os.WriteFile(file, []byte(manifest), 0o600))
				return ns.Kubectl(t, append([]string{"apply", "-f", file}, flags...)...)
			}
			for i, manifest := range []string{applied, applied, strings.Replace(applied, "FIRST", "second", 1)} {
				_, err := apply(manifest)
				expect.NoErrorf(t, err, "the manifest cannot be applied for time %d", i+1)
			}
			const shown = "jsonpath={.metadata.labels['gpu\\.aliyun\\.com/test']} {.spec.schedulerName} " +
				"{.spec.containers[*].resources}"
			if output, err := ns.Kubectl(t, "get", "pod", "applied", "-o", shown); err != nil ||
				!strings.HasPrefix(output, "second default-scheduler ") || strings.Contains(output, "aliyun.com/gpu-mem") {
				t.Errorf("the pod is %s (%v)", output, err)
			}
			// Another amount is another pod, which the API server has to say.
			if output, err := apply(strings.Replace(applied, "gpu-mem: 8", "gpu-mem: 6", 1)); err == nil ||
				!strings.Contains(output, "pod updates may not change fields") {
				t.Errorf("the amount was changed: %v\n%s", err, output)
			}
		})
	}
}
