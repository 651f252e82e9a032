// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// trimmed is a table without the blanks at the ends of its lines.
func trimmed(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return out.String()
}

// nodesOf is the part of a summary that is about nodes, its cells by themselves.
func nodesOf(text string) [][]string {
	var rows [][]string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "-") {
			break
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.TrimSpace(line), "  ") {
			if cell = strings.TrimSpace(cell); cell != "" {
				cells = append(cells, cell)
			}
		}
		rows = append(rows, cells[2:])
	}
	return rows[1:]
}

var (
	v100 = newGPU("Tesla-V100-SXM2-16GB", 16130)
	a10  = newGPU("NVIDIA-A10", 23028)
	t4   = newGPU("Tesla-T4", 15360)
	h200 = newGPU("NVIDIA-H200", 143771)
)

func TestSummaryOfModes(t *testing.T) {
	tests := map[string]struct {
		slices []*resourceapi.ResourceSlice
		claims []*resourceapi.ResourceClaim
		want   []string
	}{
		"shares fill one GPU after the other": {
			publish("n1", mode.Share, newGPUs(4, "V100", 16130)...),
			[]*resourceapi.ResourceClaim{
				claim("a/p1", "n1 gpu-0-share 15"), claim("a/p2", "n1 gpu-1-share 3"), claim("b/p1", "n1 gpu-1-share 6"),
			},
			[]string{"15/15", "9/15", "0/15", "0/15", "24/60"},
		},
		"a claim for shares of several GPUs": {
			publish("n1", mode.CGPU, v100, v100, v100),
			[]*resourceapi.ResourceClaim{claim("a/p", "n1 gpu-0-cgpu 2", "n1 gpu-2-cgpu 2")},
			[]string{"2/15", "0/15", "2/15", "4/45"},
		},
		"GPUs of different sizes": {
			publish("n1", mode.MPS, a10, t4),
			[]*resourceapi.ResourceClaim{claim("a/p", "n1 gpu-0-mps 8"), claim("a/q", "n1 gpu-1-mps 8")},
			[]string{"8/22", "8/15", "16/37"},
		},
		"a GPU that is left out keeps its column": {
			without("gpu-1-share", publish("n1", mode.Share, v100, v100, v100)),
			[]*resourceapi.ResourceClaim{claim("a/p", "n1 gpu-2-share 3")},
			[]string{"0/15", "0/0", "3/15", "3/30"},
		},
		"more than 100 GiB are still GiB": {
			publish("n1", mode.Share, h200),
			[]*resourceapi.ResourceClaim{claim("a/p", "n1 gpu-0-share 120")},
			[]string{"120/140", "120/140"},
		},
		"whole GPUs count with all their memory": {
			publish("n1", mode.Exclusive, h200, h200),
			[]*resourceapi.ResourceClaim{claim("a/p", "n1 gpu-1")},
			[]string{"0/140", "140/140", "140/280"},
		},
		"a linked set is each of its GPUs": {
			publish("n1", mode.Topology, newGPUs(4, "V100", 16130)...),
			[]*resourceapi.ResourceClaim{claim("a/p", "n1 gpus-2-3"), claim("a/q", "n1 gpu-0-topology")},
			[]string{"15/15", "0/15", "15/15", "15/15", "45/60"},
		},
		"a dynamic node": {
			publish("n1", mode.Dynamic, newGPUs(3, "V100", 16130)...),
			[]*resourceapi.ResourceClaim{claim("a/p", "n1 gpu-0-share 4"), claim("a/q", "n1 gpu-2")},
			[]string{"4/15", "0/15", "15/15", "19/45"},
		},
		"compute": {
			publish("n1", mode.CoreMem, v100, v100),
			[]*resourceapi.ResourceClaim{claim("a/p", "n1 gpu-0-core-mem 4 35"), claim("a/q", "n1 gpu-0-core-mem 1 5")},
			[]string{"5/15", "0/15", "5/30", "40/100", "0/100", "40/200"},
		},
		"compute of a dynamic node is that of the GPUs it is granted on": {
			publish("n1", mode.Dynamic, v100, v100),
			[]*resourceapi.ResourceClaim{claim("a/p", "n1 gpu-1-core-mem 4 35"), claim("a/q", "n1 gpu-0-share 2")},
			[]string{"2/15", "4/15", "6/30", "0/0", "35/100", "35/100"},
		},
		"what takes nothing": {
			publish("n1", mode.Share, v100),
			[]*resourceapi.ResourceClaim{
				changed(claim("a/admin", "n1 gpu-0-share 4"), func(c *resourceapi.ResourceClaim) {
					c.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
				}),
				changed(claim("a/other-driver", "n1 gpu-0-share 4"), func(c *resourceapi.ResourceClaim) {
					c.Status.Allocation.Devices.Results[0].Driver = "gpu.example.com"
				}),
				changed(claim("a/waits", "n1 gpu-0-share 4"), func(c *resourceapi.ResourceClaim) { c.Status.Allocation = nil }),
			},
			[]string{"0/15", "0/15"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := inspect.Input{Slices: test.slices, Claims: test.claims, Nodes: []*corev1.Node{node("n1", "10.0.0.1")}}
			expect.Equal(t, [][]string{test.want}, nodesOf(summary(in, inspect.Style{})), "nodes")
			expect.Equal(t, nil, inspect.New(in).Notes, "notes")
		})
	}
}

