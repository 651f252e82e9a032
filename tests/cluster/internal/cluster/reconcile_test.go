// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"
	"testing"
)

func TestPlanNodes(t *testing.T) {
	running := func(name, gpus, mode string) *nodeState {
		return &nodeState{Node: Node{Name: name, Mode: mode}, Number: 1, GPUs: gpus}
	}
	wanted := func(name, gpus, mode string) wantedNode {
		return wantedNode{Node: Node{Name: name, Mode: mode}, gpus: gpus}
	}
	tests := map[string]struct {
		have    []*nodeState
		wanted  []wantedNode
		dead    []string
		remove  []string
		add     []string
		relabel []string
	}{
		"nothing to do": {have: []*nodeState{running("a", "x", "share")},
			wanted: []wantedNode{wanted("a", "x", "share")}},
		"a new cluster": {wanted: []wantedNode{wanted("a", "x", ""), wanted("b", "", "")},
			add: []string{"a", "b"}},
		"one more": {have: []*nodeState{running("a", "x", "")},
			wanted: []wantedNode{wanted("a", "x", ""), wanted("b", "x", "")}, add: []string{"b"}},
		"one less": {have: []*nodeState{running("a", "x", ""), running("b", "x", "")},
			wanted: []wantedNode{wanted("b", "x", "")}, remove: []string{"a"}},
		"other GPUs make a node again": {have: []*nodeState{running("a", "x", "share")},
			wanted: []wantedNode{wanted("a", "y", "share")}, remove: []string{"a"}, add: []string{"a"}},
		"other timers make a node again": {have: []*nodeState{running("a", "x", "")},
			wanted: []wantedNode{{Node: Node{Name: "a", StockTimers: true}, gpus: "x"}}, remove: []string{"a"},
			add: []string{"a"}},
		"a dead node is created again": {have: []*nodeState{running("a", "x", "")},
			wanted: []wantedNode{wanted("a", "x", "")}, dead: []string{"a"}, remove: []string{"a"}, add: []string{"a"}},
		"another mode only needs a label": {have: []*nodeState{running("a", "x", "share")},
			wanted: []wantedNode{wanted("a", "x", "")}, relabel: []string{"a="}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := planNodes(test.have, test.wanted, func(n *nodeState) bool { return !slices.Contains(test.dead, n.Name) })
			var remove, add, relabel []string
			for _, node := range got.remove {
				remove = append(remove, node.Name)
			}
			for _, node := range got.add {
				add = append(add, node.Name)
			}
			for _, r := range got.relabel {
				relabel = append(relabel, r.node.Name+"="+r.mode)
			}
			if !slices.Equal(remove, test.remove) || !slices.Equal(add, test.add) || !slices.Equal(relabel, test.relabel) {
				t.Errorf("remove %v add %v relabel %v, want %v %v %v", remove, add, relabel, test.remove, test.add, test.relabel)
			}
			if got.empty() != (len(remove)+len(add)+len(relabel) == 0) {
				t.Errorf("empty is %t", got.empty())
			}
		})
	}
}

func TestFreeNumberFillsGaps(t *testing.T) {
	s := &state{Nodes: []*nodeState{{Number: 1}, {Number: 3}}}
	if got := s.freeNumber(); got != 2 {
		t.Errorf("got %d, want 2", got)
	}
}
