// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestProblems(t *testing.T) {
	const noDriver = "no NVIDIA driver: no libnvidia-ml.so.1"
	for _, tt := range []struct {
		name   string
		change func(*facts)
		want   []string // parts of the lines
	}{
		{"a good machine", func(*facts) {}, nil},
		{"one GPU of two cannot be used", func(f *facts) { f.leftOut = []string{"GPU 1: MIG mode"} }, nil},
		{"no driver", func(f *facts) { f.driver, f.gpus = errors.New(noDriver), nil }, []string{noDriver}},
		{"no GPU", func(f *facts) { f.gpus = nil }, []string{"the NVIDIA driver lists no GPU"}},
		{"no GPU that can be used", func(f *facts) { f.gpus, f.leftOut = nil, []string{"GPU 0: MIG mode"} },
			[]string{"no GPU can be used: GPU 0: MIG mode"}},
		{"a GPU in use", func(f *facts) { f.gpus[0].processes = []string{"process 4711 python3"} },
			[]string{"GPU 0 (NVIDIA H200) is in use by process 4711 python3: wait until they end, or end them"}},
		{"a GPU that must not be cut", func(f *facts) { f.cut = errors.New("--may-change-mig: GPU 0 has no MIG mode") },
			[]string{"--may-change-mig: GPU 0 has no MIG mode"}},
		{"a node of a cluster", func(f *facts) { f.kubelets = []string{"900"} },
			[]string{"a kubelet runs on this machine (process 900)"}},
		{"no cluster, for two reasons", func(f *facts) { f.noCluster = "no namespaces\nno control groups\n" },
			[]string{"no namespaces", "no control groups"}},
		{"all at once", func(f *facts) { f.driver, f.kubelets, f.noCluster = errors.New(noDriver), []string{"1"}, "no root" },
			[]string{"(process 1)", "no root", noDriver}},
	} {
		f := facts{gpus: []usedGPU{{name: "GPU 0 (NVIDIA H200)"}}}
		tt.change(&f)
		if problems := f.problems(); !slices.EqualFunc(problems, tt.want, strings.Contains) {
			t.Errorf("%s: %q, want a line each with %q", tt.name, problems, tt.want)
		}
	}
}

// This process can be found by its name.
func TestNamed(t *testing.T) {
	pid := fmt.Sprint(os.Getpid())
	if found := named(nameOf(pid)); !slices.Contains(found, pid) {
		t.Errorf("%q are called %s, and not this one", found, nameOf(pid))
	}
}
