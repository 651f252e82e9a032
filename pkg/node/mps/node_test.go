// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

func TestDaemonForAllGPUs(t *testing.T) {
	d := held(t)
	wanted := func(want bool) {
		t.Helper()
		for _, d := range []Dir{d, d.OfNode()} {
			if got, err := d.NodeDaemonWanted(); err != nil || got != want {
				t.Errorf("wanted: %t, %v, want %t", got, err, want)
			}
		}
	}
	wanted(false)
	expect.NoError(t, errors.Join(d.WantNodeDaemon(true), d.WantNodeDaemon(true)))
	wanted(true)
	expect.NoError(t, errors.Join(d.WantNodeDaemon(false), d.WantNodeDaemon(false)))
	wanted(false)

	node := d.OfNode()
	if d.Other() != node || node.Other() != d || node.OfNode() != node {
		t.Errorf("%s and %s are not each other's", d, node)
	}
	for what, of := range map[string]func(Dir, string) string{"pipe": Dir.PipeDir, "daemon": Dir.DaemonDir,
		"log": Dir.LogDir} {
		if of(node, "GPU-a") != of(node, "GPU-b") || of(d, "GPU-a") == of(d, "GPU-b") {
			t.Errorf("directory %s: %s and %s, and with a daemon for each %s and %s", what, of(node, "GPU-a"),
				of(node, "GPU-b"), of(d, "GPU-a"), of(d, "GPU-b"))
		}
	}
	// What is said of a GPU is not said of it by the other kind of daemon.
	set(t, node, Status{State: Ready})
	expect.NoError(t, node.Check(testGPU))
	expect.Error(t, d.Check(testGPU), "serves no MPS control daemon")
}

func TestStatusOfTheDaemonForAllGPUsIsForgotten(t *testing.T) {
	d := Dir(t.TempDir())
	set(t, d.OfNode(), Status{State: Ready})
	expect.Error(t, d.OfNode().Check(testGPU), "does not run on this node")
	hold(t, d)
	expect.Error(t, d.OfNode().Check(testGPU), "serves no MPS control daemon")
}

// Whichever daemon has the GPU, it is had back.
func TestGPUThatTheDaemonForAllHadIsGivenBack(t *testing.T) {
	d := held(t)
	node := d.OfNode()
	expect.NoError(t, errors.Join(node.SetUse(testGPU, Use{Reserved: true}),
		node.KeepFoundMode(testGPU, gpu.ComputeDefault)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	given := make(chan error, 1)
	go func() { given <- d.GiveBack(ctx, testGPU) }()
	for p := (pause{}); useOf(t, node).Guarded(); {
		expect.NoError(t, p.wait(ctx))
	}
	if len(given) > 0 {
		t.Fatalf("given back before the supervisor has: %v", <-given)
	}
	expect.NoError(t, node.ForgetFoundMode(testGPU))
	expect.NoError(t, <-given)
}
