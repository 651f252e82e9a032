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

// In a name onStart begins the words of Request.On, and gap separates them: deployments/options/other-manifests.
const (
	gap     = "--"
	onStart = "-on" + gap
)

// onWord is a mode of shares of memory, a text that a GPU's model has in it, or has not, or the UUID of a GPU, or of
// none. It becomes part of a CEL expression, as a string that needs no escaping.
var onWord = regexp.MustCompile(`^(?:cgpu|mps|(?:no)?(?:model|uuid)-[a-z0-9]+(?:-[a-z0-9]+)*)$`)

func isMode(word string) bool { return word == "cgpu" || word == "mps" }

// validateOn finds words that mean nothing, or nothing beside what else is asked for.
func (r Request) validateOn() error {
	modes := 0
	for _, word := range r.On {
		if r.Kind == GPUs || r.Kind == CPUs || !onWord.MatchString(word) {
			return fmt.Errorf("word %q chooses no GPUs of a request of kind %q", word, r.Kind)
		}
		if isMode(word) {
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
	if i := slices.IndexFunc(r.On, isMode); i >= 0 {
		return r.On[i] + "." + v1alpha1.DriverName
	}
	return classMemory
}

// chosen selects the GPUs that the words name; nothing where they name none. It is one selector without loops: the
// policy gpushare-search-cost takes no others. Of attributes that are read as optional ones the API server does not
// know how long they are, and refuses to search in them. As HAMi's, models have their maker's name before them.
func (r Request) chosen() []resourceapi.DeviceSelector {
	var all []string
	for _, rule := range []struct {
		prefix, test, join string
		attribute          resourceapi.QualifiedName
	}{
		{"model-", `("nvidia-" + %s.lowerAscii()).contains(%q)`, " || ", v1alpha1.AttrModel},
		{"nomodel-", `!("nvidia-" + %s.lowerAscii()).contains(%q)`, " && ", v1alpha1.AttrModel},
		{"uuid-", `%s.lowerAscii() == %q`, " || ", v1alpha1.AttrUUID},
		{"nouuid-", `%s.lowerAscii() != %q`, " && ", v1alpha1.AttrUUID},
	} {
		value := fmt.Sprintf("device.attributes[%q].%s", v1alpha1.DriverName, rule.attribute)
		var tests []string
		for _, word := range r.On {
			if text, is := strings.CutPrefix(word, rule.prefix); is {
				tests = append(tests, fmt.Sprintf(rule.test, value, text))
			}
		}
		if len(tests) > 0 {
			all = append(all, fmt.Sprintf("has(%s) && (%s)", value, strings.Join(tests, rule.join)))
		}
	}
	if len(all) == 0 {
		return nil
	}
	return []resourceapi.DeviceSelector{selector(strings.Join(all, " && "))}
}
