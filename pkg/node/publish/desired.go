// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// desired is what a node asks for.
type desired struct {
	// mode is empty where that is something that cannot be served.
	mode mode.Mode
	// asked is what the labels came to, if there is a mode.
	asked     mode.Asked
	placement mode.Placement
	// servings are the modes that each GPU is offered in.
	served []servedMode
	// notServed says why mode is empty, ignored which labels were not understood
	// and could be done without.
	notServed error
	ignored   []error
	// again says that the reason for the refusal can go away unnoticed.
	again bool
}

// offer is what the devices are to be published as.
func (w *desired) offer() mode.Offer {
	if w.mode == "" {
		return mode.Offer{}
	}
	o := mode.Offer{Mode: w.mode, Isolation: map[mode.Mode]string{}}
	for _, s := range w.served {
		o.Isolation[s.mode] = s.backend.Name()
	}
	return o
}

// offerNothing makes it that nothing is offered, for the reason given.
func (w *desired) offerNothing(reason error) {
	w.mode, w.served, w.notServed = "", nil, reason
}

// describe says what an offer is, with what tells it from another one.
func describe(o, from mode.Offer) string {
	switch {
	case o.Mode == "":
		return "offering none"
	case o.Mode != from.Mode || o.Equal(from):
		return "mode " + string(o.Mode)
	}
	var by []string
	for _, m := range o.Mode.ServedModes() {
		if o.Isolation[m] != from.Isolation[m] {
			by = append(by, fmt.Sprintf("%s by %s", m, o.Isolation[m]))
		}
	}
	return fmt.Sprintf("mode %s with isolation of %s", o.Mode, strings.Join(by, ", "))
}
