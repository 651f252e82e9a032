// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// Words of Request.On. The option deployments/options/other-manifests writes them into names of templates, in lower
// case, as names are.
const (
	onCGPU     = "cgpu"      // shares in mode cgpu, which limits memory
	onMPS      = "mps"       // shares in mode mps
	onModel    = "model-"    // GPUs whose model has the text in it; of several one is enough
	onNotModel = "nomodel-"  // GPUs whose model does not
	onUUID     = "uuid-"     // the GPU with this UUID; of several any
	onNotUUID  = "nouuid-"   // any other GPU
	modelMaker = "nvidia-"   // HAMi compares with the maker and the model
	onStart    = "-on" + gap // begins the words in a name
	gap        = "--"        // separates them
)

// What the words of Request.On look like. Their texts become part of a CEL expression, as strings that need no
// escaping.
var onWord = regexp.MustCompile(`^(?:cgpu|mps|(?:no)?(?:model|uuid)-[a-z0-9]+(?:-[a-z0-9]+)*)$`)

// validateOn finds words that mean nothing, or nothing beside what else is asked for.
func (r Request) validateOn() error {
	if len(r.On) > 0 && r.Kind != Memory && r.Kind != CoreMemory && r.Kind != NVIDIA {
		return fmt.Errorf("a request of kind %q chooses no GPUs", r.Kind)
	}
	modes := 0
	for _, word := range r.On {
		if !onWord.MatchString(word) {
			return fmt.Errorf("word %q chooses no GPUs: want %s, %s, or %s, %s, %s or %s and a text of a-z, 0-9 and -", word,
				onCGPU, onMPS, onModel, onNotModel, onUUID, onNotUUID)
		}
		if word == onCGPU || word == onMPS {
			modes++
		}
	}
	if modes > 1 || modes == 1 && r.Kind != Memory {
		return errors.New("one mode can be chosen, and that for memory alone")
	}
	return nil
}

// memoryClass is the DeviceClass of shares of memory alone.
func (r Request) memoryClass() string {
	for _, m := range []string{onCGPU, onMPS} {
		if slices.Contains(r.On, m) {
			return m + "." + v1alpha1.DriverName
		}
	}
	return classMemory
}

// chosen selects the GPUs that the words name; nothing where they name none. It is one selector without loops: the
// policy gpushare-search-cost takes no others. Of attributes that are read as optional ones the API server does not
// know how long they are, and refuses to search in them.
func (r Request) chosen() []resourceapi.DeviceSelector {
	var all []string
	attribute := func(name resourceapi.QualifiedName) string {
		return fmt.Sprintf("device.attributes[%q].%s", v1alpha1.DriverName, name)
	}
	model, uuid := attribute(v1alpha1.AttrModel), attribute(v1alpha1.AttrUUID)
	maker := fmt.Sprintf("(%q + %s.lowerAscii())", modelMaker, model)
	for _, rule := range []struct{ prefix, attribute, test, join string }{
		{onModel, model, maker + ".contains(%q)", " || "},
		{onNotModel, model, "!" + maker + ".contains(%q)", " && "},
		{onUUID, uuid, uuid + ".lowerAscii() == %q", " || "},
		{onNotUUID, uuid, uuid + ".lowerAscii() != %q", " && "},
	} {
		var tests []string
		for _, word := range r.On {
			if text, is := strings.CutPrefix(word, rule.prefix); is {
				tests = append(tests, fmt.Sprintf(rule.test, text))
			}
		}
		if len(tests) > 0 {
			all = append(all, fmt.Sprintf("has(%s) && (%s)", rule.attribute, strings.Join(tests, rule.join)))
		}
	}
	if len(all) == 0 {
		return nil
	}
	return []resourceapi.DeviceSelector{selector(strings.Join(all, " && "))}
}
