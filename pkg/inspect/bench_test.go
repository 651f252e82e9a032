// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// large is a cluster of 1000 nodes of eight GPUs, with a share on each GPU.
func large() inspect.Input {
	var in inspect.Input
	for i := range 1000 {
		name := fmt.Sprintf("node-%04d", i)
		in.Slices = append(in.Slices, publish(name, mode.Share, newGPUs(8, "NVIDIA-A100-SXM4-80GB", 81920)...)...)
		in.Nodes = append(in.Nodes, node(name, fmt.Sprintf("10.0.%d.%d", i/250, i%250)))
		for g := range 8 {
			in.Claims = append(in.Claims, claim(fmt.Sprintf("team-%d/pod-%d-%d", i%20, i, g), fmt.Sprintf(
				"%s gpu-%d-share 10", name, g)))
		}
	}
	return in
}

// What the program does with a large cluster once it has read it.
func BenchmarkLargeCluster(b *testing.B) {
	in := large()
	for name, print := range map[string]func(io.Writer, *inspect.Table) error{
		"summary": func(out io.Writer, t *inspect.Table) error { return inspect.Summary(out, t, inspect.Style{}) },
		"details": func(out io.Writer, t *inspect.Table) error { return inspect.Details(out, t, inspect.Style{}) },
		"json":    func(out io.Writer, t *inspect.Table) error { return text.JSON(out, t) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				expect.NoError(b, print(io.Discard, inspect.New(in)))
			}
		})
	}
}
