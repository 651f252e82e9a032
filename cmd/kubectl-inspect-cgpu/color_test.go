// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
)

func TestColors(t *testing.T) {
	for name, test := range map[string]struct {
		terminal  terminal
		arguments []string
		colors    bool
	}{
		"in a terminal":               {terminal{is: true, colors: true}, nil, true},
		"in a file":                   {terminal{colors: true}, nil, false},
		"in a terminal without":       {terminal{is: true}, nil, false},
		"wanted in a file":            {terminal{}, []string{"--color=always", "--bars=always"}, true},
		"not wanted":                  {terminal{is: true, colors: true}, []string{"--color=never"}, false},
		"JSON has none":               {terminal{is: true, colors: true}, []string{"--color=always", "-o", "json"}, false},
		"headings of a table without": {terminal{is: true, colors: true}, []string{"--bars=never"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			test.terminal.size = func() (int, int) { return 80, 24 }
			streams, _, out, _ := genericiooptions.NewTestIOStreams()
			c, o := newCommand(streams, test.terminal)
			if err := c.ParseFlags(test.arguments); err != nil {
				t.Fatal(err)
			}
			p, err := o.printer()
			if err != nil {
				t.Fatal(err)
			}
			if err := p.print(oneGPU(0)); err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(out.String(), "\x1b["); got != test.colors {
				t.Errorf("colours: %v\n%q", got, out)
			}
			// Without them it is the same.
			colored := regexp.MustCompile(`\x1b\[[0-9]*m`).ReplaceAllString(out.String(), "")
			o.color = never
			out.Reset()
			if err := p.print(oneGPU(0)); err != nil {
				t.Fatal(err)
			}
			if colored != out.String() {
				t.Errorf("without its colours it is\n%q\nwant\n%q", colored, out)
			}
		})
	}
}

func TestColorOfBars(t *testing.T) {
	for bar, want := range map[string]string{
		"█████░░░░░": green + "█████" + plain + "░░░░░", "████████░░": green + "████████" + plain + "░░",
		"█████████░": cyan + "█████████" + plain + "░",
		"██████████": cyan + "██████████" + plain, "░░░░░░░░░░": "░░░░░░░░░░",
	} {
		if got := string(paint([]byte("3/15 " + bar + "  4"))); got != "3/15 "+want+"  4" {
			t.Errorf("%s becomes %q", bar, got)
		}
	}
}

func TestColorOfFindings(t *testing.T) {
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	_, o := newCommand(streams, terminal{is: true, colors: true})
	r := &doctor.Report{Checks: []string{"health"}, Findings: []doctor.Finding{{Level: doctor.Error, Check: "health",
		Object: "node/n1", Text: "it is ill", Do: "heal it"}}}
	if err := o.printReport(r); err == nil || !strings.HasPrefix(out.String(), bold+red+"ERROR"+plain) {
		t.Errorf("it prints %q, %v", out, err)
	}
	out.Reset()
	o.output = "json"
	if err := o.printReport(r); err == nil || strings.Contains(out.String(), "\x1b") {
		t.Errorf("JSON is %q, %v", out, err)
	}
}
