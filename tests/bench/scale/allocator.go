// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
)

// allocatorRounds is how often the allocator is asked for each node, and
// allocatorTime how long for all nodes at the most: then no further round is
// begun.
const (
	allocatorRounds = 4
	allocatorTime   = 2 * time.Second
)

// celCacheSize is that of the scheduler's cache of compiled selectors.
const celCacheSize = 10

// allocatorFigures are what the scheduler's allocator takes.
type allocatorFigures struct {
	// perNode is the time to allocate one claim on a node on which it fits,
	// perPod that to make the allocator, which is done for each pod.
	perNode, perPod stats.Sample
}

// measureAllocator allocates one claim on each of the nodes in turn, as the
// scheduler does when it looks for nodes for one pod.
func measureAllocator(ctx context.Context, nodes []*corev1.Node, published [][]*resourceapi.ResourceSlice,
	classes allocatortest.Classes, c contestant, s scenario, state structured.AllocatedState) (allocatorFigures, error) {
	var all []*resourceapi.ResourceSlice
	for _, ofNode := range published {
		all = append(all, ofNode...)
	}
	cache := cel.NewCache(celCacheSize, cel.Features{EnableConsumableCapacity: true})
	requests := c.requests
	switch s.asks {
	case noGPUByRequest:
		requests = c.unsatisfiable()
	case noGPUByDeviceClass:
		classes = ofUnknownModel(classes)
	}
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "claim"},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	}
	var figures allocatorFigures
	begin := time.Now()
	for round := range 1 + allocatorRounds {
		if round > 1 && time.Since(begin) > allocatorTime {
			break
		}
		runtime.GC()
		warmUp := round == 0
		start := time.Now()
		allocator, err := structured.NewAllocator(ctx, stockallocator.Features(), state, classes, all, cache)
		if err != nil {
			return figures, fmt.Errorf("make the allocator: %w", err)
		}
		if !warmUp {
			figures.perPod = append(figures.perPod, time.Since(start))
		}
		for _, n := range nodes {
			start := time.Now()
			allocations, err := allocator.Allocate(ctx, n, []*resourceapi.ResourceClaim{claim})
			took := time.Since(start)
			if err != nil {
				return figures, fmt.Errorf("allocate on node %s in mode %s: %w", n.Name, c.mode, err)
			}
			if fits := allocations != nil; fits != (s.asks == anyGPU) {
				return figures, fmt.Errorf("allocate on node %s in mode %s: that the claim fits is %v", n.Name, c.mode, fits)
			}
			if !warmUp {
				figures.perNode = append(figures.perNode, took)
			}
		}
	}
	return figures, nil
}
