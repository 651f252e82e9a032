// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

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
	if err := errors.Join(d.WantNodeDaemon(true), d.WantNodeDaemon(true)); err != nil {
		t.Fatal(err)
	}
	wanted(true)
	if err := errors.Join(d.WantNodeDaemon(false), d.WantNodeDaemon(false)); err != nil {
		t.Fatal(err)
	}
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
	if err := node.Check(testGPU); err != nil {
		t.Error(err)
	}
	if err := d.Check(testGPU); err == nil || !strings.Contains(err.Error(), "serves no MPS control daemon") {
		t.Errorf("error %v", err)
	}
}

func TestStatusOfTheDaemonForAllGPUsIsForgotten(t *testing.T) {
	d := Dir(t.TempDir())
	set(t, d.OfNode(), Status{State: Ready})
	if err := d.OfNode().Check(testGPU); err == nil || !strings.Contains(err.Error(), "does not run on this node") {
		t.Errorf("without a supervisor: %v", err)
	}
	release, err := d.Hold()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := release(); err != nil {
			t.Error(err)
		}
	}()
	if err := d.OfNode().Check(testGPU); err == nil || !strings.Contains(err.Error(), "serves no MPS control daemon") {
		t.Errorf("what an earlier supervisor said is believed: %v", err)
	}
}

// Whichever daemon has the GPU, it is had back.
func TestGPUThatTheDaemonForAllHadIsGivenBack(t *testing.T) {
	d := held(t)
	node := d.OfNode()
	if err := errors.Join(node.SetUse(testGPU, Use{Reserved: true}),
		node.KeepFoundMode(testGPU, gpu.ComputeDefault)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	given := make(chan error, 1)
	go func() { given <- d.GiveBack(ctx, testGPU) }()
	for p := (pause{}); ; {
		use, err := node.Use(testGPU)
		if err != nil {
			t.Fatal(err)
		}
		if !use.Guarded() {
			break
		}
		if err := p.wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if len(given) > 0 {
		t.Fatalf("given back before the supervisor has: %v", <-given)
	}
	if err := node.ForgetFoundMode(testGPU); err != nil {
		t.Fatal(err)
	}
	if err := <-given; err != nil {
		t.Error(err)
	}
}
