// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// oneGPU is a node with one GPU, of which the pod a/p has 3 GiB and so many more.
func oneGPU(more int64) inspect.Input {
	pool := v1alpha1.PoolName("n1")
	machine := &gpu.Machine{GPUs: []gpu.GPU{{UUID: "GPU-0", Model: "Tesla-T4", MemoryMiB: 15360}}}
	published := devices.Build(machine, devices.Options{Pool: pool, Mode: mode.Share,
		Slots: 20}).Pools[pool].Slices[0].Devices
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p-gpu"}}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p"}}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{
			Request: "gpu", Driver: v1alpha1.DriverName, Pool: pool, Device: published[0].Name,
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
				v1alpha1.CapMemory: *resource.NewQuantity((3+more)*devices.GiB, resource.BinarySI)},
		}},
	}}
	return inspect.Input{
		Slices: []*resourceapi.ResourceSlice{{Spec: resourceapi.ResourceSliceSpec{
			Driver: v1alpha1.DriverName, NodeName: ptr.To("n1"), Pool: resourceapi.ResourcePool{Name: pool}, Devices: published,
		}}},
		Claims: []*resourceapi.ResourceClaim{claim},
	}
}

// snapshot is what the scheduler knows of the cluster of a table, but for its claims: one node, with all classes.
func snapshot(t *testing.T, table inspect.Input) scheduling.Snapshot {
	t.Helper()
	classes, err := deviceclasses.All()
	expect.NoError(t, err)
	table.Slices[0].Spec.Pool.ResourceSliceCount = 1
	return scheduling.Snapshot{Classes: classes, Slices: table.Slices,
		Nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}}
}

// written are options outside of a terminal, and what is written by them.
func written() (o *options, out, errOut *bytes.Buffer) {
	streams, _, out, errOut := genericiooptions.NewTestIOStreams()
	_, o = newCommand(streams, terminal{})
	return o, out, errOut
}

// printing is the printer that the arguments ask for, and what it prints.
func printing(t *testing.T, terminal bool, arguments ...string) (p *printer, out, errOut *bytes.Buffer) {
	t.Helper()
	p, out, errOut, err := parse(terminal, arguments...)
	expect.NoError(t, err)
	return p, out, errOut
}

func parse(inTerminal bool, arguments ...string) (p *printer, out, errOut *bytes.Buffer, err error) {
	streams, _, out, errOut := genericiooptions.NewTestIOStreams()
	c, o := newCommand(streams, terminal{is: inTerminal, size: func() (int, int) { return 80, 24 }})
	if err := c.ParseFlags(arguments); err != nil {
		return nil, nil, nil, err
	}
	p, err = o.printer()
	return p, out, errOut, err
}

func TestFormats(t *testing.T) {
	const summary, details = "GPU Memory(GiB)", "NAMESPACE"
	tests := map[string]struct {
		arguments []string
		terminal  bool
		want      []string
		not       []string
	}{
		"plain":         {nil, false, []string{summary, "3/15"}, []string{details, "█", "MODEL"}},
		"in a terminal": {nil, true, []string{summary, "3/15    ██░░░░░░░░"}, []string{details}},
		"without bars":  {[]string{"--bars=never"}, true, []string{summary}, []string{"█"}},
		"with bars":     {[]string{"--bars=always"}, false, []string{"█"}, nil},
		"in a narrow terminal": {[]string{"--width=40"}, true,
			[]string{"NAME  GPU   GPU Memory(GiB)", "n1    GPU0  3/15    ██"}, []string{details, "Allocated/Total)"}},
		"narrow, if one wants": {[]string{"--width=40"}, false, []string{"n1    GPU0  3/15\n"}, []string{"█"}},
		"as wide as it is":     {[]string{"--width=0"}, true, []string{"GPU0(Allocated/Total)"}, nil},
		"narrow details": {[]string{"-d", "--width=30"}, false,
			[]string{"NAMESPACE  GPU   GPU Memory(GiB)", "a          GPU0  3\n"}, []string{"GPU0(Allocated)"}},
		"wide": {[]string{"-o", "wide", "--width=0"}, true, []string{summary, "MODEL", "Tesla-T4*1"},
			[]string{"█"}},
		"details":                   {[]string{"-d"}, false, []string{details, "GPU0(Allocated)"}, []string{summary, "█"}},
		"details in a terminal":     {[]string{"-d"}, true, []string{details, "GPU0:", "█"}, nil},
		"a namespace":               {[]string{"-n", "a"}, false, []string{details, "\np "}, nil},
		"another namespace":         {[]string{"-n", "b"}, false, []string{details, "3 (20%)"}, []string{"\np "}},
		"all namespaces":            {[]string{"-A"}, false, []string{details, "\np "}, nil},
		"all namespaces, one named": {[]string{"-A", "-n", "b"}, false, []string{details, "\np "}, nil},
		"JSON":                      {[]string{"-o", "json"}, true, []string{`"name": "n1"`, `"p"`}, []string{"█"}},
		"JSON of another namespace": {[]string{"-o", "json", "-n", "b"}, true, []string{`"name": "n1"`, `"allocated": 3`},
			[]string{`"p"`}},
		"YAML":                       {[]string{"-o", "yaml"}, false, []string{"name: n1", "- p"}, nil},
		"bars do not go into a file": {[]string{"-d", "-o", "wide"}, true, []string{"MODEL:"}, []string{"█"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p, out, errOut := printing(t, test.terminal, test.arguments...)
			expect.NoError(t, p.print(oneGPU(0)))
			expect.Says(t, out.String(), test.want...)
			for _, not := range test.not {
				expect.Equal(t, false, strings.Contains(out.String(), not), "it prints %q:\n%s", not, out)
			}
			expect.Equal(t, 0, errOut.Len(), "beside it, it says\n%s", errOut)
		})
	}
}

