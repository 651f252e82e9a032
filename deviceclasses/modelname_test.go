// SPDX-License-Identifier: Apache-2.0

package deviceclasses_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func TestNames(t *testing.T) {
	eighty := strings.Repeat("NVIDIA-ABC", 8)
	tests := map[string]struct{ model, label, class string }{
		"as the GPUs are called":   {"NVIDIA-A10", "NVIDIA-A10", "nvidia-a10"},
		"the sample of ACK":        {"Tesla-V100-SXM2-32GB", "Tesla-V100-SXM2-32GB", "tesla-v100-sxm2-32gb"},
		"dots are for labels only": {"GRID-A100.2", "GRID-A100.2", "grid-a100-2-fe380eba"},
		"underscores too":          {"A_B", "A_B", "a-b-9d8fceb1"},
		"spaces":                   {"NVIDIA A10", "NVIDIA-A10-fd719500", "nvidia-a10-fd719500"},
		"a slash": {"Quadro-RTX-6000/8000", "Quadro-RTX-6000-8000-e9054508",
			"quadro-rtx-6000-8000-e9054508"},
		"brackets at the end": {"NVIDIA-TITAN-X-(Pascal)", "NVIDIA-TITAN-X--Pascal-fcbf98e4",
			"nvidia-titan-x--pascal-fcbf98e4"},
		"Chinese characters": {"显卡A10", "A10-3b062a02", "a10-3b062a02"},
		"nothing but those":  {"显卡", "model-39ef9d40", "model-39ef9d40"},
		"80 letters":         {eighty, eighty[:54] + "-cbf15875", strings.ToLower(eighty[:54]) + "-cbf15875"},
		"63 letters":         {eighty[:63], eighty[:63], strings.ToLower(eighty[:63])},
		"cut where a word begins": {strings.Repeat("a", 53) + "-" + eighty, strings.Repeat("a", 53) + "-01265e7f",
			strings.Repeat("a", 53) + "-01265e7f"},
		"a mode's name":                {"Share", "Share", "share-4f856dd8"},
		"a mode's name with a hyphen":  {"core-mem", "core-mem", "core-mem-b777f952"},
		"the name of another class":    {"Memory", "Memory", "memory-58f879ce"},
		"the name of classes of quota": {"quota", "quota", "quota-ae88758b"},
		"the name of a marker":         {"DRA-CPU", "DRA-CPU", "dra-cpu-89f95555"},
		"no letter at the beginning":   {"-A10", "A10-c3bc60ca", "a10-c3bc60ca"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, test.label, deviceclasses.LabelValue(test.model), "LabelValue(%q)", test.model)
			expect.Equal(t, test.class, deviceclasses.ClassLabel(test.model), "ClassLabel(%q)", test.model)
		})
	}
}

func TestModelsThatLookAlikeHaveNamesOfTheirOwn(t *testing.T) {
	models := []string{"NVIDIA-A10", "NVIDIA A10", "NVIDIA/A10", "NVIDIA-A10-", "NVIDIA.A10", "NVIDIA_A10", "NVIDIA-A10卡",
		strings.Repeat("N", 64), strings.Repeat("N", 63) + "M", strings.Repeat("N", 63)}
	labels, classes := map[string]string{}, map[string]string{}
	for _, model := range models {
		label, class := deviceclasses.LabelValue(model), deviceclasses.ClassLabel(model)
		if other, taken := labels[label]; taken {
			t.Errorf("%q and %q have the label value %s", model, other, label)
		}
		if other, taken := classes[class]; taken {
			t.Errorf("%q and %q have the class name %s", model, other, class)
		}
		labels[label], classes[class] = model, model
	}
}

func FuzzNames(f *testing.F) {
	for _, model := range []string{"NVIDIA-A10", "NVIDIA A10/24Q", "显卡", "", "share", "\xff", strings.Repeat("é", 40), "K",
		"İ"} {
		f.Add(model)
	}
	f.Fuzz(func(t *testing.T, model string) {
		label, class := deviceclasses.LabelValue(model), deviceclasses.ClassLabel(model)
		if problems := validation.IsValidLabelValue(label); len(problems) > 0 || label == "" {
			t.Errorf("LabelValue(%q) = %q: %v", model, label, problems)
		}
		if problems := validation.IsDNS1123Label(class); len(problems) > 0 {
			t.Errorf("ClassLabel(%q) = %q: %v", model, class, problems)
		}
		if label != deviceclasses.LabelValue(model) || class != deviceclasses.ClassLabel(model) {
			t.Errorf("%q has not always the same names", model)
		}
		if len(validation.IsValidLabelValue(model)) == 0 && model != "" && label != model {
			t.Errorf("LabelValue(%q) = %q, which was not necessary", model, label)
		}
	})
}
