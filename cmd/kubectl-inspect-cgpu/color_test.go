// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
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
			expect.NoError(t, c.ParseFlags(test.arguments))
			p, err := o.printer()
			expect.NoError(t, err)
			expect.NoError(t, p.print(oneGPU(0)))
			expect.Equal(t, test.colors, strings.Contains(out.String(), "\x1b["), "colours in\n%q", out)
			// Without them it is the same.
			colored := regexp.MustCompile(`\x1b\[[0-9]*m`).ReplaceAllString(out.String(), "")
			o.color = never
			out.Reset()
			expect.NoError(t, p.print(oneGPU(0)))
			expect.Equal(t, out.String(), colored, "without its colours")
		})
	}
}

func TestColorOfBars(t *testing.T) {
	for bar, want := range map[string]string{
		"█████░░░░░": green + "█████" + plain + "░░░░░", "████████░░": green + "████████" + plain + "░░",
		"█████████░": cyan + "█████████" + plain + "░",
		"██████████": cyan + "██████████" + plain, "░░░░░░░░░░": "░░░░░░░░░░",
	} {
		expect.Equal(t, "3/15 "+want+"  4", string(paint([]byte("3/15 "+bar+"  4"))), "%s becomes", bar)
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
