// SPDX-License-Identifier: Apache-2.0

package mode

import (
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
)

func TestFromLabels(t *testing.T) {
	type labels = map[string]string
	for _, tc := range []struct {
		name    string
		labels  labels
		last    Mode
		want    Mode
		wantErr string
	}{
		{name: "no label ever is exclusive", want: Exclusive},
		{name: "default", labels: labels{ack.NodeLabelSchedule: "default"}, last: Share, want: Exclusive},
		{name: "mig: whole GPUs beside instances", labels: labels{ack.NodeLabelSchedule: "mig"}, last: Share,
			want: Exclusive},
		{name: "share", labels: labels{ack.NodeLabelSchedule: "share"}, want: Share},
		{name: "core_mem", labels: labels{ack.NodeLabelSchedule: "core_mem"}, want: CoreMem},
		{name: "label removed", last: CGPU, want: CGPU},
		{name: "unknown value keeps the last mode", labels: labels{ack.NodeLabelSchedule: "Share"}, last: MPS, want: MPS,
			wantErr: `ack.node.gpu.schedule="Share"`},
		{name: "empty value", labels: labels{ack.NodeLabelSchedule: ""}, last: Share, want: Share,
			wantErr: `ack.node.gpu.schedule=""`},
		{name: "unknown value on a new node", labels: labels{ack.NodeLabelSchedule: "core-mem"}, want: "",
			wantErr: "core_mem"},
		{name: "disabled gives no mode", labels: labels{ack.NodeLabelSchedule: "disabled", ack.NodeLabelGPUShare: "true"},
			last: Share, want: "", wantErr: "ack.node.gpu.schedule=disabled keeps the node's GPUs for others"},
		{name: "cgpu=true", labels: labels{ack.NodeLabelCGPU: "true"}, want: CGPU},
		{name: "gpushare=true", labels: labels{ack.NodeLabelGPUShare: "true"}, want: Share},
		{name: "both older labels: the one that isolates",
			labels: labels{ack.NodeLabelGPUShare: "true", ack.NodeLabelCGPU: "true"}, want: CGPU},
		{name: "cgpu=false gives whole GPUs back", labels: labels{ack.NodeLabelCGPU: "false"}, last: CGPU, want: Exclusive},
		{name: "gpushare=false gives whole GPUs back", labels: labels{ack.NodeLabelGPUShare: "false"}, last: Share,
			want: Exclusive},
		{name: "gpushare=true beside cgpu=false", labels: labels{ack.NodeLabelGPUShare: "true", ack.NodeLabelCGPU: "false"},
			want: Share},
		{name: "the new label wins", labels: labels{ack.NodeLabelSchedule: "mps", ack.NodeLabelCGPU: "true",
			ack.NodeLabelGPUShare: "false"}, want: MPS},
		{name: "older label, unknown value", labels: labels{ack.NodeLabelCGPU: "yes"}, last: Share, want: Share,
			wantErr: `cgpu="yes"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := FromLabels(tc.labels, Asked{Mode: tc.last})
			checkErr(t, err, tc.wantErr)
			expect.Equal(t, tc.want, got.Mode, "mode %q", got)
		})
	}
}

// What the labels come to, one state of the node after the other.
func TestFromLabelsOverTime(t *testing.T) {
	type labels = map[string]string
	type step struct {
		labels labels
		want   Mode
	}
	for name, steps := range map[string][]step{
		"a leftover does not take over": {
			{labels{ack.NodeLabelSchedule: "core_mem", ack.NodeLabelGPUShare: "true"}, CoreMem},
			{labels{ack.NodeLabelGPUShare: "true"}, CoreMem},
			{labels{ack.NodeLabelGPUShare: "true"}, CoreMem},
		},
		"a leftover does not give whole GPUs back": {
			{labels{ack.NodeLabelSchedule: "share", ack.NodeLabelCGPU: "false"}, Share},
			{labels{ack.NodeLabelCGPU: "false"}, Share},
		},
		"it was there before": {
			{labels{ack.NodeLabelGPUShare: "true"}, Share},
			{labels{ack.NodeLabelSchedule: "mps", ack.NodeLabelGPUShare: "true"}, MPS},
			{labels{ack.NodeLabelGPUShare: "true"}, MPS},
		},
		"it set the mode, and nothing else did": {
			{labels{ack.NodeLabelGPUShare: "true"}, Share},
			{labels{}, Share},
			{labels{ack.NodeLabelGPUShare: "true"}, Share},
			{labels{ack.NodeLabelGPUShare: "false"}, Exclusive},
		},
		"changed since": {
			{labels{ack.NodeLabelSchedule: "core_mem", ack.NodeLabelGPUShare: "true"}, CoreMem},
			{labels{ack.NodeLabelGPUShare: "true"}, CoreMem},
			{labels{ack.NodeLabelGPUShare: "false"}, Exclusive},
			{labels{ack.NodeLabelGPUShare: "true"}, Share},
		},
		"changed while it did not count": {
			{labels{ack.NodeLabelSchedule: "core_mem", ack.NodeLabelGPUShare: "true"}, CoreMem},
			{labels{ack.NodeLabelSchedule: "core_mem", ack.NodeLabelGPUShare: "false"}, CoreMem},
			{labels{ack.NodeLabelGPUShare: "false"}, CoreMem},
		},
		"taken off and set again": {
			{labels{ack.NodeLabelSchedule: "core_mem", ack.NodeLabelGPUShare: "true"}, CoreMem},
			{labels{}, CoreMem},
			{labels{ack.NodeLabelGPUShare: "true"}, Share},
		},
		"the other one set": {
			{labels{ack.NodeLabelSchedule: "mps", ack.NodeLabelGPUShare: "true"}, MPS},
			{labels{ack.NodeLabelGPUShare: "true", ack.NodeLabelCGPU: "true"}, CGPU},
			{labels{ack.NodeLabelGPUShare: "true"}, CGPU},
		},
		"the other one set to false": {
			{labels{ack.NodeLabelSchedule: "mps", ack.NodeLabelGPUShare: "true"}, MPS},
			{labels{ack.NodeLabelGPUShare: "true", ack.NodeLabelCGPU: "false"}, Exclusive},
		},
		"default beside a leftover": {
			{labels{ack.NodeLabelGPUShare: "true"}, Share},
			{labels{ack.NodeLabelSchedule: "default", ack.NodeLabelGPUShare: "true"}, Exclusive},
			{labels{ack.NodeLabelGPUShare: "true"}, Exclusive},
		},
		"an unknown value sets nothing": {
			{labels{ack.NodeLabelSchedule: "Share", ack.NodeLabelGPUShare: "true"}, ""},
			{labels{ack.NodeLabelGPUShare: "true"}, Share},
		},
		"an unknown value overrules nothing": {
			{labels{ack.NodeLabelGPUShare: "true"}, Share},
			{labels{ack.NodeLabelSchedule: "bogus", ack.NodeLabelGPUShare: "true"}, Share},
			{labels{ack.NodeLabelGPUShare: "true"}, Share},
			{labels{ack.NodeLabelGPUShare: "false"}, Exclusive},
		},
		"an unknown value lets nothing count": {
			{labels{ack.NodeLabelSchedule: "core_mem", ack.NodeLabelGPUShare: "true"}, CoreMem},
			{labels{ack.NodeLabelSchedule: "bogus", ack.NodeLabelGPUShare: "true"}, CoreMem},
			{labels{ack.NodeLabelGPUShare: "true"}, CoreMem},
		},
		"a leftover that is not understood": {
			{labels{ack.NodeLabelSchedule: "core_mem", ack.NodeLabelCGPU: "yes"}, CoreMem},
			{labels{ack.NodeLabelCGPU: "yes"}, CoreMem},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var last Asked
			for i, s := range steps {
				last, _ = FromLabels(s.labels, last)
				if last.Mode != s.want {
					t.Fatalf("step %d, %v: mode %q, want %q", i, s.labels, last.Mode, s.want)
				}
			}
		})
	}
}

func TestPlacementFromLabels(t *testing.T) {
	for _, tc := range []struct {
		labels  map[string]string
		want    Placement
		wantErr string
	}{
		{nil, Binpack, ""},
		{map[string]string{ack.NodeLabelPlacement: "binpack"}, Binpack, ""},
		{map[string]string{ack.NodeLabelPlacement: "spread"}, Spread, ""},
		{map[string]string{ack.NodeLabelPlacement: "random"}, Binpack, `ack.node.gpu.placement="random"`},
	} {
		got, err := PlacementFromLabels(tc.labels)
		checkErr(t, err, tc.wantErr)
		expect.Equal(t, tc.want, got, "%v: placement", tc.labels)
	}
}

func TestSlotsFromLabels(t *testing.T) {
	for value, tc := range map[string]struct {
		want    int64
		wantErr string
	}{
		"1":    {want: 1},
		"48":   {want: 48},
		"49":   {want: 20, wantErr: "from 1 to 48"},
		"0":    {want: 20, wantErr: `"0"`},
		"-3":   {want: 20, wantErr: `"-3"`},
		"many": {want: 20, wantErr: `"many"`},
		"":     {want: 20, wantErr: `""`},
		"1e9":  {want: 20, wantErr: `"1e9"`},
	} {
		t.Run(value, func(t *testing.T) {
			got, err := SlotsFromLabels(map[string]string{ack.NodeLabelMaxPod: value}, 20, 48)
			checkErr(t, err, tc.wantErr)
			expect.Equal(t, tc.want, got, "slots")
		})
	}
	if got, err := SlotsFromLabels(nil, 20, 48); got != 20 || err != nil {
		t.Errorf("without the label: %d, %v", got, err)
	}
}

func TestServes(t *testing.T) {
	for _, tc := range []struct {
		published, claimed Mode
		want               bool
	}{
		{Share, Share, true},
		{Share, Exclusive, false},
		{Share, "", false},
		{Dynamic, CoreMem, true},
		{Dynamic, Topology, false},
		{Topology, Topology, true},
		{"", Exclusive, false},
		{"", "", false},
		{Exclusive, MIG, true},
		{Share, MIG, true},
		{Dynamic, MIG, true},
		{Topology, MIG, true},
		{"", MIG, false},
	} {
		expect.Equal(t, tc.want, tc.published.Serves(tc.claimed), "mode %q serves %q", tc.published, tc.claimed)
	}
}

func TestNext(t *testing.T) {
	busy, idle := true, false
	share, whole := Offer{Mode: Share, Isolation: map[Mode]string{Share: "none"}},
		Offer{Mode: Exclusive, Isolation: map[Mode]string{Exclusive: "whole-card"}}
	byMPS, byModule := Offer{Mode: CGPU, Isolation: map[Mode]string{CGPU: "mps"}},
		Offer{Mode: CGPU, Isolation: map[Mode]string{CGPU: "cgpu"}}
	closed := func(o Offer) Step { return Step{Offer: o, Closed: true} }
	for name, tc := range map[string]struct {
		node Node
		want Step
	}{
		"first publication":      {Node{Wanted: share}, Step{Offer: share}},
		"nothing to change":      {Node{Wanted: share, Published: share}, Step{Offer: share}},
		"closed before anything": {Node{Wanted: share, Published: whole}, closed(whole)},
		"a scheduler may lag behind": {Node{Wanted: share, Published: whole, ClosedFor: Settle - 1},
			closed(whole)},
		"still occupied": {Node{Wanted: share, Published: whole, ClosedFor: time.Hour, Occupied: &busy},
			closed(whole)},
		"free": {Node{Wanted: share, Published: whole, ClosedFor: Settle, Occupied: &idle},
			Step{Offer: share}},
		"changed back while waiting": {Node{Wanted: share, Published: share, ClosedFor: time.Second},
			Step{Offer: share}},
		"nothing wanted, occupied": {Node{Published: share, ClosedFor: time.Hour, Occupied: &busy}, closed(share)},
		"nothing wanted, free":     {Node{Published: share, ClosedFor: time.Hour, Occupied: &idle}, Step{}},
		"isolated otherwise":       {Node{Wanted: byModule, Published: byMPS}, closed(byMPS)},
		"isolated otherwise, free": {Node{Wanted: byModule, Published: byMPS, ClosedFor: Settle, Occupied: &idle},
			Step{Offer: byModule}},
	} {
		t.Run(name, func(t *testing.T) {
			got, decided := Next(tc.node)
			if !decided || got.Closed != tc.want.Closed || !got.Equal(tc.want.Offer) {
				t.Errorf("%+v, decided %t; want %+v", got, decided, tc.want)
			}
		})
	}
	got, decided := Next(Node{Wanted: share, Published: whole, ClosedFor: time.Hour})
	if decided || !got.Closed || !got.Equal(whole) {
		t.Errorf("%+v, decided %t: the old mode has to stay while it is not known who uses it", got, decided)
	}
}

func checkErr(t *testing.T, err error, want string) {
	t.Helper()
	expect.Error(t, err, want)
}