func everyMode() inspect.Input {
	return inspect.Input{
		Slices: slices.Concat(
			publish("core", mode.CoreMem, v100, v100),
			publish("dyn", mode.Dynamic, a10, a10, t4),
		),
		Claims: []*resourceapi.ResourceClaim{
			claim("team-a/train", "core gpu-0-core-mem 4 35"),
			claim("team-b/serve", "core gpu-0-core-mem 8 20", "core gpu-1-core-mem 8 20"),
			claim("team-b/job", "dyn gpu-2"),
			claim("team-a/web", "dyn gpu-0-share 3"),
		},
		Nodes: []*corev1.Node{node("core", "10.0.0.1"), node("dyn", "10.0.0.2")},
	}
}

func TestSummaryOfAllThereIsToSee(t *testing.T) {
	want := `
NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU2(Allocated/Total)  GPU Memory(GiB)  CORE0(Allocated/Total)  CORE1(Allocated/Total)  CORE2(Allocated/Total)  GPU Core(%)  MODE                                MODEL
core  10.0.0.1   12/15   ████████░░     8/15    █████░░░░░     0/0                    20/30            55/100  █████░░░░░      20/100  ██░░░░░░░░      0/0                     75/200       core-mem                            Tesla-V100-SXM2-16GB*2
dyn   10.0.0.2   3/22    █░░░░░░░░░     0/22    ░░░░░░░░░░     15/15   ██████████     18/59            0/0                     0/0                     0/0                     0/0          dynamic(GPU0=share,GPU2=exclusive)  NVIDIA-A10*2,Tesla-T4*1
----------------------------------------------------------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
38/89 (42%)
Allocated/Total GPU Core In Cluster:
75/200 (37%)
`
	got := "\n" + trimmed(summary(everyMode(), inspect.Style{Wide: true, Bars: true}))
	expect.Equal(t, want, got, "summary")
}

func TestDetailsOfAllThereIsToSee(t *testing.T) {
	want := `
NAME:       core
IPADDRESS:  10.0.0.1
MODE:       core-mem
MODEL:      Tesla-V100-SXM2-16GB*2

NAME              NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  CORE0(Allocated)  CORE1(Allocated)  ORIGIN
train             team-a     4                0                35                0                 claim
serve             team-b     8                8                20                20                claim
Allocated :       20 (66%)
Total :           30
Core Allocated :  75 (37%)
Core Total :      200
---------------------------------------------------------------------

NAME:       dyn
IPADDRESS:  10.0.0.2
MODE:       dynamic(GPU0=share,GPU2=exclusive)
MODEL:      NVIDIA-A10*2,Tesla-T4*1

NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  GPU2(Allocated)  ORIGIN
web          team-a     3                0                0                claim
job          team-b     0                0                15               claim
Allocated :  18 (30%)
Total :      59
---------------------------------------------------------------------


Allocated/Total GPU Memory In Cluster:  38/89 (42%)
Allocated/Total GPU Core In Cluster:    75/200 (37%)
`
	expect.Equal(t, want, trimmed(details(everyMode(), inspect.Style{Wide: true})), "details")
}

