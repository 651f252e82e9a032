// SPDX-License-Identifier: Apache-2.0

package score

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// Where pods go one after the other, as users of the settings expect it.
func TestSettingsChooseNodes(t *testing.T) {
	half := Ask{CPU: 4, Memory: 1, Requests: []Request{share(50)}}
	one := Ask{CPU: 4, Memory: 1, Requests: []Request{whole(1)}}
	much := Ask{CPU: 8, Memory: 1, Requests: []Request{share(50)}}
	node := func(left ...int64) Node { return Node{64, 64, gpus("", left...)} }
	empty := []Node{node(100, 100), node(100, 100), node(100, 100)}
	for _, tc := range []struct {
		name    string
		setting Setting
		nodes   []Node
		pods    []Ask
		want    string
	}{
		{"binpack fills one node after the other", Binpack, empty, []Ask{half, half, half, half, half}, "0 0 0 0 1"},
		{"spread has as much on each", Spread, empty, []Ask{half, half, half, half, half, half}, "0 1 2 0 1 2"},
		{"binpack counts whole GPUs and shares", Binpack, empty, []Ask{half, one, half, one}, "0 0 0 1"},
		{"spread does", Spread, empty, []Ask{one, half, half, half, half}, "0 1 2 1 2"},
		{"binpack keeps empty nodes for pods that need all of one", Binpack, []Node{node(100, 100), node(100, 50)},
			[]Ask{one, {CPU: 4, Requests: []Request{whole(2)}}}, "1 0"},
		{"spread counts what is taken, not pods", Spread, []Node{node(20, 100), node(50, 100)}, []Ask{half}, "1"},
		{"where the fullest has no room, the next one is taken", Binpack, []Node{node(100, 100), node(40, 0), node(50, 100)},
			[]Ask{half}, "2"},
		{"spread loads nodes by their size", Spread, []Node{node(100, 100), node(100, 100, 100, 100)},
			[]Ask{one, one, one, one, one, one}, "1 0 1 1 0 1"},
		{"binpack takes a node without CPU for its other GPUs", Binpack, []Node{node(100, 100), {8, 64, gpus("", 100, 0)}},
			[]Ask{much}, "1"},
		{"best does not", Best, []Node{node(100, 100), {8, 64, gpus("", 100, 0)}}, []Ask{much}, "0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x, nodes, got := New(), map[string]Node{}, []string{}
			x.Learn(half)
			for i, n := range tc.nodes {
				nodes[fmt.Sprint(i)] = n
				x.Set(fmt.Sprint(i), n)
			}
			for _, pod := range tc.pods {
				name := slices.Collect(x.Best(&Kind{Ask: pod}, tc.setting, first))[0]
				nodes[name], _ = nodes[name].With(pod)
				x.Set(name, nodes[name])
				got = append(got, name)
			}
			expect.Equal(t, tc.want, strings.Join(got, " "), "pods go to nodes %v", got)
		})
	}
}
