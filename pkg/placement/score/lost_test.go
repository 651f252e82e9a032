// SPDX-License-Identifier: Apache-2.0

package score

import (
	"fmt"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// Pods ask for half a GPU, 4 CPUs and 8 bytes, so that a GPU goes with 8 CPUs and 16 bytes.
func TestLostIsWhatPodsCannotHave(t *testing.T) {
	for _, tc := range []struct {
		name  string
		nodes map[string]Node
		want  Lost
	}{
		{"nothing, where all of it goes with CPU and memory", map[string]Node{"n": {16, 64, gpus("", 100, 100)}},
			Lost{Free: 2}},
		{"GPUs without CPU", map[string]Node{"n": {4, 64, gpus("", 100, 100)}},
			Lost{Free: 2, Stranded: map[string]float64{"n": 1.5}}},
		{"GPUs without memory", map[string]Node{"n": {64, 8, gpus("", 100, 100)}},
			Lost{Free: 2, Stranded: map[string]float64{"n": 1.5}}},
		{"no more than there is, where more CPU is requested than there is", map[string]Node{"n": {-8, 64, gpus("", 100)}},
			Lost{Free: 1, Stranded: map[string]float64{"n": 1}, Fragmented: 1}},
		{"rests that are too small", map[string]Node{"n": {64, 64, gpus("", 40, 80)}}, Lost{Free: 1.2, Fragmented: 0.4}},
		{"nothing of GPUs that pods have", map[string]Node{"n": {0, 0, gpus("", 0)}}, Lost{}},
		{"what is lost of each node", map[string]Node{"a": {4, 64, gpus("", 100)}, "b": {0, 64, gpus("", 100)},
			"c": {16, 64, gpus("", 40, 100)}},
			Lost{Free: 3.4, Stranded: map[string]float64{"a": 0.5, "b": 1}, Fragmented: 1.4}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := New()
			for name, n := range tc.nodes {
				x.Set(name, n)
			}
			if lost := x.Lost(); lost.Fragmented > 0 || len(lost.Stranded) > 0 {
				t.Errorf("before a pod has come, %+v is lost", lost)
			}
			x.Learn(Ask{CPU: 4, Memory: 8, Requests: []Request{share(50)}})
			expect.Equal(t, fmt.Sprintf("%+.9v", tc.want), fmt.Sprintf("%+.9v", x.Lost()), "lost")
		})
	}
}