func TestHolders(t *testing.T) {
	shared := changed(claim("a/p", "n1 gpu-0-share 4"), func(c *resourceapi.ResourceClaim) {
		c.Name = "together"
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "o"})
	})
	unused := changed(claim("a/p", "n1 gpu-1-share 5"),
		func(c *resourceapi.ResourceClaim) { c.Name, c.Status.ReservedFor = "kept", nil })
	ofGroup := changed(claim("a/p", "n1 gpu-1-share 1"), func(c *resourceapi.ResourceClaim) {
		c.Name = "of-all"
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{APIGroup: "scheduling.k8s.io",
			Resource: "podgroups", Name: "train"}}
	})
	second := changed(claim("b/p", "n1 gpu-1-share 1"), func(c *resourceapi.ResourceClaim) { c.Name = "second" })
	in := inspect.Input{
		Slices: publish("n1", mode.Share, v100, v100),
		Claims: []*resourceapi.ResourceClaim{
			second, unused, claim("b/p", "n1 gpu-0-share 2", "n1 gpu-0-share 1"), claim("a/q", "n1 gpu-1-share 2"), shared,
			claim("a/p", "n1 gpu-1-share 1"), ofGroup,
		},
	}
	var got []string
	for line := range strings.Lines(details(in, inspect.Style{})) {
		if fields := strings.Fields(line); len(fields) == 4 && fields[0] != "NAME" && fields[1] != ":" {
			got = append(got, strings.Join(fields, " "))
		}
	}
	want := []string{
		"o,p a 4 0", // pods that share a claim
		"p b 3 1",   // two containers, and two claims
		"p a 0 1",   // the same name in another namespace
		"podgroups/train a 0 1",
		"q a 0 2",
		"resourceclaim/kept a 0 5", // allocated, and nobody uses it
	}
	expect.Equal(t, want, got, "rows")

	filtered := inspect.New(in).Of("b")
	if holders := filtered.Nodes[0].Holders; len(holders) != 1 || holders[0].Namespace != "b" {
		t.Errorf("holders of namespace b: %+v", holders)
	}
	expect.Equal(t, "17/30", filtered.MemoryGiB.String(), "sum of all, with a namespace")
}

