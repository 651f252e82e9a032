// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// The option affects only namespaces with its label. The module tests/policies tests its rules.
func TestOptionShareLimit(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t, func(n *corev1.Namespace) {
		n.Labels = map[string]string{"gpu.aliyun.com/max-share-gib": "8"}
	})
	ns.MustKubectl(t, "apply", "-k", "../../../deployments/options/share-limit")
	harness.Eventually(t, "the option to refuse", func(ctx context.Context) error {
		if createClaim(ctx, ns, harness.Requests(harness.Exactly(amounts("memory", "9Gi")))) == nil {
			return errors.New("a share of 9Gi is taken")
		}
		return nil
	})
	for amount, refused := range map[string]string{"8Gi": "", "9Gi": "request gpu asks for 9Gi of a GPU, and namespace " +
		ns.Name + " is allowed shares of 8Gi at most"} {
		spec := harness.Requests(harness.Exactly(amounts("memory", amount)))
		harness.CheckRefusal(t, "claim", refused, createClaim(t.Context(), ns, spec))
		harness.CheckRefusal(t, "template", refused, createTemplate(t.Context(), ns, spec))
	}
	_, err := ns.Admitted(t.Context(), harness.Asking("mem 3", "mem 9"))
	harness.CheckRefusal(t, "pod", "container c1 asks for aliyun.com/gpu-mem 9, and namespace "+ns.Name+
		" is allowed shares of 8 GiB of a GPU at most", err)
}
