// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// Before Kubernetes 1.37 a node in mode dynamic offers nothing, and says why.
func TestDynamicIsNotServedByAnOlderKubernetes(t *testing.T) {
	t.Parallel()
	info, err := cluster.Client.Discovery().ServerVersion()
	expect.NoError(t, err)
	if version.MustParseGeneric(info.GitVersion).AtLeast(version.MustParseGeneric("1.37.0")) {
		t.Skipf("Kubernetes %s serves mode dynamic: this is for older ones (make lane LANE=e2e-1.36)", info.GitVersion)
	}
	cluster.Whole(t, dynamicNode)
	setMode := cluster.Label(t, dynamicNode, modeLabel)
	began := time.Now()
	setMode("dynamic")
	cluster.Publishes(t, dynamicNode)
	cluster.WaitNodeEvent(t, dynamicNode, began, "GPUModeNotServed", "mode dynamic needs Kubernetes 1.37")
	setMode("share")
	cluster.Publishes(t, dynamicNode, harness.DeviceNames(8, "gpu-%d-share")...)
}
