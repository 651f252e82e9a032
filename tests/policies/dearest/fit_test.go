package main

import (
	"context"
	"fmt"
	"io"
	"k8s.io/klog/v2"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"testing"
	"time"
)

func TestFit(t *testing.T) {
	debug.SetGCPercent(400)
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	all, err := targets(context.Background(), "../testdata/machines")
	if err != nil {
		t.Fatal(err)
	}
	s, err := newServer(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	f, _ := os.Create("/tmp/fit.csv")
	r := rand.New(rand.NewPCG(5, 1))
	l := newLimits(nil)
	until := time.Now().Add(150 * time.Second)
	n := 0
	for time.Now().Before(until) {
		tg := all[r.IntN(len(all))]
		m := &changer{random: r, words: tg.words, resources: resourceNames(tg.classes), kinds: kinds{"requests", "claims", "alternatives", "counts", "all", "amounts", "selectors", "compiling", "constraints", "containers", "legacy"}}
		c := m.start()
		cl := classesByResource(tg.classes)
		for i := 0; i < 12; i++ {
			c = m.change(c)
			claims, err := s.admitted(c, l, cl)
			if err != nil || len(claims) == 0 {
				continue
			}
			o := measure(tg, claims)
			if o.err != nil && !o.ended {
				continue
			}
			if o.cpu < 300*time.Microsecond {
				continue
			}
			cs := 0
			for i := range c.Claims {
				cs += len(c.Claims[i].Constraints)
			}
			counters := 0
			for _, s := range tg.slices {
				for _, x := range s.Spec.SharedCounters {
					counters += len(x.Counters)
				}
			}
			n++
			fmt.Fprintln(f, o.cpu.Microseconds(), o.steps, o.devices, o.allocated, o.evaluated, o.celCost, o.compiled, o.compiledBytes, len(tg.allocated.AllocatedSharedDeviceIDs), counters, cs, o.compared, o.walked, o.unusable, tg.mode, tg.machine)
		}
	}
	fmt.Println(n)
}
