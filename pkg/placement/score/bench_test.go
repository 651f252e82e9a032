// SPDX-License-Identifier: Apache-2.0

package score

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// A decision in a cluster of 1,200 nodes of 8 GPUs that is nine tenths full: a pod comes, is learned and placed, and
// another one goes. Pods are of 126 kinds, as in the trace.
func BenchmarkDecision(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	x, nodes := New(), map[string]Node{}
	for i := range 1200 {
		name := fmt.Sprint(i)
		nodes[name] = Node{96000, 384 << 10, gpus("G2", 100, 100, 100, 100, 100, 100, 100, 100)}
		x.Set(name, nodes[name])
	}
	var kinds []*Kind
	for range 126 {
		a := Ask{CPU: 1000 * (2 + r.Int64N(10)), Memory: 1 << 10 * (8 + r.Int64N(32)),
			Requests: []Request{share(10 * (1 + r.Int64N(9)))}}
		if r.IntN(3) == 0 {
			a.Requests = []Request{whole(1 << r.IntN(4))}
		}
		kinds = append(kinds, &Kind{Ask: a})
	}
	type pod struct {
		node   string
		before Node
	}
	// The first kinds are the most frequent ones.
	next := func() *Kind { return kinds[int(float64(len(kinds))*r.Float64()*r.Float64()*r.Float64())] }
	var placed []pod
	place := func() bool {
		k := next()
		x.Learn(k.Ask)
		for name := range x.Best(k, Best, r.IntN) {
			after, _ := nodes[name].With(k.Ask)
			placed = append(placed, pod{name, nodes[name]})
			nodes[name] = after
			x.Set(name, after)
			return true
		}
		return false
	}
	for place() {
	}
	before := cpuTime(b)
	b.ResetTimer()
	for range b.N {
		// The last pod of a node goes, and another one comes.
		if len(placed) > 0 {
			last := placed[len(placed)-1]
			placed = placed[:len(placed)-1]
			nodes[last.node] = last.before
			x.Set(last.node, last.before)
		}
		place()
	}
	b.ReportMetric(float64(cpuTime(b)-before)/1000/float64(b.N), "cpu-µs/op")
}

// cpuTime is that of the process, which a busy machine makes no longer.
func cpuTime(b *testing.B) int64 {
	b.Helper()
	var used unix.Rusage
	expect.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &used))
	return used.Utime.Nano() + used.Stime.Nano()
}
