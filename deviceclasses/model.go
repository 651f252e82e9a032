// SPDX-License-Identifier: Apache-2.0

package deviceclasses

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

const (
	// domain ends the name of each class.
	domain = ".gpu.aliyun.com"
	// AnyMode is the value of v1alpha1.LabelMode on classes of every mode.
	AnyMode = "any"
)

// ofAnyMode selects single GPUs in whatever mode they are, but for core-mem: a claim
// there has to say how much compute it takes, which elsewhere is more than there is; and for MIG
// instances, which are what their profile says and not the model. Of a GPU that is offered in
// several modes they select the whole one: the scheduler tries each device that a request matches.
const ofAnyMode = `device.driver == "gpu.aliyun.com" && device.attributes["gpu.aliyun.com"].?gpuCount.orValue(1) == 1` +
	` && device.attributes["gpu.aliyun.com"].?mode.orValue("mig") != %q` +
	` && device.attributes["gpu.aliyun.com"].?mode.orValue("mig") != "mig"` +
	` && (device.attributes["gpu.aliyun.com"].?dynamic.orValue(false) != true` +
	` || device.attributes["gpu.aliyun.com"].?mode.orValue("") == "exclusive")`

// ModesWithClass lists the modes that Model makes classes for: those that the
// driver is installed with a class for, ordered by the class' name.
func ModesWithClass() ([]mode.Mode, error) {
	classes, err := Modes()
	if err != nil {
		return nil, err
	}
	modes := make([]mode.Mode, 0, len(classes))
	for _, class := range classes {
		modes = append(modes, modeOf(class))
	}
	return modes, nil
}

// With are All classes, and those of models in every mode: of an installation on a cluster with such GPUs.
func With(models []string) ([]*resourceapi.DeviceClass, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	modes, err := ModesWithClass()
	if err != nil {
		return nil, err
	}
	for _, model := range slices.Compact(slices.Sorted(slices.Values(models))) {
		of, err := Model(model, modes)
		if err != nil {
			return nil, fmt.Errorf("make the DeviceClasses of model %s: %w", model, err)
		}
		all = append(all, of...)
	}
	return all, nil
}

// ModelClassName is the name of the class for a GPU model's GPUs in any mode.
func ModelClassName(model string) string { return ClassLabel(model) + domain }

// Model returns the classes of a GPU model: <model>.gpu.aliyun.com for GPUs in
// any mode that takes claims without amounts, which is all but core-mem, then
// <mode>.<model>.gpu.aliyun.com for each of the modes, in their order. The model is what the
// device attribute "model" says, e.g. "NVIDIA-A10";
// ClassLabel makes the name of it. A class of a mode selects what the
// mode's own class selects, and of it the GPUs of the model. A mode that has no
// class of its own is an error.
func Model(model string, modes []mode.Mode) ([]*resourceapi.DeviceClass, error) {
	byMode := map[mode.Mode]*resourceapi.DeviceClass{}
	own, err := Modes()
	if err != nil {
		return nil, err
	}
	for _, class := range own {
		byMode[modeOf(class)] = class
	}
	name := ModelClassName(model)
	classes := []*resourceapi.DeviceClass{ofModel(anyModeClass(), name, model)}
	for _, m := range modes {
		class, ok := byMode[m]
		if !ok {
			return nil, fmt.Errorf("classes of model %s: mode %q has no DeviceClass of its own", model, m)
		}
		classes = append(classes, ofModel(class, string(m)+"."+name, model))
	}
	return classes, nil
}

func modeOf(class *resourceapi.DeviceClass) mode.Mode {
	return mode.Mode(strings.TrimSuffix(class.Name, domain))
}

func anyModeClass() *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{"app.kubernetes.io/name": "dra-driver-gpushare", v1alpha1.LabelMode: AnyMode},
			Annotations: map[string]string{
				v1alpha1.AnnotationDescription: "One NVIDIA GPU or a share of one, in whatever mode its node serves it, but for " +
					"core_mem, which has a class of its own; on a node in mode dynamic a whole GPU. " +
					"What keeps its users apart is the device's attribute isolation."},
		},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
			CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(ofAnyMode, mode.CoreMem)},
		}}},
	}
}

// ofModel narrows a class to a model.
func ofModel(class *resourceapi.DeviceClass, name, model string) *resourceapi.DeviceClass {
	narrowed := &resourceapi.DeviceClass{
		TypeMeta: metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "DeviceClass"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: maps.Clone(class.Labels), Annotations: maps.Clone(class.Annotations),
		},
		Spec: *class.Spec.DeepCopy(),
	}
	narrowed.Labels[v1alpha1.LabelModel] = LabelValue(model)
	narrowed.Annotations[v1alpha1.AnnotationModel] = model
	narrowed.Annotations[v1alpha1.AnnotationDescription] = fmt.Sprintf("GPUs of the model %s only. %s", model,
		class.Annotations[v1alpha1.AnnotationDescription])
	// One class serves an extended resource such as nvidia.com/gpu: of several,
	// the scheduler takes the newest.
	narrowed.Spec.ExtendedResourceName = nil
	// In one expression with what the class selects: the scheduler evaluates each
	// for each device.
	selector := narrowed.Spec.Selectors[0].CEL
	selector.Expression += ` && device.attributes["gpu.aliyun.com"].?model.orValue("") == ` + strconv.Quote(model)
	return narrowed
}