// The known tool's table needs no pods, and they are many: they are read only where what is lost is shown.
func TestWhereWhatIsLostIsShown(t *testing.T) {
	for _, test := range []struct {
		arguments []string
		terminal  bool
		want      bool
	}{
		{nil, false, false}, {nil, true, true}, {[]string{"-d"}, true, false}, {[]string{"-n", "a"}, true, false},
		{[]string{"-o", "wide"}, false, true}, {[]string{"-d", "-o", "wide"}, false, false},
		{[]string{"-o", "json"}, false, true}, {[]string{"-o", "yaml", "-A"}, false, true},
	} {
		c, o := newCommand(genericiooptions.NewTestIOStreamsDiscard(), terminal{is: test.terminal})
		expect.NoError(t, c.ParseFlags(test.arguments))
		expect.Equal(t, test.want, o.showsLost(), "%q, in a terminal %v: lost ones are shown", test.arguments, test.terminal)
	}
}

func TestFlagsThatCannotBe(t *testing.T) {
	for argument, want := range map[string]string{
		"--output=xml": "--output xml: not one of wide, json, yaml",
		"--width=wide": "--width wide: neither auto nor a number of columns",
		"--width=-1":   "--width -1: neither auto nor a number of columns",
		"--use=much":   "--use much: not one of always, never, auto",
		"--bars=big":   "--bars big: not one of always, never, auto",
		"--color=pink": "--color pink: not one of always, never, auto",
	} {
		if _, _, _, err := parse(false, argument); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", argument, err, want)
		}
	}
}

func TestNotesDoNotGoIntoTheTable(t *testing.T) {
	p, out, errOut := printing(t, false)
	in := oneGPU(0)
	in.Notes = []string{"You may not."}
	expect.NoError(t, p.print(in))
	if strings.Contains(out.String(), "You may not.") || errOut.String() != "You may not.\n" {
		t.Errorf("printed\n%s\nand beside it\n%s", out, errOut)
	}
}

func TestNoGPUs(t *testing.T) {
	p, _, errOut := printing(t, false)
	if err := p.print(inspect.Input{}); err != nil || !strings.Contains(errOut.String(), "No node publishes GPUs") {
		t.Errorf("of the cluster: %v\n%s", err, errOut)
	}
	in := oneGPU(0)
	in.Slices, in.Node = nil, "n1"
	err := p.print(in)
	if err == nil || !strings.Contains(err.Error(), "kubectl describe node n1") ||
		!strings.Contains(err.Error(), "claims hold 1 devices of it") {
		t.Errorf("of a node: %v", err)
	}
}

func TestWatchPrintsWhatHasChanged(t *testing.T) {
	const first, second = "2026-11-22T10:00:00Z\n", "2026-11-22T10:00:02Z\n"
	for name, test := range map[string]struct {
		arguments []string
		before    string // the first table, and the second
		between   string
	}{
		"plain": {nil, first, "\n" + second},
		"YAML":  {[]string{"-o", "yaml"}, "", "---\n"},
		"JSON":  {[]string{"-o", "json"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, out, _ := printing(t, false, test.arguments...)
			seconds := 0
			p.now = func() time.Time { return time.Date(2026, 11, 22, 10, 0, seconds, 0, time.UTC) }
			var tables [2]string
			for i := range tables {
				other, text, _ := printing(t, false, test.arguments...)
				expect.NoError(t, other.print(oneGPU(int64(i))))
				tables[i] = text.String()
			}
			for i, more := range []int64{0, 0, 1, 1} {
				seconds = i
				expect.NoError(t, p.printAgain(oneGPU(more)))
			}
			expect.Equal(t, test.before+tables[0]+test.between+tables[1], out.String(), "printed")
		})
	}
}

// kubectl starts a program of another name to complete the plugin's arguments.
func TestCompletion(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"values of a flag": {[]string{"/bin/kubectl_complete-inspect-cgpu", "--output", ""}, "wide\njson\nyaml\n:4\n"},
		"flags": {[]string{"kubectl_complete-inspect-cgpu", "--det"}, "--details\tlist the pods on each node " +
			"and what they hold of each GPU\n:4\n"},
	} {
		t.Run(name, func(t *testing.T) {
			streams, _, out, _ := genericiooptions.NewTestIOStreams()
			c, _ := newCommand(streams, terminal{})
			c.SetArgs(arguments(test.args))
			expect.NoError(t, c.Execute())
			expect.Equal(t, test.want, out.String(), "printed")
		})
	}
	if got := arguments([]string{"/bin/kubectl-inspect-cgpu", "-d", "n1"}); strings.Join(got, " ") != "-d n1" {
		t.Errorf("of the plugin itself: %q", got)
	}
}

// fail checks that commands fail where no cluster is, by their arguments, each with an error of one line that matches,
// and that they leave no file.
func fail(t *testing.T, commands map[string]string) {
	t.Helper()
	t.Setenv("KUBECONFIG", "/nonexistent")
	for arguments, want := range commands {
		t.Run(arguments, func(t *testing.T) {
			t.Chdir(t.TempDir())
			streams, _, _, _ := genericiooptions.NewTestIOStreams()
			c, _ := newCommand(streams, terminal{})
			c.SetArgs(append(strings.Fields(arguments), "--server", "http://127.0.0.1:1"))
			err := c.Execute()
			if err == nil || !regexp.MustCompile(want).MatchString(err.Error()) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %s", err, want)
			}
			if left, err := os.ReadDir("."); err != nil || len(left) > 0 {
				t.Errorf("it leaves %v, %v", left, err)
			}
		})
	}
}
