// SPDX-License-Identifier: Apache-2.0

package deviceclasses

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// A model that a name cannot hold as it is – for its length, or for characters such as
// "/" or "卡" – gets one that resembles it and ends in a hash of the whole model. So a
// name depends on its model alone, stays the same whatever other models there are, and
// two models never share one just because of what had to be replaced.

// nameless is what is left of a model without any letter or digit of ASCII.
const nameless = "model"

// hashLength is the length of "-" and a hash.
const hashLength = 9

// LabelValue returns the model as the value of a node label: the model itself
// where that is a valid value, as the names of NVIDIA's GPUs are.
func LabelValue(model string) string {
	return fit(model, model, validation.LabelValueMaxLength, func(r rune) bool {
		return alphanumeric(r) || r >= 'A' && r <= 'Z' || strings.ContainsRune("-_.", r)
	})
}

// ClassLabel returns the part of a DeviceClass' name that stands for the model,
// a DNS label: the model in lower case where that is one. It is never what the
// name of a class begins with that the driver is installed with, so that
// <model>.gpu.aliyun.com cannot be one of those. Models that differ in nothing but
// upper and lower case have the same.
func ClassLabel(model string) string {
	label := fit(model, strings.ToLower(model), validation.DNS1123LabelMaxLength, func(r rune) bool {
		return alphanumeric(r) || r == '-'
	})
	if slices.Contains(reserved(), label) {
		return withHash(label, model, validation.DNS1123LabelMaxLength)
	}
	return label
}

// reserved are the names that a model's classes leave to the modes, to memory.gpu.aliyun.com,
// monitor.gpu.aliyun.com and *.quota.gpu.aliyun.com (package deviceclasses), and to the marker of the
// driver for CPUs (package legacy). A model is one node's word.
func reserved() []string {
	names := []string{"memory", "monitor", "quota", "dra-cpu"}
	for _, m := range []mode.Mode{mode.Exclusive, mode.Share, mode.CGPU, mode.CoreMem, mode.MPS, mode.Topology,
		mode.Dynamic, mode.MIG} {
		names = append(names, string(m))
	}
	return names
}

// fit returns the text if it is a name of at most limit allowed characters that
// begins and ends with a letter or a digit, and otherwise the closest to it that
// is, with a hash of the model.
func fit(model, text string, limit int, allowed func(rune) bool) string {
	name := strings.Map(func(r rune) rune {
		if allowed(r) {
			return r
		}
		return '-'
	}, text)
	name = strings.Trim(name, "-_.")
	if name != "" && name == text && len(name) <= limit {
		return name
	}
	return withHash(name, model, limit)
}

func withHash(name, model string, limit int) string {
	name = strings.TrimRight(name[:min(len(name), limit-hashLength)], "-_.")
	if name == "" {
		name = nameless
	}
	hash := fnv.New32a()
	hash.Write([]byte(model))
	return fmt.Sprintf("%s-%08x", name, hash.Sum32())
}

func alphanumeric(r rune) bool { return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' }
