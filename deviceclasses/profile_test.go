// SPDX-License-Identifier: Apache-2.0

package deviceclasses

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// cutMachine has a whole V100, and one GPU in MIG mode of the same model, so that the model tells nothing.
func cutMachine() *gpu.Machine {
	return &gpu.Machine{
		GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-0", Model: v100, MemoryMiB: 16130}},
		Partitioned: []gpu.Partitioned{{GPU: gpu.GPU{Index: 1, UUID: "GPU-1", Model: v100, MemoryMiB: 16130},
			Instances: []gpu.Instance{
				{UUID: "MIG-0", Profile: "3g.40gb", Start: 0, Size: 4, MemoryMiB: 40192},
				{UUID: "MIG-1", Profile: "1g.10gb", Start: 4, Size: 1, MemoryMiB: 9728},
				{UUID: "MIG-2", Profile: "1g.10gb+me", Start: 6, Size: 1, MemoryMiB: 9728},
			}}},
	}
}

// The name of class and resource, as pods that were written for NVIDIA's device plugin have it.
func TestNamesOfProfiles(t *testing.T) {
	for profile, want := range map[string][2]string{
		"1g.5gb":         {"1g.5gb.mig.gpu.aliyun.com", "nvidia.com/mig-1g.5gb"},
		"1g.10gb+me":     {"1g.10gb.me.mig.gpu.aliyun.com", "nvidia.com/mig-1g.10gb.me"},
		"1g.24gb-me":     {"1g.24gb-me.mig.gpu.aliyun.com", "nvidia.com/mig-1g.24gb-me"},
		"4g.96gb+gfx":    {"4g.96gb.gfx.mig.gpu.aliyun.com", "nvidia.com/mig-4g.96gb.gfx"},
		"2g.48gb+me.all": {"2g.48gb.me.all.mig.gpu.aliyun.com", "nvidia.com/mig-2g.48gb.me.all"},
	} {
		class := Profile(profile)
		resource := ptr.Deref(class.Spec.ExtendedResourceName, "")
		expect.Equal(t, want, [2]string{class.Name, resource}, "%s", profile)
		if bad := slices.Concat(validation.IsDNS1123Subdomain(class.Name), validation.IsQualifiedName(resource),
			validation.IsValidLabelValue(class.Labels[v1alpha1.LabelProfile])); len(bad) > 0 {
			t.Errorf("%s: %v", profile, bad)
		}
	}
}

// Who asks by a class for GPUs or shares is never given a part of a GPU, nor the reverse.
func TestWhatClassesSelectBesideInstances(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	installed, err := All()
	expect.NoError(t, err)
	classes := append(installed, modelClasses(t, v100)...)
	classes = append(classes, Profile("1g.10gb+me"), Profile("1g.10gb"), Profile("7g.80gb"))
	whole, gone := "gpu-0", devices.GoneInstance{Instance: gpu.Instance{Profile: "2g.20gb", Start: 2}, Index: 1,
		Taint: resourceapi.DeviceTaint{
			Key: v1alpha1.TaintUnhealthy, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	for class, want := range map[string]string{
		"mig.gpu.aliyun.com":                            "gpu-1-mig-3g-40gb-0 gpu-1-mig-1g-10gb-4 gpu-1-mig-1g-10gb-me-6",
		"1g.10gb.mig.gpu.aliyun.com":                    "gpu-1-mig-1g-10gb-4",
		"1g.10gb.me.mig.gpu.aliyun.com":                 "gpu-1-mig-1g-10gb-me-6",
		"7g.80gb.mig.gpu.aliyun.com":                    "",
		"exclusive.gpu.aliyun.com":                      whole,
		"gpu.aliyun.com":                                whole,
		"monitor.gpu.aliyun.com":                        whole,
		"tesla-v100-sxm2-16gb.gpu.aliyun.com":           whole,
		"exclusive.tesla-v100-sxm2-16gb.gpu.aliyun.com": whole,
		"share.gpu.aliyun.com":                          "",
		"memory.gpu.aliyun.com":                         "",
		"single.topology.gpu.aliyun.com":                "",
	} {
		n := allocatortest.NewNode("n1", v1alpha1.DriverName, devices.Build(cutMachine(), devices.Options{Pool: "n1/gpu",
			Mode: mode.Exclusive, MIG: devices.MIGOptions{Isolation: "mig", Gone: []devices.GoneInstance{gone}}}), classes)
		got := ""
		for {
			results, err := n.Allocate(ctx, asking(class, nil))
			expect.NoErrorf(t, err, "class %s stops the scheduler", class)
			if len(results) == 0 {
				break
			}
			if got != "" {
				got += " "
			}
			got += results[0].Device
		}
		expect.Equal(t, want, got, "class %s gives", class)
	}
}
