// SPDX-License-Identifier: Apache-2.0

package deviceclass

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// plan is what there is to do for the classes. Its lists are ordered by name.
type plan struct {
	create, update []*resourceapi.DeviceClass
	// surplus are classes of ours for which there are no GPUs.
	surplus []*resourceapi.DeviceClass
	// outlived is the marker whose class for CPUs is gone, nil if there is none.
	outlived *resourceapi.DeviceClass
	// told are classes that something is to be said of.
	told []finding
}

// finding is something that the reader of a class should know.
type finding struct {
	class           *resourceapi.DeviceClass
	reason, message string
}

// Catalogue returns the classes of the models, for the modes that their GPUs are
// served in, and of the MIG profiles, ordered by name. Modes that have no class of their own are left out:
// a plugin that is newer than this program may serve such. Models that differ only
// in upper and lower case have classes of the same names, and so may profiles.
func Catalogue(models []view.Model, profiles []string) ([]*resourceapi.DeviceClass, error) {
	known, err := deviceclasses.ModesWithClass()
	if err != nil {
		return nil, err
	}
	var classes []*resourceapi.DeviceClass
	for _, model := range models {
		served := slices.DeleteFunc(slices.Clone(model.Modes), func(m mode.Mode) bool { return !slices.Contains(known, m) })
		ofModel, err := deviceclasses.Model(model.Name, served)
		if err != nil {
			return nil, err
		}
		classes = append(classes, ofModel...)
	}
	for _, profile := range profiles {
		classes = append(classes, deviceclasses.Profile(profile))
	}
	slices.SortStableFunc(classes, byName)
	return classes, nil
}

func byName(a, b *resourceapi.DeviceClass) int { return strings.Compare(a.Name, b.Name) }

// newPlan compares the classes that the models and MIG profiles should have with those that exist.
func newPlan(models []view.Model, profiles []string, existing []*resourceapi.DeviceClass) (plan, error) {
	var p plan
	have := map[string]*resourceapi.DeviceClass{}
	for _, class := range existing {
		have[class.Name] = class
	}
	wanted, err := Catalogue(p.withNames(models, have), profiles)
	if err != nil {
		return plan{}, err
	}
	isWanted := map[string]bool{}
	for _, class := range onePerName(wanted, have) {
		class.Labels[v1alpha1.LabelManagedBy] = v1alpha1.ControllerName
		isWanted[class.Name] = true
		p.add(have[class.Name], class)
	}
	for _, class := range existing {
		if managed(class) && !isWanted[class.Name] {
			p.surplus = append(p.surplus, class)
		}
	}
	slices.SortFunc(p.surplus, byName)
	return p, nil
}

// onePerName leaves one class of each name: the one that is there already, for claims rely on it,
// or else the first. Of two profiles, one is not by NVIDIA's driver: 1g.10gb+me and "1g.10gb.me".
func onePerName(
	wanted []*resourceapi.DeviceClass, have map[string]*resourceapi.DeviceClass,
) []*resourceapi.DeviceClass {
	var out []*resourceapi.DeviceClass
	for _, class := range wanted {
		switch last := len(out) - 1; {
		case last < 0 || out[last].Name != class.Name:
			out = append(out, class)
		case have[class.Name] != nil && equality.Semantic.DeepEqual(have[class.Name].Spec, class.Spec):
			out[last] = class
		}
	}
	return out
}

// withNames returns the models that can have classes. Of models with the same name
// that is the one that has classes already, for claims rely on them, or else the
// first.
func (p *plan) withNames(models []view.Model, have map[string]*resourceapi.DeviceClass) []view.Model {
	owners := map[string]string{}
	var out []view.Model
	for _, candidate := range models {
		name := deviceclasses.ModelClassName(candidate.Name)
		class := have[name]
		if _, ok := owners[name]; !ok {
			owners[name] = candidate.Name
			if class != nil && managed(class) {
				owners[name] = model(class)
			}
		}
		switch {
		case owners[name] == candidate.Name:
			out = append(out, candidate)
		case class != nil:
			p.tellNameInUse(class, candidate.Name)
		}
	}
	return out
}

// add plans for one name: the class that has it, or nil, and the one that should.
func (p *plan) add(have, want *resourceapi.DeviceClass) {
	switch {
	case have != nil && !managed(have):
		if !equality.Semantic.DeepEqual(have.Spec, want.Spec) {
			p.told = append(p.told, finding{have, v1alpha1.ReasonDeviceClassNotOurs, fmt.Sprintf(
				"The class was not made by %s, and selects something else than the GPUs that its name stands for, those of the "+
					"%s: it is left as it is", v1alpha1.ControllerName, kind(want))})
		}
	case have != nil && model(have) != model(want):
		p.surplus = append(p.surplus, have)
		p.tellNameInUse(have, model(want))
	default:
		p.write(have, want)
	}
}

// write plans to make a class, or to change it into the wanted one. Labels and annotations that others added stay.
func (p *plan) write(have, want *resourceapi.DeviceClass) {
	if have == nil {
		p.create = append(p.create, want)
		return
	}
	class := have.DeepCopy()
	class.Spec = want.Spec
	class.Labels = labels.Merge(class.Labels, want.Labels)
	class.Annotations = labels.Merge(class.Annotations, want.Annotations)
	same := equality.Semantic.DeepEqual
	if !same(have.Spec, class.Spec) || !same(have.Labels, class.Labels) || !same(have.Annotations, class.Annotations) {
		p.update = append(p.update, class)
	}
}

func (p *plan) tellNameInUse(class *resourceapi.DeviceClass, other string) {
	p.told = append(p.told, finding{class, v1alpha1.ReasonModelNameTaken, fmt.Sprintf(
		`The class is for the model %q. There is none for the model %q, which would have the same name: choose its GPUs `+
			`by a selector on the attribute model`,
		model(class), other)})
}

func managed(class *resourceapi.DeviceClass) bool {
	return class.Labels[v1alpha1.LabelManagedBy] == v1alpha1.ControllerName && class.Name != legacy.ClassCPUsMarker
}

// kind is what a class is for, in words.
func kind(class *resourceapi.DeviceClass) string {
	if profile := class.Labels[v1alpha1.LabelProfile]; profile != "" {
		return fmt.Sprintf("MIG profile %q", profile)
	}
	if class.Name == legacy.ClassCPUsMarker {
		return "exclusive CPUs"
	}
	return fmt.Sprintf("model %q", model(class))
}

func model(class *resourceapi.DeviceClass) string {
	return class.Annotations[v1alpha1.AnnotationModel]
}
