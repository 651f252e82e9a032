// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"
	"strings"
	"testing"
)

func TestParseNodes(t *testing.T) {
	tests := map[string]struct {
		list string
		want []Node
	}{
		"machine and mode":   {"n1=v100x4:share", []Node{{Name: "n1", Machine: "v100x4", Mode: "share"}}},
		"no label":           {"n1=v100x4", []Node{{Name: "n1", Machine: "v100x4"}}},
		"no GPUs":            {"n1", []Node{{Name: "n1"}}},
		"a mode and no GPUs": {"n1=:share", []Node{{Name: "n1", Mode: "share"}}},
		"several, any blanks": {" n1=dgx1:topology\n\tn2=a10x4 ",
			[]Node{{Name: "n1", Machine: "dgx1", Mode: "topology"}, {Name: "n2", Machine: "a10x4"}}},
		"commas": {"n1=t4x1,n2=t4x1:share",
			[]Node{{Name: "n1", Machine: "t4x1"}, {Name: "n2", Machine: "t4x1", Mode: "share"}}},
		"a path for a machine": {"n1=./my.yaml:core_mem", []Node{{Name: "n1", Machine: "./my.yaml", Mode: "core_mem"}}},
		"a path with a colon":  {"n1=/a:b/m.yaml:share", []Node{{Name: "n1", Machine: "/a:b/m.yaml", Mode: "share"}}},
		"Kubernetes' own timers": {"n1=t4x1:share+stock-timers,n2+stock-timers n3=/a+b.yaml", []Node{
			{Name: "n1", Machine: "t4x1", Mode: "share", StockTimers: true}, {Name: "n2", StockTimers: true},
			{Name: "n3", Machine: "/a+b.yaml"}}},
		"the order is the user": {"b=t4x1 a=t4x1", []Node{{Name: "b", Machine: "t4x1"}, {Name: "a", Machine: "t4x1"}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseNodes(test.list)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestParseNodesRefuses(t *testing.T) {
	tests := map[string]struct{ list, says string }{
		"nothing":              {" , ", "no nodes"},
		"a name twice":         {"n1=t4x1 n1=a10x4", "a node n1 already"},
		"capitals in a name":   {"N1=t4x1", `"N1" is no node name`},
		"a path for a name":    {"../n1=t4x1", "no node name"},
		"no name":              {"=t4x1", "no node name"},
		"nothing after =":      {"n1=", "nothing after ="},
		"nothing after :":      {"n1=t4x1:", "no label value"},
		"a mode with a blank":  {"n1=t4x1:a/b", "no label value"},
		"another option":       {"n1=t4x1:share+fast", "+stock-timers"},
		"a name that is long":  {strings.Repeat("n", 43), "no node name"},
		"the entry at fault":   {"n1=t4x1 n_2=t4x1", `"n_2=t4x1"`},
		"more than addresses":  {strings.Repeat("n ", maxNodes+1), "at most"},
		"a name with a dot":    {"n1.local", "no node name"},
		"a name ending with -": {"n1-=t4x1", "no node name"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseNodes(test.list)
			if err == nil {
				t.Fatalf("accepted as %+v", got)
			}
			if !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %q does not say %q", err, test.says)
			}
		})
	}
}
