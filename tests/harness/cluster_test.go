// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"testing"
	"testing/synctest"
)

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
