// SPDX-License-Identifier: Apache-2.0

package testneeds

import (
	"fmt"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// fake keeps what became of a test.
type fake struct {
	testing.TB
	became string
}

func (f *fake) Helper() {}

func (f *fake) Skipf(format string, args ...any) {
	f.became = "skipped: " + fmt.Sprintf(format, args...)
}

func (f *fake) Fatalf(format string, args ...any) {
	f.became = "failed: " + fmt.Sprintf(format, args...)
}

func TestSkipf(t *testing.T) {
	for ci, want := range map[string]string{
		"":      "skipped: no cc: lost",
		"false": "skipped: no cc: lost",
		"true":  "failed: what this test needs is there where CI=true: no cc: lost",
	} {
		t.Run("CI="+ci, func(t *testing.T) {
			t.Setenv(CIEnv, ci)
			f := &fake{TB: t}
			Skipf(f, "no %s: %s", "cc", "lost")
			expect.Equal(t, want, f.became, "the test is")
		})
	}
}
