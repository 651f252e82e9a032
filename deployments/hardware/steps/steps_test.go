// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/kube"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/locate"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// session is one whose kubectl does nothing, and knows a GPU in mode share.
func session(t *testing.T) *Session {
	t.Helper()
	const slices = `{"items": [{"spec": {"driver": "gpu.aliyun.com", "devices": [
		{"name": "gpu-0-share", "attributes": {"mode": {"string": "share"}}}]}}]}`
	program := filepath.Join(t.TempDir(), "kubectl")
	script := "#!/bin/sh\ncase \"$*\" in\n*resourceslices*) echo '" + slices + "' ;;\n*) echo '{\"items\": []}' ;;\nesac\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return &Session{
		Kubectl: kube.Kubectl{Program: program}, Node: "gpu", Machine: &gpu.Machine{GPUs: []gpu.GPU{{MemoryMiB: 16130}}},
		Driver: &locate.Driver{}, Patience: time.Second, Progress: t.Logf,
	}
}

// results are rows without what differs from run to run.
func results(rows []report.Row) []string {
	var out []string
	for _, row := range rows {
		out = append(out, row.What+": "+string(row.Result))
	}
	return out
}

// Neither a step that fails nor one that hangs is the end of the others.
func TestOneStepIsNotTheEndOfTheOthers(t *testing.T) {
	never := func(*Session) string { return "the machine has none" }
	tables := session(t).Try(t.Context(), []Group{{Name: "share", Label: "share", Steps: []Step{
		{Name: "fails", Limit: time.Minute, Run: func(context.Context, *run) error { return errors.New("as it must") }},
		{Name: "hangs", Limit: time.Millisecond, Run: func(ctx context.Context, _ *run) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}},
		{Name: "finds something wrong", Limit: time.Minute, Run: func(_ context.Context, r *run) error {
			r.check("a figure", "1", "2", false)
			r.seen("another", "", "3")
			return nil
		}},
		{Name: "cannot be tried", Needs: []Need{never}},
		{Name: "is all right", Limit: time.Minute, Run: func(context.Context, *run) error { return nil }},
	}}})
	want := []string{
		"the node changes to this mode: ok", "fails: **failed**", "hangs: **failed**", "a figure: **failed**",
		"another: seen",
		"cannot be tried: not run", "is all right: ok",
	}
	if diff := cmp.Diff(want, results(tables[0].Rows)); diff != "" {
		t.Error(diff)
	}
	if hung := tables[0].Rows[2].Observed; !strings.Contains(hung, "the step's time of 1ms is over") {
		t.Errorf("of the step that hung is said %q", hung)
	}
}

