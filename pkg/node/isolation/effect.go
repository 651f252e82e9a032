// SPDX-License-Identifier: Apache-2.0

package isolation

import "fmt"

// Effect is something that a back end changes on the host for a claim, and that is not a file
// of the plugin's own. Records name it (state.Effect): a name keeps its meaning for good.
type Effect struct {
	// Name says what is changed, and so how it is undone.
	Name string
	// GPU is the UUID of the GPU that it concerns.
	GPU string
}

// Undo takes back an effect of a claim that is no longer prepared, or never was. An effect
// that this version does not know is an error.
func (r *Registry) Undo(e Effect) error {
	if isClientEffect(e.Name) {
		// What a GPU is used for is the most of all its claims. Who knows the others, and that they are all there
		// are, says what is left: the publisher, which is told of each change.
		return nil
	}
	return fmt.Errorf("what was prepared changed GPU %s by %q, which this version of the driver cannot undo: the claim "+
		"stays held until a version that can has unprepared it", e.GPU, e.Name)
}
