// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"testing"
	"testing/synctest"
)

// Tests wait until all that are to be first have begun, or ended, and these wait for nobody.
func TestFirsts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f firsts
		f.wait("alone")
		f.add("long")
		f.add("longest")
		works := false
		go func() {
			f.wait("other")
			works = true
		}()
		f.wait("long")
		f.begun("long")
		f.begun("long") // it takes another node
		f.wait("long")
		f.begun("other")
		if synctest.Wait(); works {
			t.Error("a test works before the longest one")
		}
		f.begun("longest")
		if synctest.Wait(); !works {
			t.Error("a test does not work when the longest ones do")
		}
	})
}

// No more tests work at once than there are places. One that rests, or has ended, lets the next one work.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(1)
		p.take("first")
		p.take("first") // its subtest
		works := false
		go func() {
			p.take("second")
			works = true
		}()
		if synctest.Wait(); works {
			t.Error("two tests work at once, and there is one place")
		}
		p.give("first")
		p.give("first")
		if synctest.Wait(); !works {
			t.Error("the second test does not work when the first one rests")
		}
		p.give("second")
		p.take("first")
	})
}
