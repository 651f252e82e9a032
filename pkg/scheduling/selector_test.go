// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"testing"

	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func TestReadsUUID(t *testing.T) {
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true})
	for expression, want := range map[string]bool{
		`true`: false,
		`device.driver == "gpu.aliyun.com" && device.allowMultipleAllocations`:       false,
		`device.attributes["gpu.aliyun.com"].mode == "share"`:                        false,
		`device.attributes["gpu.aliyun.com"].?gpuCount.orValue(1) == 1`:              false,
		`device.attributes["gpu.aliyun.com"]["model"] in ["NVIDIA-A10", "Tesla-T4"]`: false,
		`[0, 2].exists(i, device.attributes["gpu.aliyun.com"].index == i)`:           false,
		`has(device.attributes["gpu.aliyun.com"].numaNode)`:                          false,
		`device.capacity["gpu.aliyun.com"].memory.compareTo(quantity("20Gi")) >= 0`:  false,
		`device.attributes["gpu.aliyun.com"].uuid == "GPU-1"`:                        true,
		`device.attributes["gpu.aliyun.com"].?uuid.orValue("") == "GPU-1"`:           true,
		`device.attributes["gpu.aliyun.com"]["uu" + "id"] == "GPU-1"`:                true,
		`device.attributes["gpu.aliyun.com"]["\x75uid"] == "GPU-1"`:                  true,
		`"uuid" in device.attributes["gpu.aliyun.com"]`:                              true,
		`device.attributes["gpu.aliyun.com"].exists(name, name == "uuid")`:           true,
		`device.attributes["gpu.aliyun.com"].mode == "share" && [device].exists(d, ` +
			`d.attributes["gpu.aliyun.com"].uuid.endsWith("1"))`: true,
		`cel.bind(gpu, device.attributes["gpu.aliyun.com"], gpu.uuid == "GPU-1")`: true,
	} {
		compiled := compiler.CompileCELExpression(expression, cel.Options{})
		if compiled.Error != nil {
			t.Errorf("%s does not compile: %v", expression, compiled.Error)
			continue
		}
		expect.Equal(t, want, readsUUID(compiled), "%s", expression)
	}
}
