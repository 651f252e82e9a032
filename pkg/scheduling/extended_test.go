// SPDX-License-Identifier: Apache-2.0

package scheduling_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

func TestExtended(t *testing.T) {
	for name, want := range map[corev1.ResourceName]bool{
		"cpu": false, "memory": false, "hugepages-2Mi": false, "kubernetes.io/batch-cpu": false,
		"nvidia.com/gpu": true, "aliyun.com/gpu-mem": true, "alpha.kubernetes.io/nvidia-gpu": true,
		"deviceclass.resource.kubernetes.io/exclusive.gpu.aliyun.com": true,
	} {
		expect.Equal(t, want, scheduling.Extended(name), "%s", name)
	}
}
