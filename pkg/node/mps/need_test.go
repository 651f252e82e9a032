// SPDX-License-Identifier: Apache-2.0

package mps

import "testing"

func TestNeeded(t *testing.T) {
	d := Dir(t.TempDir())
	needed := func(want bool) {
		t.Helper()
		if got, err := d.Needed(); err != nil || got != want {
			t.Errorf("needed: %t, %v, want %t", got, err, want)
		}
	}
	say := func() (takeBack func()) {
		t.Helper()
		f, err := d.SayUnneeded()
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			t.Helper()
			if err := f(); err != nil {
				t.Error(err)
			}
		}
	}
	needed(true)
	first := say()
	needed(false)
	// As two instances of the plugin during an update.
	second := say()
	first()
	needed(false)
	second()
	needed(true)
	// The supervisor holds other locks.
	release, err := d.Hold()
	if err != nil {
		t.Fatal(err)
	}
	needed(true)
	say()()
	if err := release(); err != nil {
		t.Error(err)
	}
}

func TestNeededWithoutADirectory(t *testing.T) {
	d := Dir(t.TempDir() + "/none")
	if got, err := d.Needed(); err == nil || !got {
		t.Errorf("needed: %t, %v", got, err)
	}
	if _, err := d.SayUnneeded(); err == nil {
		t.Error("it was said nowhere")
	}
}
