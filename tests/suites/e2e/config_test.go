// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"maps"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// gpuConfig is the opaque configuration of the driver with these fields.
func gpuConfig(fields string) resourceapi.DeviceConfiguration {
	return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
		Driver: "gpu.aliyun.com",
		Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"GpuConfig",` + fields +
			`}`)},
	}}
}

func TestConfigurationOfAClaim(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	// One claim for all: configurations can be for single requests.
	spec := harness.Requests(harness.Share("plain", "1Gi"), harness.Share("no-env", "1Gi"), harness.Share("free", "2Gi"))
	spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{
		{Requests: []string{"no-env"}, DeviceConfiguration: gpuConfig(`"env":"None"`)},
		{Requests: []string{"free"}, DeviceConfiguration: gpuConfig(`"disableIsolation":true`)},
	}
	ns.Template(t, "configured", spec)
	ns.Run(t, harness.Pod("a", "share", harness.FromTemplate("configured"), harness.PerRequest("plain", "no-env", "free")))

	index := map[string]int64{}
	for _, grant := range ns.Granted(t, "a") {
		index[grant.Request] = grant.GPU.Index
	}
	ns.HasEnv(t, "a", "plain", harness.LegacyEnv(1, 22, 4, index["plain"]))
	ns.HasEnv(t, "a", "no-env", map[string]string{"NVIDIA_VISIBLE_DEVICES": "void"})
	ns.HasEnv(t, "a", "free", withoutIsolation(harness.LegacyEnv(2, 22, 4, index["free"])))
}

func TestClaimOverridesTheConfigurationOfItsClass(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	class := ns.DeviceClass(t, resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.aliyun.com" && device.allowMultipleAllocations`,
		}}},
		Config: []resourceapi.DeviceClassConfiguration{
			{DeviceConfiguration: gpuConfig(`"env":"None","disableIsolation":true`)}},
	})
	of := func(config ...resourceapi.DeviceClaimConfiguration) resourceapi.ResourceClaimSpec {
		request := harness.Share("gpu", "2Gi")
		request.Exactly.DeviceClassName = class
		spec := harness.Requests(request)
		spec.Devices.Config = config
		return spec
	}
	ns.Template(t, "as-the-class", of())
	ns.Template(t, "own-env", of(resourceapi.DeviceClaimConfiguration{DeviceConfiguration: gpuConfig(`"env":"Legacy"`)}))
	ns.Run(t, harness.Pod("a", "share", harness.FromTemplate("as-the-class")),
		harness.Pod("b", "share", harness.FromTemplate("own-env")))

	ns.HasEnv(t, "a", "main", withoutIsolation(map[string]string{"NVIDIA_VISIBLE_DEVICES": "void"}))
	// What the claim does not set stays as the class has it.
	ns.HasEnv(t, "b", "main", withoutIsolation(harness.LegacyEnv(2, 22, 2, ns.Granted(t, "b")[0].GPU.Index)))
}

// withoutIsolation is the environment of a container whose limits are lifted.
func withoutIsolation(env map[string]string) map[string]string {
	env = maps.Clone(env)
	env["CGPU_DISABLE"] = "true"
	return env
}
