package mode

import (
	"strings"
	"testing"
)

func TestFromLabels(t *testing.T) {
	for _, tc := range []struct {
		name    string
		labels  map[string]string
		want    Mode
		wantErr string
	}{
		{name: "no label is exclusive", want: Exclusive},
		{name: "default", labels: map[string]string{ScheduleLabel: "default"}, want: Exclusive},
		{name: "share", labels: map[string]string{ScheduleLabel: "share"}, want: Share},
		{name: "core_mem", labels: map[string]string{ScheduleLabel: "core_mem"}, want: CoreMem},
		{name: "empty", labels: map[string]string{ScheduleLabel: ""}, wantErr: `ack.node.gpu.schedule=""`},
		{name: "wrong case", labels: map[string]string{ScheduleLabel: "Share"}, wantErr: `ack.node.gpu.schedule="Share"`},
		{name: "the attribute's spelling is not the label's", labels: map[string]string{ScheduleLabel: "core-mem"}, wantErr: "core_mem"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := FromLabels(tc.labels)
			checkErr(t, err, tc.wantErr)
			if got != tc.want {
				t.Errorf("mode %q, want %q", got, tc.want)
			}
		})
	}
}

func TestSlotsFromLabels(t *testing.T) {
	for value, tc := range map[string]struct {
		want    int64
		wantErr string
	}{
		"1":    {want: 1},
		"48":   {want: 48},
		"0":    {want: DefaultSlots, wantErr: `"0"`},
		"-3":   {want: DefaultSlots, wantErr: `"-3"`},
		"many": {want: DefaultSlots, wantErr: `"many"`},
		"":     {want: DefaultSlots, wantErr: `""`},
		"1e9":  {want: DefaultSlots, wantErr: `"1e9"`},
	} {
		t.Run(value, func(t *testing.T) {
			got, err := SlotsFromLabels(map[string]string{MaxPodLabel: value})
			checkErr(t, err, tc.wantErr)
			if got != tc.want {
				t.Errorf("%d slots, want %d", got, tc.want)
			}
		})
	}
	if got, err := SlotsFromLabels(nil); got != DefaultSlots || err != nil {
		t.Errorf("without the label: %d, %v", got, err)
	}
}

func checkErr(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("unexpected error: %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("error %v, want one that contains %q", err, want)
	}
}
