package plugin

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

func TestDecide(t *testing.T) {
	for name, tc := range map[string]struct {
		wish    mode.Mode
		holders []holder
		want    shape
	}{
		"nothing allocated":        {mode.Share, nil, shape{mode: mode.Share}},
		"same mode allocated":      {mode.Share, []holder{{"a/1", mode.Share}}, shape{mode: mode.Share}},
		"other mode allocated":     {mode.Exclusive, []holder{{"a/2", mode.Share}, {"a/1", mode.Share}, {"a/1", mode.Share}}, shape{mode: mode.Share, switching: true, waitingFor: []string{"a/1", "a/2"}}},
		"both modes allocated":     {mode.Exclusive, []holder{{"a/1", mode.Exclusive}, {"a/2", mode.Share}}, shape{mode: mode.Share, switching: true, waitingFor: []string{"a/2"}}},
		"nothing served, nothing":  {"", nil, shape{}},
		"nothing served, occupied": {"", []holder{{"a/1", mode.Share}}, shape{mode: mode.Share, switching: true, waitingFor: []string{"a/1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := decide(wish{mode: tc.wish}, tc.holders)
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(shape{})); diff != "" {
				t.Errorf("shape (-want +got):\n%s", diff)
			}
			if closed := len(got.taints()) == 1; closed != tc.want.switching {
				t.Errorf("devices are closed to new claims: %v", closed)
			}
		})
	}
}
