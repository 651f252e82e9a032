// SPDX-License-Identifier: Apache-2.0

package mode

import "maps"

// Offer is how a node's devices are offered; the zero Offer offers none.
type Offer struct {
	Mode Mode
	// Isolation names, for each of the served modes, what keeps the users of
	// a GPU apart: the device attribute "isolation". One that is missing is not
	// known.
	Isolation map[Mode]string
}

// Equal reports whether claims of the two offers can hold shares of one GPU.
func (o Offer) Equal(other Offer) bool {
	return o.Mode == other.Mode && maps.Equal(o.Isolation, other.Isolation)
}