func TestWhatThereIsNoTimeFor(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	step := Step{Name: "one", Limit: time.Minute, Run: func(context.Context, *run) error { return nil }}
	last := Step{Name: "the last", Limit: time.Minute, Run: func(context.Context, *run) error {
		cancel()
		return nil
	}}
	tables := session(t).Try(ctx, []Group{
		{Name: "share", Label: "share", Steps: []Step{step, last, step}},
		{Name: "mps", Label: "mps", Steps: []Step{step}},
	})
	var got []string
	for _, table := range tables {
		got = append(got, results(table.Rows)...)
	}
	want := []string{
		"the node changes to this mode: ok", "one: ok", "the last: ok", "one: not run",
		"the node changes to this mode: not run", "one: not run",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestOffers(t *testing.T) {
	device := func(name, mode, taint string) kube.Device {
		var d kube.Device
		content := `{"name": "` + name + `", "attributes": {"mode": {"string": "` + mode + `"}}`
		if taint != "" {
			content += `, "taints": [{"key": "` + taint + `"}]`
		}
		if err := json.Unmarshal([]byte(content+"}"), &d); err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, tt := range []struct {
		name    string
		devices []kube.Device
		label   string
		gpus    int
		want    string // empty: as it should be
	}{
		{"two GPUs in mode share", []kube.Device{device("gpu-0-share", "share", ""), device("gpu-1-share", "share",
			"")}, "share", 2, ""},
		{"one of them only", []kube.Device{device("gpu-0-share", "share", "")}, "share", 2, "there are 1 devices"},
		{"still in another mode", []kube.Device{device("gpu-0", "exclusive", "")}, "share", 1,
			`in the modes ["exclusive"]`},
		{"closed", []kube.Device{device("gpu-0-mps", "mps", "gpu.aliyun.com/mode-switch")}, "mps", 1,
			"has the taint gpu.aliyun.com/mode-switch"},
		{"every mode", []kube.Device{
			device("gpu-0", "exclusive", ""), device("gpu-0-share", "share", ""), device("gpu-0-mps", "mps", ""),
			device("gpu-0-cgpu", "cgpu", ""), device("gpu-0-core-mem", "core-mem", ""),
			device("gpu-0-monitor", "monitor", "gpu.aliyun.com/monitor"),
		}, "dynamic", 1, ""},
		{"every mode but one", []kube.Device{
			device("gpu-0", "exclusive", ""), device("gpu-0-share", "share", ""), device("gpu-0-mps", "mps", ""),
			device("gpu-0-cgpu", "cgpu", ""),
		}, "dynamic", 1, "there are 4 devices"},
		{"linked sets beside the GPUs", []kube.Device{
			device("gpus-0-1", "topology", ""), device("gpu-0-topology", "topology", ""), device("gpu-1-topology",
				"topology", ""),
		}, "topology", 2, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := offers(tt.devices, offered[tt.label], tt.gpus)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

func TestParseView(t *testing.T) {
	for answer, want := range map[string]view{
		"free 3593 total 143771 sms 132":             {freeMiB: 3593, totalMiB: 143771, sms: 132},
		"free 3593 total 143771 sms 32 rate 281.5":   {freeMiB: 3593, totalMiB: 143771, sms: 32, rate: 281.5},
		"cuInit: CUDA_ERROR_NOT_INITIALIZED (3)":     {},
		"free nothing total 143771 sms 132 rate 1.0": {},
	} {
		got, err := parseView(answer)
		if got != want || (err == nil) != (want != view{}) {
			t.Errorf("%q: %+v (%v), want %+v", answer, got, err, want)
		}
	}
}

// What nodes refuse is found before a machine with a GPU is borrowed.
func TestEveryGroupHasAMode(t *testing.T) {
	for _, g := range Groups() {
		if offered[g.Label] == nil {
			t.Errorf("group %s has the unknown label %q", g.Name, g.Label)
		}
		for _, step := range g.Steps {
			if step.Limit == 0 || step.Run == nil {
				t.Errorf("step %q of %s has no limit, or does nothing", step.Name, g.Name)
			}
		}
	}
}

func TestRequestOnAGPU(t *testing.T) {
	request := shareOf("mps", 2, "")
	pinned := onGPU(request, 3)
	content, err := json.Marshal(pinned)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(content), `device.attributes[\"gpu.aliyun.com\"].?index.orValue(-1) == 3`) ||
		!strings.Contains(string(content), `"memory":"2Gi"`) {
		t.Errorf("the request is %s", content)
	}
	if exactly, ok := request["exactly"].(object); !ok || exactly["selectors"] != nil {
		t.Errorf("the request that it was made of has changed: %v", request)
	}
}

func TestHealth(t *testing.T) {
	for content, want := range map[string]string{
		`{}`: "",
		`{"status": {"containerStatuses": [{"allocatedResourcesStatus": [
			{"name": "claim:gpu", "resources": [{"resourceID": "a", "health": "Healthy"}]}]}]}}`: "Healthy",
		`{"status": {"containerStatuses": [{"allocatedResourcesStatus": [
			{"resources": [{"health": "Unhealthy", "message": "xid-79"}, {"health": "Healthy"}]}]}]}}`: "Unhealthy xid-79, Healthy",
	} {
		var pod kube.Pod
		if err := json.Unmarshal([]byte(content), &pod); err != nil {
			t.Fatal(err)
		}
		if got := health(pod); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
