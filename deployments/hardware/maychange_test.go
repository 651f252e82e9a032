// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// Without the option no driver is asked, no row is added, and there is nothing to put back.
func TestMIGIsNotChangedUnlessAllowed(t *testing.T) {
	b := newBundle(options{payload: t.TempDir()})
	if err := b.chooseCut(nil); err != nil || b.cut != nil {
		t.Errorf("chosen: %v, %v", b.cut, err)
	}
	if tables := b.tryCut(t.Context(), nil); tables != nil {
		t.Errorf("tables %+v", tables)
	}
	if err := b.putBackMIG(t.Context()); err != nil {
		t.Error(err)
	}
}
