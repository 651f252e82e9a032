// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

var machines = filepath.Join("..", "..", "..", "demo", "machines")

func load(t *testing.T, name string) *Spec {
	t.Helper()
	s, err := Load(filepath.Join(machines, name+".yaml"))
	expect.NoError(t, err)
	return s
}

const valid = `kind: SimulatedMachine
version: 1
name: two
driver: {version: 570.124.06, cuda: "12.8"}
models:
  a: {productName: NVIDIA A10, brand: Nvidia, architecture: Ampere, computeCapability: "8.6", memoryMiB: 23028, cudaCores: 9216, pciDeviceID: 0x223610DE}
cards:
  - {model: a, busID: "0000:17:00.0", root: "pci0000:16"}
  - {model: a, busID: "0000:18:00.0", root: "pci0000:16"}
`

func TestParseErrors(t *testing.T) {
	if _, err := Parse([]byte(valid)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, old, new string
		says           []string
	}{
		{"not YAML", "cards:", "cards: [", []string{"line 7"}},
		{"a tab", "  a:", "\ta:", []string{"line 6"}},
		{"an unknown field", "name: two", "nmae: two", []string{"line 3", "nmae"}},
		{"a repeated field", "name: two", "name: two\nname: three", []string{"line 4", "name"}},
		{"text for a number", "23028", "lots", []string{"line 6", "lots"}},
		{"half a MiB", "23028", "1.5", []string{"line 6", "1.5"}},
		{"a fraction for text", `"12.8"`, "12.8", []string{"line 4", "12.8", "quote"}},
		{"a second document", "name: two", "name: two\n---", []string{"more than one"}},
		{"another kind", "SimulatedMachine", "Node", []string{"kind", "SimulatedMachine"}},
		{"another version", "version: 1", "version: 2", []string{"version", "must be 1"}},
		{"no name", "name: two", "name: ''", []string{"name"}},
		{"memory limits of an old driver", `"12.8"}`, `"12.8", memoryLimits: misc}`, []string{"driver.memoryLimits", "615"}},
		{"a way to count that is none", `"12.8"}`, `"12.8", memoryLimits: all}`, []string{"driver.memoryLimits", "dmem"}},
		{"a path for a version", "570.124.06", "../../x", []string{"driver.version"}},
		{"no memory", "23028", "0", []string{"models[a].memoryMiB", "between"}},
		{"negative memory", "23028", "-1", []string{"models[a].memoryMiB"}},
		{"an unknown brand", "brand: Nvidia", "brand: Acme", []string{"models[a].brand", "Tesla"}},
		{"an unknown architecture", "Ampere", "Ampère", []string{"models[a].architecture", "Hopper"}},
		{"an unknown model", "{model: a, busID: \"0000:18", "{model: b, busID: \"0000:18", []string{"cards[1].model", "b"}},
		{"a malformed address", "0000:18:00.0", "18:00.0", []string{"cards[1].busID"}},
		{"the same address twice", "0000:18:00.0", "0000:17:00.0", []string{"cards[1].busID", "Duplicate"}},
		{"a malformed root", `"0000:18:00.0", root: "pci0000:16"`, `"0000:18:00.0", root: "../.."`,
			[]string{"cards[1].root"}},
		{"a malformed bridge", `"0000:18:00.0", root`, `"0000:18:00.0", bridges: [".."], root`,
			[]string{"cards[1].bridges[0]"}},
		{"the same minor twice", `"0000:18:00.0", root`, `"0000:18:00.0", minor: 0, root`, []string{"cards[1].minor"}},
		{"a malformed UUID", `"0000:18:00.0", root`, `"0000:18:00.0", uuid: GPU-1, root`, []string{"cards[1].uuid"}},
		{"MIG where there is none", `"0000:18:00.0", root`, `"0000:18:00.0", mig: {enabled: true}, root`,
			[]string{"cards[1].mig.enabled"}},
		{"an unknown property", `"0000:18:00.0", root`, `"0000:18:00.0", fault: {errors: {colour: UNKNOWN}}, root`,
			[]string{"cards[1].fault.errors[colour]", "memory"}},
		{"an unknown answer", `"0000:18:00.0", root`, `"0000:18:00.0", fault: {errors: {memory: OOPS}}, root`,
			[]string{"cards[1].fault.errors[memory]", "NOT_SUPPORTED"}},
		{"a function of another library", `cuda: "12.8"`, `cuda: "12.8", lacks: [malloc]`, []string{"driver.lacks[0]"}},
		{"an unknown question", `cuda: "12.8"`, `cuda: "12.8", errors: {name: UNKNOWN}`, []string{"driver.errors", "init"}},
		{"an unknown answer of the driver", `cuda: "12.8"`, `cuda: "12.8", errors: {init: OOPS}`,
			[]string{"driver.errors[init]", "DRIVER_NOT_LOADED"}},
		{"a name that reads as an error", "NVIDIA A10", `"!15"`, []string{"models[a].productName"}},
		{"a name of two lines", "NVIDIA A10", `"A\ngpu.0.every = !15"`, []string{"models[a].productName"}},
		{"an unknown compute mode", `"0000:18:00.0", root`, `"0000:18:00.0", state: {computeMode: 4}, root`,
			[]string{"cards[1].state.computeMode"}},
		{"a process without a number", `"0000:18:00.0", root`, `"0000:18:00.0", state: {processes: [{memoryMiB: 1}]}, root`,
			[]string{"cards[1].state.processes[0].pid"}},
		{"an unknown event", "cards:", "events: [{number: 1, card: 0, type: party}]\ncards:",
			[]string{"events[0].type", "xid"}},
		{"events out of order", "cards:", "events: [{number: 2, card: 0, type: xid}, {number: 1, card: 0, type: xid}]\n" +
			"cards:", []string{"events[1].number"}},
		{"an event of no GPU", "cards:", "events: [{number: 1, card: 2, type: xid}]\ncards:", []string{"events[0].card"}},
		{"a link to nowhere", "cards:", "nvlinks: [{cards: [0, 2], lanes: 1}]\ncards:",
			[]string{"nvlinks[0].cards", "no such GPU"}},
		{"a link to itself", "cards:", "nvlinks: [{cards: [1, 1], lanes: 1}]\ncards:",
			[]string{"nvlinks[0].cards", "itself"}},
		{"a link without lanes", "cards:", "nvlinks: [{cards: [0, 1], lanes: 0}]\ncards:", []string{"nvlinks[0].lanes"}},
		{"a link with more lanes back", "cards:", "nvlinks: [{cards: [0, 1], lanes: 1, lanesBack: 2}]\ncards:",
			[]string{"nvlinks[0].lanesBack"}},
		{"more lanes to switches than the machine has", "cards:", "nvswitchLanes: 2\ncards:\n  - {model: a, busID: " +
			"\"0000:02:00.0\", root: \"pci0000:00\", nvswitchLanes: 3}", []string{"cards[0].nvswitchLanes"}},
		{"a link of three", "cards:", "nvlinks: [{cards: [0, 1, 2], lanes: 1}]\ncards:", []string{"nvlinks[0].cards", "two"}},
		{"too many lanes", "cards:", "nvswitchLanes: 18\nnvlinks: [{cards: [0, 1], lanes: 1}]\ncards:",
			[]string{"cards[0]", "lanes"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := strings.Replace(valid, tc.old, tc.new, 1)
			if text == valid {
				t.Fatal("the test changes nothing")
			}
			_, err := Parse([]byte(text))
			if err == nil {
				t.Fatal("no error")
			}
			for _, part := range tc.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q lacks %q", err, part)
				}
			}
		})
	}
}

