// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/bundle"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/manifests"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/why"
)

// hostile clears the screen, by ESC and by a character of C1, changes the window's title, goes
// back over what was written, and writes backwards.
const hostile = "x\x1b[2J\u009b2J\x1b]0;title\a\r\b\x7f\u202ey"

// own are the colours, which a terminal may act on.
var own = regexp.MustCompile(`\x1b\[[0-9]*m`)

// What tenants write – selectors, what quotes them, names that no API server would take –
// does nothing to the terminal of the administrator who looks at it.
func TestTenantsDoNotReachTheTerminal(t *testing.T) {
	table := oneGPU(9)
	situation := snapshot(t, table)
	table.Claims[0].Status.ReservedFor[0].Name = hostile
	table.Notes = []string{"Not read: " + hostile}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "q-gpu"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "share.gpu.aliyun.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.attributes["gpu.aliyun.com"].model == "` +
				strings.NewReplacer("\r", "", "\u202e", "").Replace(hostile) + `"`}}}}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "q"}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Message: "no such key: " + hostile + "\nERROR   all is lost"}}
	report := &doctor.Report{Checks: []string{"claims"}, Findings: []doctor.Finding{{Level: doctor.Note, Check: "claims",
		Object: "claim/" + hostile, Text: hostile}}}
	planned := manifests.Reader{Namespace: "a"}
	expect.NoError(t, planned.Read(hostile, strings.NewReader(strings.Replace(asksFor, "AMOUNT", "1", 1))))
	for name, run := range map[string]func(ctx context.Context, o *options) error{
		"explain": func(ctx context.Context, o *options) error {
			return o.printWhy(ctx, why.Input{Snapshot: situation, Now: time.Unix(0, 0), Pod: pod,
				PodClaims: []*resourceapi.ResourceClaim{claim}, Notes: table.Notes})
		},
		"doctor": func(_ context.Context, o *options) error { return o.printReport(report) },
		"plan": func(ctx context.Context, o *options) error {
			return o.printPlan(ctx, plan.Input{Snapshot: situation, Manifests: planned.Manifests(), Now: time.Unix(0, 0),
				Notes: table.Notes})
		},
		"the table": func(_ context.Context, o *options) error {
			o.details = true
			p, err := o.printer()
			if err != nil {
				return err
			}
			return p.print(table)
		},
	} {
		for _, output := range []string{"", outputJSON, outputYAML} {
			if output == outputYAML && (name == "doctor" || name == "plan") {
				continue
			}
			for _, color := range []string{never, always} {
				o, out, errOut := written()
				o.output, o.color = output, color
				expect.NoErrorf(t, run(t.Context(), o), "%s -o %q", name, output)
				if both := out.String() + errOut.String(); !strings.Contains(both, "2J") {
					t.Errorf("%s -o %q does not show it:\n%s", name, output, both)
				}
				shown := out.String()
				if output == "" {
					shown = own.ReplaceAllString(shown, "")
				}
				for _, text := range []string{shown, errOut.String()} {
					if i := strings.IndexFunc(text, acts); i >= 0 {
						t.Errorf("%s -o %q --color %s lets %.12q through:\n%q", name, output, color, text[i:], text)
					}
				}
				expect.Equal(t, false, strings.Contains(out.String(), "\nERROR"),
					"%s -o %q --color %s has a line that a tenant wrote:\n%s", name, output, color, out)
			}
		}
	}
}

// The notes of a watch are drawn on its screen.
func TestTenantsDoNotReachTheScreen(t *testing.T) {
	e := newCounted(200, 24)
	p, _, _ := printing(t, true)
	p.screen.out, p.streams.Out, p.screen.size = e, e, func() (int, int) { return 200, 24 }
	in := oneGPU(0)
	in.Notes = []string{"Not read: " + hostile}
	expect.NoError(t, p.printAgain(in))
	expect.Says(t, e.Text(), "3/15", `Not read: x\u001b[2J`)
}

// The texts of an archive are read in a terminal, too.
func TestTenantsDoNotReachTheTerminalByABundle(t *testing.T) {
	in := bundle.Input{Snapshot: &doctor.Snapshot{}, Table: inspect.Input{Notes: []string{hostile}}, Now: time.Unix(0, 0),
		Missing: []string{hostile}}
	files, err := bundle.Files(in)
	expect.NoError(t, err)
	for _, name := range []string{"README.txt", "inspect.txt", "inspect.json"} {
		i := slices.IndexFunc(files, func(f bundle.File) bool { return f.Name == name })
		if i < 0 || !bytes.Contains(files[i].Data, []byte("2J")) || bytes.ContainsFunc(files[i].Data, acts) {
			t.Errorf("%s: %q", name, files[max(i, 0)].Data)
		}
	}
}

// acts reports whether a terminal does anything with a character but show it.
func acts(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r))
}