func TestWhatIsMissingIsSaid(t *testing.T) {
	republished := publish("n1", mode.Exclusive, v100)
	republished[0].Spec.Pool.Generation, republished[0].Name = 2, "newer"
	tests := map[string]struct {
		in    inspect.Input
		want  []string // the cells of nodes
		notes []string // what they say among other things
	}{
		"no claim could be read": {
			inspect.Input{Slices: publish("n1", mode.Share, v100), ClaimsUnknown: true, Notes: []string{"not allowed"}},
			[]string{"?/15", "?/15"}, []string{"not allowed"},
		},
		"a GPU that is gone": {
			inspect.Input{Slices: publish("n1", mode.Share, v100),
				Claims: []*resourceapi.ResourceClaim{claim("a/p", "n1 gpu-1-share 3")}},
			[]string{"0/15", "3/0", "3/15"}, []string{"GPU 1 of node n1 is not published any more"},
		},
		"a node that is gone": {
			inspect.Input{Slices: publish("n1", mode.Share, v100),
				Claims: []*resourceapi.ResourceClaim{claim("a/p", "n2 gpu-0-share 3", "n2 gpu-1-share 3")}},
			[]string{"0/15", "0/15"}, []string{"Node n2 publishes no GPUs, but claims hold 2 devices of it"},
		},
		"a node that was not asked for": {
			inspect.Input{Slices: publish("n1", mode.Share, v100), Node: "n1",
				Claims: []*resourceapi.ResourceClaim{claim("a/p", "n2 gpu-0-share 3")}},
			[]string{"0/15", "0/15"}, nil,
		},
		"a device of another version": {
			inspect.Input{Slices: publish("n1", mode.Share, v100),
				Claims: []*resourceapi.ResourceClaim{claim("a/p", "n1 gpu-0-quantum 3")}},
			[]string{"0/15", "0/15"},
			[]string{`ResourceClaim a/p-gpu-x7k2p is not counted on node n1: device name "gpu-0-quantum"`},
		},
		"slices of two generations": {
			inspect.Input{Slices: slices.Concat(publish("n1", mode.Share, v100, v100), republished)},
			[]string{"0/15", "0/15", "0/30"}, nil,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, [][]string{test.want}, nodesOf(summary(test.in, inspect.Style{})), "nodes")
			notes := inspect.New(test.in).Notes
			if len(notes) != len(test.notes) {
				t.Fatalf("notes %q, want %q", notes, test.notes)
			}
			for i, want := range test.notes {
				expect.Says(t, notes[i], want)
			}
		})
	}
}

func TestPercentIsThatOfTheKnownTool(t *testing.T) {
	// It truncates what floating point makes of 29 of 100.
	in := inspect.Input{Slices: publish("n1", mode.Share, newGPU("X", 100*1024)),
		Claims: []*resourceapi.ResourceClaim{claim("a/p", "n1 gpu-0-share 29")}}
	expect.Says(t, summary(in, inspect.Style{}), "29/100 (28%)")
}

func TestOrderOfTheInputDoesNotMatter(t *testing.T) {
	in := everyMode()
	want := details(in, inspect.Style{Wide: true})
	slices.Reverse(in.Slices)
	slices.Reverse(in.Claims)
	slices.Reverse(in.Nodes)
	expect.Equal(t, want, details(in, inspect.Style{Wide: true}), "details")
}

func TestStructuredOutput(t *testing.T) {
	in := inspect.Input{
		Slices: publish("n1", mode.CoreMem, v100), Nodes: []*corev1.Node{node("n1", "10.0.0.1")},
		Claims: []*resourceapi.ResourceClaim{claim("team-a/train", "n1 gpu-0-core-mem 4 35")},
	}
	want := `memoryGiB: {allocated: 4, total: 15}
coresPercent: {allocated: 35, total: 100}
nodes:
- name: n1
  ipAddress: 10.0.0.1
  mode: core-mem
  memoryGiB: {allocated: 4, total: 15}
  coresPercent: {allocated: 35, total: 100}
  cards:
  - index: 0
    uuid: GPU-n1-0
    model: Tesla-V100-SXM2-16GB
    memoryMiB: 16130
    mode: core-mem
    memoryGiB: {allocated: 4, total: 15}
    coresPercent: {allocated: 35, total: 100}
  holders:
  - namespace: team-a
    origin: claim
    pods: [train]
    claims: [train-gpu-x7k2p]
    shares:
    - {card: 0, mode: core-mem, memoryGiB: 4, coresPercent: 35}
`
	for name, form := range map[string]func(any) ([]byte, error){
		"JSON": json.Marshal, "YAML": text.YAML,
	} {
		var gotValue, wantValue any
		got, err := form(inspect.New(in))
		expect.NoError(t, err)
		if err := yaml.Unmarshal(got, &gotValue); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, got)
		}
		expect.NoError(t, yaml.Unmarshal([]byte(want), &wantValue))
		expect.Equal(t, wantValue, gotValue, "%s", name)
	}
	in.ClaimsUnknown = true
	if text, err := json.Marshal(inspect.New(in).MemoryGiB); err != nil || string(text) != `{"total":15}` {
		t.Errorf("what is not known is shown as %s, %v", text, err)
	}
}