func TestLoadErrorsNameTheFile(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.yaml")
	expect.NoError(t, os.WriteFile(empty, nil, 0o644))
	for _, path := range []string{empty, filepath.Join(t.TempDir(), "none.yaml")} {
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("error %v does not name %s", err, path)
		}
	}
}

func TestUUIDs(t *testing.T) {
	s := load(t, "dgx1")
	seen := map[string]string{}
	for _, node := range []string{"", "n1", "n2"} {
		n := s.ForNode(node)
		for i := range n.GPUs {
			u := n.uuid(i)
			if !uuidFormat.MatchString(u) {
				t.Errorf("%s is no UUID", u)
			}
			if other, ok := seen[u]; ok {
				t.Errorf("GPU %d of node %q has the UUID of one of node %q", i, node, other)
			}
			seen[u] = node
			if again := s.ForNode(node).uuid(i); again != u {
				t.Errorf("GPU %d of node %q: %s, then %s", i, node, u, again)
			}
		}
	}
}

// FuzzParse: no input makes the decoder, or anything made from what it
// accepts, panic; what it accepts, it accepts again from its own writing.
func FuzzParse(f *testing.F) {
	f.Add([]byte(valid))
	files, err := filepath.Glob(filepath.Join(machines, "*.yaml"))
	if err != nil || len(files) == 0 {
		f.Fatal("no machine files", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse(data)
		if err != nil {
			return
		}
		s.NVML()
		entries, err := s.rootEntries()
		expect.NoError(t, err)
		for name := range entries {
			if !filepath.IsLocal(name) {
				t.Errorf("entry %q leaves the root", name)
			}
		}
		out, err := yaml.Marshal(s)
		expect.NoError(t, err)
		again, err := Parse(out)
		if err != nil {
			t.Fatalf("its own writing is refused: %v\n%s", err, out)
		}
		written, err := yaml.Marshal(again)
		expect.NoError(t, err)
		expect.Equal(t, string(out), string(written), "its own writing, written again,")
	})
}
