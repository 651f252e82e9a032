// SPDX-License-Identifier: Apache-2.0

package deviceclasses

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// models are such as GPUs have and such as none should have.
var models = []string{
	"NVIDIA-A10", "NVIDIA-A100", "nvidia-a10", "Quadro-RTX-6000/8000", "显卡 A10", `"quoted" \ and broken` + "\n", "share",
	strings.Repeat("N", 64),
}

func modelClasses(t *testing.T, model string) []*resourceapi.DeviceClass {
	t.Helper()
	modes, err := ModesWithClass()
	expect.NoError(t, err)
	classes, err := Model(model, modes)
	expect.NoError(t, err)
	return classes
}

func TestModelClassesAreNamedByModeAndModel(t *testing.T) {
	var names []string
	for _, class := range modelClasses(t, "NVIDIA-A10") {
		names = append(names, class.Name)
	}
	want := []string{
		"nvidia-a10.gpu.aliyun.com", "cgpu.nvidia-a10.gpu.aliyun.com", "core-mem.nvidia-a10.gpu.aliyun.com",
		"exclusive.nvidia-a10.gpu.aliyun.com", "mps.nvidia-a10.gpu.aliyun.com", "share.nvidia-a10.gpu.aliyun.com",
	}
	expect.Equal(t, want, names[:len(want)], "classes")
}

func TestModelClassesSelectTheirModelAndModeAndNoOther(t *testing.T) {
	for _, model := range models {
		for _, class := range modelClasses(t, model) {
			if problems := validation.IsDNS1123Subdomain(class.Name); len(problems) > 0 {
				t.Errorf("model %q: class name %q: %v", model, class.Name, problems)
			}
			selects := compiled(t, class)
			for _, m := range []mode.Mode{mode.Exclusive, mode.Share, mode.CGPU, mode.CoreMem, mode.MPS} {
				for _, other := range models {
					d := builtGPU(t, m, other)
					want := other == model && (class.Labels[v1alpha1.LabelMode] == AnyMode && m != mode.CoreMem ||
						class.Labels[v1alpha1.LabelMode] == string(m))
					expect.Equal(t, want, selects("gpu.aliyun.com", d),
						"class %s of model %q selects %q in mode %s", class.Name, model, other, m)
				}
				if selects("gpu.nvidia.com", builtGPU(t, m, model)) {
					t.Errorf("class %s selects a device of another driver", class.Name)
				}
			}
			if selects("nic.example.com", resourceapi.Device{Name: "eth0"}) {
				t.Errorf("class %s selects a network GPU", class.Name)
			}
		}
	}
}

func TestAnyModeIsForOneGPU(t *testing.T) {
	class := modelClasses(t, "NVIDIA-A10")[0]
	for count, want := range map[int64]bool{1: true, 4: false} {
		d := builtDevice(t, mode.Exclusive)
		d.Attributes["gpuCount"] = resourceapi.DeviceAttribute{IntValue: ptr.To(count)}
		expect.Equal(t, want, matches(t, class, "gpu.aliyun.com", d),
			"class %s selects a device of %d GPUs", class.Name, count)
	}
}

// A set of GPUs that is published only because a claim holds it says nothing but
// that; an error in a selector would stop the whole allocation.
func TestModelClassesTakeDevicesThatSayLittle(t *testing.T) {
	set := resourceapi.Device{Name: "gpus-0-1", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"mode": {StringValue: ptr.To("withdrawn")}, "gpuCount": {IntValue: ptr.To(int64(2))},
	}}
	for _, class := range modelClasses(t, "NVIDIA-A10") {
		if matches(t, class, "gpu.aliyun.com", set) {
			t.Errorf("class %s selects a set of GPUs that is withdrawn", class.Name)
		}
	}
}

func TestModelClassesServeNoExtendedResource(t *testing.T) {
	for _, class := range modelClasses(t, "NVIDIA-A10") {
		expect.Equal(t, nil, class.Spec.ExtendedResourceName, "class %s serves what that of its mode does", class.Name)
	}
}

func TestModelClassesSayWhatTheyAre(t *testing.T) {
	class := modelClasses(t, "显卡")[1]
	expect.Equal(t, "显卡", class.Annotations[v1alpha1.AnnotationModel], "annotation %s is", v1alpha1.AnnotationModel)
	expect.Equal(t, LabelValue("显卡"), class.Labels[v1alpha1.LabelModel], "label %s", v1alpha1.LabelModel)
	if got := class.Annotations[v1alpha1.AnnotationDescription]; !strings.HasPrefix(got, "GPUs of the model 显卡 only. A "+
		"share of a GPU") {
		t.Errorf("description: %q", got)
	}
}

func TestNoModelHasTheNameOfAnInstalledClass(t *testing.T) {
	classes, err := All()
	expect.NoError(t, err)
	installed := map[string]bool{}
	for _, class := range classes {
		installed[class.Name] = true
	}
	for _, class := range classes {
		for model := range strings.SplitSeq(strings.TrimSuffix(class.Name, domain), ".") {
			for _, ofModel := range modelClasses(t, model) {
				if installed[ofModel.Name] {
					t.Errorf("a class of a GPU model %q is %s, which the driver is installed with", model, ofModel.Name)
				}
			}
		}
	}
}

func TestClassesSayTheirMode(t *testing.T) {
	classes, err := Modes()
	expect.NoError(t, err)
	for _, class := range classes {
		expect.Equal(t, string(modeOf(class)), class.Labels[v1alpha1.LabelMode], "class %s has the label", class.Name)
	}
}

func TestModeWithoutAClassIsAnError(t *testing.T) {
	_, err := Model("NVIDIA-A10", []mode.Mode{"auction"})
	expect.Error(t, err, `mode "auction" has no DeviceClass`)
}
