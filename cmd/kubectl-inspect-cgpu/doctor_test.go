// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
)

func TestDoctorPrintsTheReport(t *testing.T) {
	found := &doctor.Report{Checks: []string{"health"}, Findings: []doctor.Finding{{Level: doctor.Error, Check: "health",
		Object: "node/n1", Text: "it is ill", Do: "heal it"}}}
	noted := &doctor.Report{Checks: []string{"health"}, Findings: []doctor.Finding{{Level: doctor.Note}}}
	for name, test := range map[string]struct {
		report   *doctor.Report
		output   string
		want     string
		findings bool
	}{
		"findings":         {found, "", "ERROR   node/n1: it is ill\n        do: heal it\n", true},
		"findings as JSON": {found, "json", `"object": "node/n1"`, true},
		"notes":            {noted, "", "1 checks: 0 errors, 0 warnings, 1 notes", false},
		"nothing":          {&doctor.Report{Checks: []string{"health"}}, "", "1 checks, nothing found: health\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			o, out, _ := written()
			o.output = test.output
			err := o.printReport(test.report)
			if errors.Is(err, errFindings) != test.findings || !test.findings && err != nil {
				t.Errorf("it ends with %v", err)
			}
			expect.Says(t, out.String(), test.want)
		})
	}
}

func TestDoctorErrors(t *testing.T) {
	fail(t, map[string]string{
		"doctor -o yaml": "^--output yaml: not json",
		"doctor n1":      `^unknown command "n1" for "kubectl inspect cgpu doctor"`,
		// It reads all at once, and says the first that fails.
		"doctor": "^(list|read) ",
	})
}
